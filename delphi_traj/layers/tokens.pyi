from _typeshed import Incomplete
from torch import Tensor, nn

__all__ = ['domain_order', 'check_order', 'domain_widths', 'cut_width', 'DomainEmbedding', 'FeatureTokenizer', 'PerTokenSwiGLU', 'SparsePerTokenMoE', 'next_free_slot', 'balance_loss']

def domain_order(fields) -> list:
    """Field names by domain, the domains in order of first appearance (UM.4)."""
def check_order(fields, order: list | None) -> list:
    """The order of concatenation, or an error when it is not a permutation of the field names
    (UM.4, UM.25)."""
def domain_widths(fields, embedding: int | dict) -> dict:
    """The embedding width of each domain (UM.4)."""
def cut_width(total: int, n_token: int) -> int:
    """The width of each of T equal cuts, or an error that names what would work (UM.4)."""

class DomainEmbedding(nn.Module):
    """The fields of one domain: a row for each id, a slope and an offset for each dense field
    (UM.4)."""
    names: Incomplete
    table: Incomplete
    def __init__(self, fields, column: dict, width: int) -> None: ...
    def reset_parameters(self) -> None:
        """Rows N(0, 0.01), slopes N(0, 0.1); the row of id 0 and the offsets of dense fields start
        at zero."""
    def check_ids(self, ids: Tensor):
        """Refuse ids outside their field, which would read the rows of another one."""
    def forward(self, categorical: Tensor, dense: Tensor) -> Tensor: ...

class FeatureTokenizer(nn.Module):
    """Embed the fields, concatenate by domain, cut into T equal pieces, project each with its own
    weight (UM.4)."""
    fields: Incomplete
    order: Incomplete
    domains: Incomplete
    def __init__(self, fields, n_token: int, width: int, embedding: int | dict = 16, order: list | None = None) -> None: ...
    def coordinates(self) -> Tensor:
        """Where each coordinate of the ordered embedding comes from."""
    def reset_parameters(self) -> None:
        """Projections Xavier per token, biases zero; the domains keep their own start."""
    def check_columns(self, categorical: Tensor, dense: Tensor):
        """Refuse a table with other columns, which would be read as those of the fields."""
    def embed(self, categorical: Tensor, dense: Tensor) -> Tensor:
        """The concatenated embedding, before it is cut (UM.4)."""
    def forward(self, categorical: Tensor, dense: Tensor) -> Tensor: ...

class PerTokenSwiGLU(nn.Module):
    """A SwiGLU with biases for each token (UM.15)."""
    up_proj: Incomplete
    gate_proj: Incomplete
    down_proj: Incomplete
    up_bias: Incomplete
    gate_bias: Incomplete
    down_bias: Incomplete
    def __init__(self, n_token: int, width: int, hidden: int) -> None: ...
    def reset_parameters(self) -> None:
        """Xavier per token, biases zero."""
    def forward(self, x: Tensor) -> Tensor: ...

class SparsePerTokenMoE(nn.Module):
    """Each token has its own experts and router; the k best run, one more always does (UM.18)."""
    alpha: Incomplete
    router: Incomplete
    experts: Incomplete
    shared: Incomplete
    def __init__(self, n_token: int, width: int, hidden: int, n_expert: int, top_k: int, *, alpha: float | None = None, shared: bool = True) -> None: ...
    def route(self, x: Tensor) -> tuple:
        """Softmax over all experts, then the k largest gates, not rescaled (UM.18)."""
    def run_all(self, x: Tensor, best: Tensor, chosen: Tensor) -> Tensor:
        """Every expert runs; the gates of the others are zero."""
    def run_chosen(self, x: Tensor, best: Tensor, chosen: Tensor) -> Tensor:
        """Only the chosen experts run, each on the rows that chose it; none is dropped."""
    def forward(self, x: Tensor) -> tuple: ...

def next_free_slot(expert: Tensor, n_expert: int) -> tuple:
    """How many earlier choices went to the same expert (UM.18)."""
def balance_loss(gate: Tensor, chosen: Tensor) -> Tensor:
    """Number of experts times (share of choices) times (mean gate), summed over experts, averaged
    over tokens (UM.18)."""
