from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['require_wide', 'years', 'AgeEncoding', 'TimeRoPE', 'rotate', 'GaussianRBF', 'RelativeTimeBias']

def require_wide(value: Tensor, name: str):
    """Refuse a time that is held in 16 bits."""
def years(age: Tensor) -> Tensor:
    """Age in years, at least float32."""

class AgeEncoding(nn.Module):
    """Sinusoids of age plus a small MLP of age (ET.13)."""
    def __init__(self, d_model: int, hidden: int = 8) -> None: ...
    def forward(self, age: Tensor) -> Tensor:
        """The sum of waves and curve, at the precision of the buffer."""

class TimeRoPE(nn.Module):
    """The angles, frequency times age, by which queries and keys are turned (V1.1, ET.13)."""
    def __init__(self, d_head: int, shortest: float = ..., longest: float = 100.0) -> None: ...
    def forward(self, age: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles, never narrower than float32."""

def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i + d/2}) of every head by its angle (V1.1, ET.13)."""

class GaussianRBF(nn.Module):
    """Gaussian bumps on the time gap, evenly spaced in log(1 + years) (ET.13)."""
    def __init__(self, n_rbf: int = 12, longest: float = 100.0) -> None: ...
    def forward(self, query_age: Tensor, key_age: Tensor) -> Tensor:
        """Every bump at every gap between a query and a key (ET.13)."""

class RelativeTimeBias(nn.Module):
    """What each head adds to its score for a time gap (V5.10, ET.13)."""
    rbf_proj: Incomplete
    time_bias_scale: Incomplete
    def __init__(self, n_rbf: int, n_head: int) -> None: ...
    def forward(self, rbf: Tensor) -> Tensor:
        """The bias of every head at every gap (V5.10)."""
