from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['constrain', 'positive_temperature', 'check_sizes', 'BlockMixing', 'UniMixing', 'half_identity', 'PostNormResidual', 'UniMixingLite', 'linear_temperature', 'set_temperature', 'BakedMixing', 'bake']

def constrain(scores: Tensor, tau: Tensor | float, symmetric: bool, doubly_stochastic: bool, n_iters: int) -> Tensor:
    """Symmetrize, divide by the temperature, scale to doubly stochastic (UM.10)."""
def positive_temperature(tau: float) -> float:
    """The temperature, or an error when it is not a positive number."""
def check_sizes(n_block, block, n_iters) -> None:
    """Blocks, their width and the iterations, each at least 1, or an error with all three."""

class BlockMixing(nn.Module):
    """Constrained mixing inside and between blocks; a subclass has the scores (UM.9, UM.10, UM.21)."""
    block_specific: Incomplete
    def __init__(self, n_block: int, block: int, *, symmetric: bool = True, doubly_stochastic: bool = True, tau: float = 1.0, block_specific: bool = True, n_iters: int = 20) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
    def matrices(self) -> tuple:
        """The two matrices that are applied, in float32 or wider (UM.10)."""
    def residual(self) -> float:
        """The largest distance of a row or column sum from one, over both matrices."""

class UniMixing(BlockMixing):
    """Learned mixing inside and between blocks of a vector (UM.9, UM.10)."""
    global_score: Incomplete
    local_score: Incomplete
    def __init__(self, n_block: int, block: int, **switches) -> None: ...
    def scores(self) -> tuple:
        """The free numbers behind the two matrices."""
    def reset_parameters(self) -> None:
        """Scores N(0, 0.1), and half of each local matrix on its diagonal."""

def half_identity(size: int, doubly_stochastic: bool) -> float:
    """The diagonal that leaves half of each coordinate in place at temperature 1, or all of it
    without Sinkhorn."""

class PostNormResidual(nn.Module):
    """norm(x + mixing(x)): the residual first, then the norm (UM.12)."""
    def __init__(self, norm: nn.Module, mixing: nn.Module) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class UniMixingLite(BlockMixing):
    """UniMixing with low-rank global scores and local scores from a basis (UM.14)."""
    basis: Incomplete
    omega: Incomplete
    def __init__(self, n_block: int, block: int, rank: int, n_basis: int, **switches) -> None: ...
    def reset_parameters(self) -> None:
        """N(0, 0.1); the first basis matrix half on its diagonal, and used once by every block."""
    def scores(self) -> tuple:
        """A_G B_G and the combinations of the basis, in float32 or wider (UM.14)."""

def linear_temperature(step: int, total: int, start: float = 1.0, end: float = 0.05) -> float:
    """Linear annealing of the temperature, constant after J (UM.17)."""
def set_temperature(module: nn.Module, tau: float):
    """Set the temperature of every doubly stochastic mixing in a module (UM.17)."""

class BakedMixing(nn.Module):
    """Mixing by two fixed matrices (UM.9)."""
    def __init__(self, W_G: Tensor, W_B: Tensor) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

def bake(module: nn.Module) -> nn.Module:
    """Fix the matrices of every mixing; training and inference use the same ones."""
