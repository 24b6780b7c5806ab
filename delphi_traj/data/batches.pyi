from .codes import Vocab
from .events import Cohort
from _typeshed import Incomplete
from dataclasses import dataclass
from torch import Tensor

__all__ = ['PURPOSES', 'Batch', 'DelphiBatch', 'CompetingBatch', 'LandmarkBatch', 'AllFutureBatch', 'OBJECTIVES', 'collate', 'years_kept', 'collate_landmark', 'Batches']

PURPOSES: Incomplete

@dataclass
class Batch:
    """What a model reads. Ages in days (float32); `valid` True = a token, False = padding."""
    token: Tensor
    age: Tensor
    sex: Tensor
    valid: Tensor
    clock: Tensor = ...
    had: Tensor = ...
    made_for: str = ...
    vocab: Vocab = ...
    def __len__(self) -> int: ...
    def to(self, device, non_blocking: bool = False):
        """The same batch with its tensors on a device."""
    def require(self, *purposes: str, vocab: Vocab = None):
        """Refuse a batch made for something else or with other codes; one made by hand says nothing."""
    def asked_at(self, age: Tensor) -> LandmarkBatch:
        """The same inputs with a landmark for each person."""

@dataclass(kw_only=True)
class DelphiBatch(Batch):
    """Objective `delphi`: what follows each position."""
    target: Tensor
    target_age: Tensor

@dataclass(kw_only=True)
class CompetingBatch(Batch):
    """Objective `competing`: who predicts, what counts and who pays."""
    reader: Tensor
    counted: Tensor
    exposure: Tensor

@dataclass(kw_only=True)
class LandmarkBatch(Batch):
    """Inputs with the age from which a model looks."""
    query_age: Tensor

@dataclass(kw_only=True)
class AllFutureBatch(LandmarkBatch):
    """Objective `all_future`: what becomes of every cause after the landmark."""
    weight: Tensor
    future_open: Tensor
    future_struck: Tensor
    future_years: Tensor

OBJECTIVES: Incomplete

def collate(cohort: Cohort, objective: str = 'competing', no_events: str = 'regular', every: float = 5.0, seed: int = 0, epoch: int = 0, max_length=None, landmark=None) -> Batch:
    """People as the `Batch` of an objective."""
def years_kept(cohort: Cohort, max_length: int, every: float = 5.0) -> tuple:
    """Under `competing`: the share of years under observation that is paid for, and of people who
    pay for none."""
def collate_landmark(cohort: Cohort, landmark, every: float = 5.0, max_length=None) -> Batch:
    """Inputs that end at the landmark: events at or before it, regular no-event tokens, one on the
    day itself."""

class Batches:
    """Batches by step number; `batches[step]` is the same batch whenever and wherever it is asked
    for."""
    def __init__(self, cohort: Cohort, batch_size: int = 128, objective: str = 'competing', training: bool = True, every: float = 5.0, seed: int = 0, max_length=None) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, step): ...
    def order(self, epoch: int) -> list:
        """People of each batch of an epoch: shuffled, bucketed by length in pools of 16 batches."""
