from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['FeedForward', 'SwiGLU', 'grouped_swiglu_einsum', 'grouped_swiglu', 'cross_group_swiglu', 'xavier_per_slice_', 'start_near_zero_', 'unfilled', 'TrajectoryMixer', 'TrajMixerV1', 'PreNormResidual', 'GroupLayerNorm', 'TrajMixerV5']

class FeedForward(nn.Module):
    """The two-layer feed-forward branch that the mixers replace (V1.12)."""
    net: Incomplete
    def __init__(self, d_model: int, hidden: int | None = None) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class SwiGLU(nn.Module):
    """The full-width SwiGLU branch with biases, the historical baseline (V1.12)."""
    output_proj: Incomplete
    def __init__(self, d_model: int, hidden: int | None = None) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

def grouped_swiglu_einsum(x: Tensor, gate: Tensor, value: Tensor, output: Tensor) -> Tensor:
    """A SwiGLU of its own for each block n, letter by letter; the reference (V1.6-V1.8, V5.3)."""
def grouped_swiglu(x: Tensor, gate: Tensor, value: Tensor, output: Tensor) -> Tensor:
    """A SwiGLU of its own for each block n, as batched products on [n t i] (V1.6-V1.8, V5.3)."""
def cross_group_swiglu(x: Tensor, gate: Tensor, value: Tensor, output: Tensor) -> Tensor:
    """A SwiGLU along the groups, one for each inner coordinate d (V1.6-V1.8, V5.6, ET.14)."""
def xavier_per_slice_(weight: Tensor) -> Tensor:
    """Fill every slice uniformly within its own Xavier bound sqrt(6 / (i + h)) (V1.14, V5.9)."""
def start_near_zero_(gate: Tensor, value: Tensor, output: Tensor):
    """Gate and value Xavier per slice, output N(0, 1e-3): an update near zero (V1.14, V5.9)."""
def unfilled(*shape: int) -> nn.Parameter:
    """A parameter without values yet; `reset_parameters` fills it."""

class TrajectoryMixer(nn.Module):
    """A SwiGLU along the trajectory axis and nothing else (ET.14)."""
    output_proj: Incomplete
    def __init__(self, n_trajectory: int, trajectory_dim: int, hidden: int | None = None) -> None: ...
    def reset_parameters(self) -> None:
        """As V5's mixing across groups (V5.9)."""
    def forward(self, x: Tensor) -> Tensor: ...

class TrajMixerV1(nn.Module):
    """Alignment inside groups, then a SwiGLU across groups: the branch alone (V1.5-V1.11)."""
    group_align: Incomplete
    output_proj: Incomplete
    def __init__(self, d_model: int, n_group: int, hidden_group: int = 20) -> None: ...
    def reset_parameters(self) -> None:
        """Identity alignment, Xavier gate and value, output N(0, 1e-3) (V1.14)."""
    def forward(self, x: Tensor) -> Tensor: ...

class PreNormResidual(nn.Module):
    """A stage around a branch: x + Dropout(branch(norm(x))) (V1.2, V1.3)."""
    def __init__(self, norm: nn.Module, branch: nn.Module, dropout: float = 0.0) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class GroupLayerNorm(nn.Module):
    """LayerNorm inside each group, an ablation and never the default (V1.13)."""
    eps: Incomplete
    weight: Incomplete
    bias: Incomplete
    def __init__(self, n_group: int, d_group: int, eps: float = 1e-05) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class TrajMixerV5(nn.Module):
    """The whole stage: norm, SwiGLU inside groups, static gate, SwiGLU across, residual (V5.2-V5.8)."""
    output_proj: Incomplete
    def __init__(self, d_model: int, n_group: int, dropout: float = 0.0) -> None: ...
    @property
    def gate(self) -> Tensor: ...
    def intra(self, G: Tensor) -> Tensor: ...
    def fuse(self, G: Tensor) -> Tensor: ...
    def cross(self, U: Tensor) -> Tensor: ...
    def update(self, x: Tensor) -> Tensor: ...
    def forward(self, x: Tensor) -> Tensor: ...
    def reset_parameters(self) -> None:
        """Xavier per slice, gate at 0.1, last output N(0, 1e-3), LayerNorm default (V5.4, V5.9)."""
