from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['FlattenedTokens', 'UniMixerBlock', 'best_block', 'token_mixing', 'token_feed', 'SiameseNorm', 'PostNorm', 'check_streams', 'UniMixer']

class FlattenedTokens(nn.Module):
    """A mixing of vectors of length T D, applied to tokens (UM.9)."""
    mixing: Incomplete
    def __init__(self, mixing: nn.Module) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class UniMixerBlock(nn.Module):
    """norm(x + mixing(x)), then the per-token SwiGLU or the experts, without a residual of its own
    (UM.12, UM.15, UM.18)."""
    def __init__(self, mix: nn.Module, feed: nn.Module) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

def best_block(length: int) -> int:
    """The largest divisor of L that is not above its square root, where L^2 / B + L B is least
    (UM.9)."""
def token_mixing(n_token: int, width: int, block: int | None = None, lite: bool = False, **options) -> nn.Module:
    """UniMixing, or its light form, of the flattened tokens (UM.9, UM.14)."""
def token_feed(n_token: int, width: int, hidden: int | None = None, n_expert: int | None = None, **options) -> nn.Module:
    """The per-token SwiGLU, or sparse experts (UM.15, UM.18)."""

class SiameseNorm(nn.Module):
    """A post-norm and a pre-norm stream that feed the same blocks (UM.16)."""
    input_norm: Incomplete
    output_norm: Incomplete
    def __init__(self, blocks, width: int, *, input_norm: bool = False, depth_scale: bool = False, eps: float = 1e-06) -> None: ...
    def step(self, l: int, X: Tensor, Y: Tensor) -> tuple:
        """One block and its two residuals (UM.16)."""
    def forward(self, x: Tensor) -> tuple: ...
    def streams(self, x: Tensor) -> tuple:
        """Both streams, before and after every block."""

class PostNorm(nn.Module):
    """One stream, x <- norm(x + block(x)): the ablation of SiameseNorm (UM.21)."""
    blocks: Incomplete
    post_norm: Incomplete
    def __init__(self, blocks, width: int, eps: float = 1e-06) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

def check_streams(depth, norm, input_norm, depth_scale) -> None:
    """Refuse a depth below 0, an unknown norm, and options of the other norm (UM.16, UM.21)."""

class UniMixer(nn.Module):
    """M UniMixer blocks with SiameseNorm or post-norm (UM.12-UM.16, UM.18, UM.21)."""
    body: Incomplete
    def __init__(self, n_token: int, width: int, depth: int, *, norm: str = 'siamese', input_norm: bool = False, depth_scale: bool = False, eps: float = 1e-06, **options) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...
