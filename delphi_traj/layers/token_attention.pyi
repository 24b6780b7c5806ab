from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['PerTokenFFN', 'TokenAttention', 'split_heads', 'HeterogeneousAttention', 'HiFormerAttention', 'FieldAwareAttention', 'AttentionBlock', 'RankerBlocks', 'hetero_attention', 'hiformer', 'fat']

class PerTokenFFN(nn.Module):
    """Two linear maps of its own for each token, GELU between them (UM.19)."""
    def __init__(self, n_token: int, width: int, hidden: int) -> None: ...
    def reset_parameters(self) -> None:
        """Xavier per token, biases zero."""
    def forward(self, x: Tensor) -> Tensor: ...

class TokenAttention(nn.Module):
    """Attention between tokens; a subclass says how queries, keys and values are made (UM.1)."""
    n_token: Incomplete
    width: Incomplete
    n_head: Incomplete
    head_width: Incomplete
    output_proj: Incomplete
    def __init__(self, n_token: int, width: int, n_head: int = 1) -> None: ...
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """softmax(Q K^T / sqrt d), head by head (UM.1)."""
    def global_pattern(self, x: Tensor) -> Tensor:
        """The weights at an input (UM.13)."""
    def mix(self, x: Tensor) -> Tensor:
        """What every token collects, heads side by side (UM.1)."""
    def forward(self, x: Tensor) -> Tensor: ...

def split_heads(x: Tensor, n_head: int) -> Tensor:
    """Heads become an axis of their own, before the tokens."""

class HeterogeneousAttention(TokenAttention):
    """Attention with query, key and value maps of its own for every token (UM.1)."""
    def __init__(self, n_token: int, width: int, n_head: int = 1) -> None: ...
    def project(self, x: Tensor) -> tuple:
        """Each token by its own matrix (UM.1)."""

class HiFormerAttention(TokenAttention):
    """Keys and values of every token are read off all tokens at once, through a low rank (UM.19)."""
    query: Incomplete
    def __init__(self, n_token: int, width: int, n_head: int = 1, rank: int = 16) -> None: ...
    def reset_parameters(self) -> None:
        """Queries and output Xavier; either factor of a pair keeps the variance of a coordinate."""
    def composed(self, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """One key or value for every token, each a function of all tokens (UM.19)."""
    def project(self, x: Tensor) -> tuple:
        """Queries per token; keys and values from the flattened tokens (UM.19)."""

class FieldAwareAttention(TokenAttention):
    """Maps of each field composed of a few basis matrices, and a factor for every pair of fields
    (UM.19)."""
    top_k: Incomplete
    def __init__(self, n_token: int, width: int, n_head: int = 1, n_basis: int = 64, top_k: int = 3, meta: int = 16) -> None: ...
    def reset_parameters(self) -> None:
        """Basis and output Xavier; meta-embeddings N(0, 1): fields differ; factors N(0, .01)."""
    def composition(self) -> Tensor:
        """Softmax over the best k scores of a field, zero elsewhere (UM.19)."""
    def project(self, x: Tensor) -> tuple:
        """Each token by the composed map of its field (UM.19)."""
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """softmax((q_i . k_j) w_ij / sqrt d) (UM.19)."""
    def mix(self, x: Tensor) -> Tensor:
        """What every token collects, heads side by side; queries, keys and values are made once (UM.19)."""

class AttentionBlock(nn.Module):
    """LN(x + attention), then LN(x + per-token FFN) (UM.1, UM.19)."""
    def __init__(self, attention: TokenAttention, expansion: int = 4) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

class RankerBlocks(nn.Module):
    """Blocks one after another; their balance terms are added (UM.19)."""
    def __init__(self, *blocks: nn.Module, interval: int = 0) -> None: ...
    def forward(self, x: Tensor) -> tuple: ...

def hetero_attention(n_token, width, depth, *, n_head: int = 4, expansion: int = 4):
    """Blocks of heterogeneous attention (UM.1)."""
def hiformer(n_token, width, depth, *, n_head: int = 4, rank: int = 16, expansion: int = 4):
    """Blocks of HiFormer attention (UM.19)."""
def fat(n_token, width, depth, *, n_head: int = 4, n_basis: int = 64, top_k: int = 3, meta: int = 16, expansion: int = 4):
    """Blocks of field-aware attention (UM.19)."""
