import numpy as np
from ..data.batches import AllFutureBatch, Batch, CompetingBatch, DelphiBatch
from ..data.events import Cohort
from _typeshed import Incomplete
from dataclasses import dataclass
from torch import Tensor, nn

__all__ = ['ExponentialHead', 'set_base_rate', 'cumulative_hazard', 'survival', 'cif_next', 'at_risk', 'Loss', 'competing_loss', 'marginal_log_rates', 'last_untied', 'delphi_loss', 'Hazards', 'HALF_DAY', 'NODES', 'WeibullHead', 'MixedHead', 'HEADS', 'make_head', 'hazards_of', 'all_future_loss']

class ExponentialHead(nn.Module):
    """Constant hazards per year, log r = <h, E> + b; tied to the token embedding, or with a
    projection of its own."""
    scale_proj: Incomplete
    def __init__(self, vocab_size: int, d_model: int = None, tied: bool = True) -> None: ...
    def log_scale(self, hidden: Tensor, embedding: Tensor = None) -> Tensor:
        """<h, E> + b, or the head's own projection + b, at full precision also under autocast."""
    def forward(self, hidden: Tensor, embedding: Tensor = None) -> Tensor:
        """Log hazard per year of every cause."""

def set_base_rate(head, log_rate) -> None:
    """Put marginal log rates into the head's buffer; raises ValueError on a wrong length or a value
    that is not finite."""
def cumulative_hazard(log_hazard, years):
    """Cumulative hazard of each cause after `years` at constant hazard."""
def survival(log_hazard, years):
    """Probability that no cause has struck after `years`."""
def cif_next(log_hazard, years):
    """Probability that the next event is k and comes within `years`; every cause competes."""
def at_risk(batch: Batch, cause, first_occurrence: bool = True) -> Tensor:
    """Causes that can still happen after each position."""

@dataclass
class Loss:
    """A loss to minimise, its named parts (which add up to it) and the number of events it averages
    over."""
    total: Tensor
    parts: dict
    count: Tensor

def competing_loss(hazard, batch: CompetingBatch, cause: Tensor, first_occurrence: bool = True) -> Loss:
    """Right-censored competing risks with grouped ties: sum of cumulative hazards minus event log
    hazards, per event."""
def marginal_log_rates(cohort: Cohort) -> np.ndarray:
    """log(events / exposure) of every cause inside the windows, exposure ending at the first
    occurrence."""
def last_untied(batch: DelphiBatch) -> Tensor:
    """Position whose waiting time a target takes: l itself, or the last one of an earlier day if
    the target is on l's day."""
def delphi_loss(log_rate: Tensor, batch: DelphiBatch, ignored: Tensor, t_min: float = 0.1, no_event=None, validation: bool = False) -> Loss:
    """Delphi's cross-entropy plus exponential waiting time, each a mean over targets."""

@dataclass
class Hazards:
    """Cumulative hazards b t^a of every cause, t in years on the clock; log b, and log a or None
    where every a is 1."""
    log_scale: Tensor
    log_shape: Tensor = ...
    def __getitem__(self, at): ...
    def log_hazard(self, years) -> Tensor:
        """Log hazard per year of each cause; years below half a day count as half a day."""
    def cumulative_hazard(self, years, begin: float = 0.0) -> Tensor:
        """Cumulative hazard of each cause over (begin, begin + years]."""
    def survival(self, years, begin: float = 0.0) -> Tensor:
        """Probability that no cause strikes in (begin, begin + years]."""
    def only(self, risk: Tensor) -> Hazards:
        """The same hazards, 0 where `risk` is False."""
    def cif(self, years, begin: float = 0.0) -> Tensor:
        """Probability that k is the first to strike after `begin` and does so within `years`; every
    cause competes."""
    def competing_terms(self, batch: CompetingBatch, risk: Tensor):
        """Sum of cumulative hazards on the clock, and the log hazard of every token at its reader."""

HALF_DAY: Incomplete
NODES: Incomplete

class WeibullHead(ExponentialHead):
    """Weibull hazards: a log scale as the exponential head has it, and a bounded log shape of its
    own (ET.19)."""
    shape_proj: Incomplete
    def __init__(self, vocab_size: int, d_model: int, tied: bool = True) -> None: ...
    def log_shape(self, hidden):
        """Log shape in (-1.5, 1.5)."""
    def forward(self, hidden, embedding=None) -> Hazards: ...

class MixedHead(WeibullHead):
    """Weibull where `free_shape` is True, exponential elsewhere (ET.19; our definition)."""
    def __init__(self, vocab_size: int, d_model: int, tied: bool = True, free_shape=None) -> None: ...
    def log_shape(self, hidden): ...

HEADS: Incomplete

def make_head(name: str, vocab_size: int, d_model: int, tied: bool = True, free_shape=None) -> nn.Module:
    """A head by its name."""
def hazards_of(output) -> Hazards:
    """The output of any head as `Hazards`; a tensor is a log hazard at shape 1."""
def all_future_loss(hazard, batch: AllFutureBatch) -> Loss:
    """Sum over people and open causes of cumulative hazards, minus log hazards of the struck ones,
    per event."""
