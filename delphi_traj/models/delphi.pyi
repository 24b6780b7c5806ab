from ..data.batches import Batch
from ..data.codes import Vocab
from .heads import Hazards
from .sequence import Memory, SequenceModel
from _typeshed import Incomplete
from dataclasses import dataclass
from torch import Tensor, nn

__all__ = ['DelphiConfig', 'FROZEN', 'traj_mixer_v1', 'traj_mixer_v5', 'Block', 'Delphi']

@dataclass(frozen=True)
class DelphiConfig:
    """Architecture and objective of a `Delphi`; ages in days, hazards per year."""
    vocab_size: int
    d_model: int = ...
    n_head: int = ...
    n_layer: int = ...
    mixer: str = ...
    hidden_group: int = ...
    hidden: int = ...
    group_wise_layer_norm: bool = ...
    time_mode: str = ...
    n_rbf: int = ...
    age_hidden: int = ...
    n_information_type: int = ...
    attention_dropout: float = ...
    mlp_dropout: float = ...
    token_dropout: float = ...
    objective: str = ...
    t_min: float = ...
    tie_mask: str = ...
    first_occurrence: bool = ...
    preset: str = ...
    def __post_init__(self) -> None: ...

FROZEN: Incomplete

def traj_mixer_v1(vocab_size: int, **options) -> DelphiConfig:
    """The frozen TrajMixer v1 (V1.17)."""
def traj_mixer_v5(vocab_size: int, **options) -> DelphiConfig:
    """The frozen TrajMixer v5 (V5.12, V5.15)."""

class Block(nn.Module):
    """Pre-norm causal attention with its residual, then a mixing stage (V1.1-V1.3, V5.1, V5.7)."""
    norm: Incomplete
    attention: Incomplete
    time_bias: Incomplete
    dropout: Incomplete
    stage: Incomplete
    def __init__(self, config: DelphiConfig) -> None: ...
    def forward(self, x: Tensor, mask: Tensor, rotation=None, rbf: Tensor = None, memory=None) -> Tensor: ...

class Delphi(SequenceModel):
    """A causal transformer over coded events with ages, with any mixer of `MIXERS` in each block."""
    token_embedding: Incomplete
    sex_embedding: Incomplete
    type_embedding: Incomplete
    age_encoding: Incomplete
    rotation: Incomplete
    rbf: Incomplete
    token_dropout: Incomplete
    blocks: Incomplete
    final_norm: Incomplete
    head: Incomplete
    def __init__(self, config: DelphiConfig, vocab: Vocab = None) -> None: ...
    def forward(self, batch: Batch, memory: Memory = None) -> Tensor:
        """States of all positions, or of those behind a memory; of no use where `valid` is False."""
    def reset_parameters(self) -> None:
        """Delphi's initial values for embeddings, attention and feed-forward baselines."""
    def embed(self, batch: Batch) -> Tensor:
        """Token + age + sex + information type."""
    def memory_of(self, batch: Batch) -> Memory:
        """Keys and values of every block."""
    def read(self, batch: Batch, memory: Memory) -> Tensor:
        """States of new positions behind a memory."""
    def look(self, memory: Memory, age: Tensor) -> Hazards:
        """Hazards of the last states."""
