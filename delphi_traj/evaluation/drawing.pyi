import numpy as np
from ..data.events import Cohort
from ..models.heads import Hazards
from _typeshed import Incomplete
from dataclasses import dataclass
from torch import Tensor

__all__ = ['streams', 'uniforms', 'draw_exponential', 'draw_weibull', 'draw_next', 'ENDED', 'Rules', 'Step', 'Walk']

def streams(subject_id: Tensor, draw: Tensor, seed: int = 0) -> Tensor:
    """The key of the random numbers of each row: it depends on subject, draw and seed only."""
def uniforms(stream: Tensor, step: int, lanes: int) -> Tensor:
    """Numbers strictly between 0 and 1 that depend on stream, step and lane only."""
def draw_exponential(rate: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Waiting time from Exponential(total), cause from Categorical(rate / total)."""
def draw_weibull(hazards: Hazards, begin: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The earliest of conditional Weibull times, one for each cause."""
def draw_next(hazards: Hazards, begin: Tensor, stream: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Waiting time and cause of the next event; an infinite time where no cause is left."""

ENDED: Incomplete

@dataclass(frozen=True)
class Rules:
    """How futures are drawn."""
    repeats: bool
    budget: int
    cache: bool
    no_events: str
    every: float
    def __post_init__(self) -> None: ...

@dataclass
class Step:
    """An interval of each row that lives."""
    row: Tensor
    hazards: Hazards
    begin: Tensor
    years: Tensor
    token: Tensor
    age: Tensor

class Walk:
    """Futures of rows (person, draw); iterating over it draws the next `Step` of all rows that live."""
    objective: Incomplete
    device: Incomplete
    wide: Incomplete
    ended: Incomplete
    def __init__(self, model, past: Cohort, landmark: np.ndarray, person: np.ndarray, draw: np.ndarray, years: float, seed: int, rules: Rules) -> None: ...
    def __iter__(self): ...
