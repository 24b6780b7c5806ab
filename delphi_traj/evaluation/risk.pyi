import numpy as np
import pandas as pd
import torch
from ..data.batches import Batch
from ..data.codes import Vocab
from ..data.events import Cohort
from ..models.heads import Hazards
from _typeshed import Incomplete
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from torch import Tensor

__all__ = ['REASONS', 'cautioned', 'Risk', 'codes_asked', 'checked_landmarks', 'row_reasons', 'code_reasons', 'at_rest', 'landmark_inputs', 'clock_began', 'float64_device', 'in_float64', 'landmark_hazards', 'next_probability', 'frozen_risk', 'check_model', 'RateWarning', 'caution_of', 'cif_next', 'risk', 'came_within']

REASONS: Incomplete

def cautioned(text: str, found) -> str:
    """What a result says of itself, with its caution below."""

@dataclass
class Risk:
    """A probability for each person and code, or the reason why there is none."""
    value: np.ndarray
    why: np.ndarray
    subject_id: np.ndarray
    landmark: np.ndarray
    years: float
    vocab: Vocab
    standard_error: np.ndarray = ...
    caution: str = ...
    @property
    def reason(self) -> np.ndarray:
        """Why there is no answer; empty where there is one."""
    def frame(self, codes=None) -> pd.DataFrame:
        """A row for each person and code: subject_id, landmark, code, risk, standard_error where
    sampled, reason."""

def codes_asked(vocab: Vocab, codes=None) -> np.ndarray:
    """Ids of the codes in a question."""
def checked_landmarks(cohort: Cohort, landmark, years: float) -> np.ndarray:
    """Landmarks of a question; raises ValueError for what is no age or no horizon."""
def row_reasons(cohort: Cohort, landmark: np.ndarray, oldest: int) -> np.ndarray:
    """What forbids an answer for each person."""
def code_reasons(cohort: Cohort, landmark: np.ndarray, row: np.ndarray, first_occurrence: bool) -> np.ndarray:
    """What forbids an answer for each person and code."""
@contextmanager
def at_rest(model) -> Generator[Incomplete]:
    """The model in eval mode without gradients; the mode of each part is put back afterwards.
    Yields its device."""
def landmark_inputs(objective: str, people: Cohort, landmark, every: float = 5.0) -> Batch:
    """What a model of this objective was trained to read at a landmark: events at or before it."""
def clock_began(model, past: Cohort, landmark: np.ndarray) -> np.ndarray:
    """The day on which the clock of the hazards stood at zero."""
def float64_device(device) -> torch.device:
    """Where float64 can be had: the model's device, or else the CPU."""
def in_float64(hazards: Hazards) -> Hazards:
    """Hazards in float64, where it can be had."""
def landmark_hazards(model, cohort: Cohort, landmark: np.ndarray) -> tuple:
    """Hazards at the landmark from what was known on that day."""
def next_probability(hazards: Hazards, free: Tensor, death: int, years: float, begin: Tensor) -> Tensor:
    """The next event is k and comes within `years`."""
def frozen_risk(hazards: Hazards, free, death, years, begin) -> Tensor:
    """k comes within `years` and before death, with the hazards of the landmark throughout."""
def check_model(model, cohort: Cohort):
    """Refuse a model that needs targets, and a cohort with other codes than the model's."""

class RateWarning(UserWarning):
    """Risks or futures of a model whose hazards are no absolute rates."""

def caution_of(model) -> str:
    """Why the model's numbers are no absolute rates; warned of, and carried by results. Empty where
    they are."""
def cif_next(model, cohort: Cohort, landmark, years: float, batch_size: int = 256, oldest=...) -> Risk:
    """Probability that the next event is k and comes within `years`; every disease competes. It is
    no risk."""
def risk(model, cohort: Cohort, landmark, years: float, batch_size: int = 256, oldest=...) -> Risk:
    """Probability that k comes within `years` and before death, hazards frozen at the landmark."""
def came_within(cohort: Cohort, landmark: np.ndarray, years: float) -> np.ndarray:
    """Codes that were recorded after the landmark and within `years` of it."""
