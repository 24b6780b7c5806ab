import pandas as pd
from .heads import Loss
from _typeshed import Incomplete
from dataclasses import dataclass
from functools import singledispatch
from torch import Tensor, nn

__all__ = ['RANKERS', 'Ranker', 'make_ranker', 'MixingPatterns', 'mixing_patterns', 'mixing_output', 'local_reads', 'unified_row', 'unified_table']

RANKERS: Incomplete

class Ranker(nn.Module):
    """Tokenizer, backbone, mean over tokens, one linear output."""
    def __init__(self, tokenizer: nn.Module, backbone: nn.Module, width: int, target: str = 'binary', balance_weight: float = 0.01) -> None: ...
    def score(self, categorical: Tensor, dense: Tensor) -> tuple:
        """The linear output of the mean token, and the backbone's balance loss."""
    def forward(self, categorical: Tensor, dense: Tensor) -> Tensor: ...
    def loss(self, categorical: Tensor, dense: Tensor, label: Tensor) -> Loss:
        """Cross-entropy or squared error, and the weighted balance loss (UM.18)."""
    def predict(self, categorical: Tensor, dense: Tensor) -> Tensor:
        """What is expected, in evaluation mode; the mode is put back after."""
    def parameter_count(self, embeddings: bool = False) -> int:
        """The 'dense parameters' of UM.20, all but the tables of ids, or everything."""

def make_ranker(name: str, fields, n_token: int, width: int, depth: int, *, embedding: int | dict = 16, order: list | None = None, target: str = 'binary', balance_weight: float = 0.01, **options) -> Ranker:
    """A whole ranking model by its name (UM.4, UM.16, UM.19)."""

@dataclass(frozen=True)
class MixingPatterns:
    """The two factors of a mixing at one input (UM.13)."""
    strength: Tensor
    local: Tensor
    def output(self) -> Tensor: ...

@singledispatch
def mixing_patterns(layer: nn.Module, x: Tensor) -> MixingPatterns:
    """The global and the local pattern of a built layer at an input (UM.13)."""
def mixing_output(layer: nn.Module, x: Tensor) -> Tensor:
    """What the layer itself computes between tokens, flattened: no output projection, norm or
    residual."""
def local_reads(layer: nn.Module, x: Tensor) -> Tensor:
    """Which input blocks each vector of the local pattern depends on, found by changing them one by
    one (UM.13)."""
def unified_row(layer: nn.Module, x: Tensor, other: Tensor, tol: float = 1e-06) -> dict:
    """One row of the table of UM.13, measured on two inputs."""
def unified_table(layers: dict, x: Tensor, other: Tensor) -> pd.DataFrame:
    """The table of UM.13 for built layers."""
