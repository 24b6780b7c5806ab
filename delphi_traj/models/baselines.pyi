from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['TokenMixing', 'with_balance', 'RankMixerBlock', 'ReluRoutedExperts', 'rankmixer', 'TokenMixerLargeBlock', 'quiet_feed', 'tokenmixer_large', 'FactorizationMachine', 'WukongLayer', 'wukong']

class TokenMixing(nn.Module):
    """TokenMixer with as many heads as tokens, so that the shape stays (UM.2)."""
    n_token: Incomplete
    def __init__(self, n_token: int, width: int) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

def with_balance(layer: nn.Module, x: Tensor) -> tuple:
    """The output of a per-token layer and its balance term, zero where it has none."""

class RankMixerBlock(nn.Module):
    """S = LN(Mix(X) + X), then LN(PFFN(S) + S) (UM.19)."""
    def __init__(self, n_token: int, width: int, ffn: nn.Module) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

class ReluRoutedExperts(nn.Module):
    """Experts of a token weighted by ReLU gates; one router for training, a sparse one for
    inference (UM.19)."""
    experts: Incomplete
    def __init__(self, n_token: int, width: int, hidden: int, n_expert: int, share: float = 0.5) -> None: ...
    def reset_parameters(self) -> None:
        """Routers small around a bias of one: every expert starts on; experts keep their start."""
    def gates(self, x: Tensor, which: str) -> Tensor:
        """ReLU of a linear map for each token (UM.19)."""
    def run(self, x: Tensor, gate: Tensor) -> Tensor:
        """The gated sum, every expert run."""
    def forward(self, x: Tensor) -> tuple: ...
    def run_active(self, x: Tensor, gate: Tensor) -> Tensor:
        """The gated sum, an expert run only for the rows whose gate is open."""

def rankmixer(n_token, width, depth, *, expansion: int = 4, n_expert=None, share=None):
    """RankMixer, dense or with ReLU-routed experts (UM.19)."""

class TokenMixerLargeBlock(nn.Module):
    """Mix, a gated layer, revert, a second gated layer; both residuals join equal coordinates
    (UM.19)."""
    def __init__(self, n_token: int, width: int, mixed_ffn: nn.Module, ffn: nn.Module) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

def quiet_feed(n_token: int, width: int, hidden: int, n_expert: int | None = None, top_k: int | None = None) -> nn.Module:
    """`PerTokenSwiGLU` or `SparsePerTokenMoE` with down projections at a hundredth of Xavier
    (UM.19)."""
def tokenmixer_large(n_token, width, depth, *, expansion: int = 4, n_expert=None, top_k=None, interval: int = 2):
    """TokenMixer-Large, dense or with sparse experts; a residual over every `interval` blocks
    (UM.19)."""

class FactorizationMachine(nn.Module):
    """X X^T Y, computed as X (X^T Y) (UM.3)."""
    Y: Incomplete
    def __init__(self, n_token: int, rank: int) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class WukongLayer(nn.Module):
    """LN([FMB; LCB] + residual): a factorisation-machine block above a linear one (UM.3)."""
    mlp: Incomplete
    residual: Incomplete
    def __init__(self, n_token: int, width: int, n_fm: int, n_linear: int, rank: int, hidden: int) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

def wukong(n_token, width, depth, *, n_fm=None, n_linear=None, rank: int = 8, hidden=None):
    """Wukong layers; by default each block has half of the rows, so that their number stays (UM.3)."""
