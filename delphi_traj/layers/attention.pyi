from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['require_mask', 'not_later', 'causal_mask', 'next_token_mask', 'all_future_mask', 'masked_softmax', 'attention_weights', 'CausalSelfAttention', 'KeyValues', 'delphi_tie_mask', 'TrajectoryAttention']

def require_mask(mask: Tensor, name: str):
    """Refuse a mask that is not boolean (ET.9)."""
def not_later(valid: Tensor, first: int = 0) -> Tensor:
    """The order of positions, l <= q (V1.15, ET.11)."""
def causal_mask(valid: Tensor, first: int = 0) -> Tensor:
    """A position reads itself and the valid positions before it (V1.1, V1.15, ET.9)."""
def next_token_mask(valid: Tensor, event_age: Tensor, query_age: Tensor | None = None) -> Tensor:
    """Earlier events may be read, and of the same time those that stand no later (ET.11)."""
def all_future_mask(valid: Tensor, event_age: Tensor, query_age: Tensor) -> Tensor:
    """Everything at or before the query's age may be read (ET.10)."""
def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over what may be read; a row with nothing to read is exactly zero (ET.12)."""
def attention_weights(q: Tensor, k: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
    """How much each query reads of each event (V1.1, V5.1, ET.7)."""

class CausalSelfAttention(nn.Module):
    """Multi-head attention with rotated queries and keys and a time bias (V1.1, V5.1)."""
    def __init__(self, d_model: int, n_head: int, dropout: float = 0.0) -> None: ...
    def forward(self, x: Tensor, mask: Tensor, rotation: tuple | None = None, bias: Tensor | None = None, memory: KeyValues | None = None) -> Tensor:
        """The weighted mean of the values, through the output map (V1.1)."""
    def heads(self, x: Tensor) -> Tensor:
        """Give every head its own slice of the width."""
    def project(self, x: Tensor, rotation: tuple | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated if asked for, and values of every head (V1.1, V5.1)."""
    def weights(self, x: Tensor, mask: Tensor, rotation: tuple | None = None, bias: Tensor | None = None) -> Tensor:
        """How much each position reads of each other, to be looked at."""

class KeyValues:
    """Keys and values of what was read, in buffers that grow; for use without gradients."""
    def __init__(self) -> None: ...
    buffers: Incomplete
    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new events behind the ones before."""
    @property
    def all(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all events so far."""
    def keep(self, rows: Tensor):
        """Choose rows of the batch, or repeat them."""

def delphi_tie_mask(mask: Tensor, age: Tensor, target_age: Tensor) -> Tensor:
    """Hide keys of the target's age; a row that is emptied keeps its own position. It depends on
    the target."""

class TrajectoryAttention(nn.Module):
    """Every trajectory slot reads the event memory on its own (ET.7, ET.8)."""
    q_proj: Incomplete
    def __init__(self, n_trajectory: int, trajectory_dim: int) -> None: ...
    def forward(self, state: Tensor, memory: tuple, mask: Tensor, rotation: tuple | None = None, bias: Tensor | None = None) -> Tensor:
        """The weighted mean of each slot's own values, no map across slots after it (ET.7, ET.8)."""
    def project_event_memory(self, memory: Tensor, rotation: tuple | None = None, kept: KeyValues | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of every slot; made once and read by all rounds (ET.4, ET.7)."""
    def weights(self, state: Tensor, memory: tuple, mask: Tensor, rotation: tuple | None = None, bias: Tensor | None = None) -> Tensor:
        """How much each slot of each query reads of each event (ET.7)."""
