from ..data.batches import Batch
from ..data.codes import Vocab
from .heads import Hazards
from _typeshed import Incomplete
from dataclasses import dataclass
from delphi_traj.layers.attention import KeyValues
from delphi_traj.models.sequence import Memory, SequenceModel
from torch import Tensor, nn
from typing import NamedTuple

__all__ = ['SIZES', 'EventTrajectoryConfig', 'event_trajectory_shared_v2', 'SharedEventTrajectoryCore', 'EventTrajectory', 'Rounds']

SIZES: Incomplete

@dataclass(frozen=True)
class EventTrajectoryConfig:
    """Architecture and objective of an `EventTrajectory` (ET.2); ages in days, hazards per year."""
    vocab_size: int
    size: str = ...
    d_model: int = ...
    n_trajectory: int = ...
    trajectory_dim: int = ...
    traj_hidden: int = ...
    n_reasoning_rounds: int = ...
    mode: str = ...
    time_mode: str = ...
    head: str = ...
    objective: str = ...
    n_rbf: int = ...
    age_hidden: int = ...
    dropout: float = ...
    token_dropout: float = ...
    t_min: float = ...
    first_occurrence: bool = ...
    @property
    def preset(self): ...
    def __post_init__(self) -> None: ...

def event_trajectory_shared_v2(size: str = 'nano', n_reasoning_rounds: int = 12, mode: str = 'next_token', *, vocab_size: int, **options) -> EventTrajectoryConfig:
    """The frozen event-trajectory configuration of a size (ET.2)."""

class SharedEventTrajectoryCore(nn.Module):
    """The one core that every round applies (ET.1, ET.15)."""
    attention: Incomplete
    mixer: Incomplete
    attn_scale: Incomplete
    mixer_scale: Incomplete
    time_bias: Incomplete
    dropout: Incomplete
    def __init__(self, config: EventTrajectoryConfig) -> None: ...
    def forward(self, state: Tensor, memory: tuple, mask: Tensor, rotation: tuple | None = None, bias: Tensor | None = None) -> Tensor:
        """One round: read, then mix, each added to the state (ET.15)."""
    def reading(self, state, memory, mask, rotation=None, bias=None) -> Tensor:
        """How much each slot reads of each event in the round that starts at `state`."""
    def project_event_memory(self, memory: Tensor, rotation: tuple | None = None, kept: KeyValues | None = None) -> tuple[Tensor, Tensor]:
        """Keys, rotated, and values of the memory, once for all rounds (ET.4)."""

class EventTrajectory(SequenceModel):
    """Trajectory slots that read an event memory in rounds of one shared core (ET.1)."""
    token_embedding: Incomplete
    sex_embedding: Incomplete
    age_encoding: Incomplete
    token_dropout: Incomplete
    query_token: Incomplete
    query_projection: Incomplete
    prototypes: Incomplete
    rotation: Incomplete
    rbf: Incomplete
    reasoning_core: Incomplete
    final_norm: Incomplete
    head: Incomplete
    def __init__(self, config: EventTrajectoryConfig, vocab: Vocab = None, free_shape=None) -> None: ...
    def forward(self, batch: Batch, return_rounds: bool = False):
        """State of every position [b l d_model], or of the landmark [b d_model] (ET.1, ET.18)."""
    def reset_parameters(self) -> None:
        """N(0, .02) for embeddings, prototypes and query token, Xavier for projections; the core's
    parts bring their own."""
    def embed(self, batch: Batch) -> Tensor:
        """Event + age + sex (ET.3)."""
    def encode_events(self, x: Tensor) -> Tensor:
        """The event memory; encoded once, never detached (ET.4)."""
    def landmark_query(self, age: Tensor, sex: Tensor) -> Tensor:
        """Features of the one query at a landmark, [b 1 d_model] (ET.6)."""
    def query(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and ages of the queries: every event, or the landmark (ET.6)."""
    def initial_state(self, features: Tensor) -> Tensor:
        """Prototypes plus the query's context (ET.5)."""
    def may_read(self, batch: Batch, query_age: Tensor) -> Tensor:
        """The mask of the mode (ET.10, ET.11)."""
    def turn(self, age: Tensor):
        """Angles at these ages; `time_mode` absolute has none (ET.13)."""
    def shared_by_rounds(self, memory: tuple, event_age: Tensor, query_age: Tensor, mask: Tensor) -> dict:
        """All that the rounds share besides the state (ET.4, ET.13)."""
    def prepare(self, batch: Batch) -> tuple[Tensor, dict]:
        """Initial state, and all that the rounds share (ET.3-ET.6, ET.13)."""
    def rounds(self, state: Tensor, shared: dict):
        """The one core, applied in rounds (ET.1, ET.16)."""
    def final_state(self, state: Tensor) -> Tensor:
        """The slots of the last round side by side, normalised (ET.18)."""
    def memory_of(self, batch: Batch) -> Memory:
        """Keys and values of the event memory, one pair for all rounds (ET.4)."""
    def read(self, batch: Batch, memory: Memory) -> Tensor:
        """Enter new events into a memory; a query at an event is made of its X_E (ET.3, ET.4)."""
    def look(self, memory: Memory, age: Tensor) -> Hazards:
        """One query in all rounds: at the last event, or at the landmark `age` (ET.1, ET.6, ET.18)."""

class Rounds(NamedTuple):
    """States before the first and after each round, and what each slot read in each round."""
    state: Tensor
    weight: Tensor
