import numpy as np
import pandas as pd
from .codes import Vocab
from _typeshed import Incomplete
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ['DAYS_PER_YEAR', 'days_of_years', 'years_of_days', 'Cohort', 'MAX_AGE', 'FollowUpWarning', 'SEXES', 'count_bounds', 'example_life', 'subject_hash', 'FRACTIONS', 'join']

DAYS_PER_YEAR: float

def days_of_years(years):
    """Whole days of so many years, rounded down: the shortest that so many calendar years can be."""
def years_of_days(days):
    """Completed years: the most whose `days_of_years` have passed."""

@dataclass(eq=False)
class Cohort:
    """People's coded events with ages, and the window in which each was observed."""
    vocab: Vocab
    token: np.ndarray
    age: np.ndarray
    offsets: np.ndarray
    subjects: pd.DataFrame
    report: dict = field(default_factory=dict)
    source_row: np.ndarray = ...
    def __len__(self) -> int: ...
    @property
    def lengths(self) -> np.ndarray:
        """Number of events of each person."""
    @property
    def person(self) -> np.ndarray:
        """Position in `subjects` of the person to whom each event belongs."""
    def __eq__(self, other): ...
    def frame(self) -> pd.DataFrame:
        """All events as a table, ages in days, codes by name."""
    @classmethod
    def from_rows(cls, vocab: Vocab, subject, age, token, subjects: pd.DataFrame = None, source: str = 'rows', sex_tokens: bool = True, row=None) -> Cohort:
        """A cohort from rows in any order; raises `CohortError` at the first row that cannot be trusted."""
    def write_frame(self, folder) -> Path:
        """Write events.csv, subjects.csv and vocab.csv into `folder`."""
    def __getitem__(self, which) -> Cohort:
        """The people at positions `which`, with all their events."""
    def split(self, fractions=..., seed: int = 0) -> dict:
        """Parts by a hash of the subject: a person is in one part, always the same."""

MAX_AGE: int

class FollowUpWarning(UserWarning):
    """A start or an end of observation was not given and was taken from the first or last record."""

SEXES: Incomplete

def count_bounds(report: dict, source, starts: int, ends: int):
    """Note in `report` that bounds of observation were guessed, and warn of it; nothing where none
    were."""
def example_life() -> Cohort:
    """The running example: one made-up woman, her sex and seven codes, observed from age 40 to her
    death at 71.9."""
def subject_hash(subject_id, seed: int = 0) -> np.ndarray:
    """A number in [0, 1) for each subject id that depends on nothing but the id and `seed`
    (SplitMix64)."""

FRACTIONS: Incomplete

def join(cohorts, shared: str = 'error') -> Cohort:
    """One cohort from several; people in more than one are refused, joined or dropped, and counted."""
