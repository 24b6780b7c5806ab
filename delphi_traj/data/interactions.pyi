import numpy as np
import pandas as pd
from _typeshed import Incomplete
from dataclasses import dataclass, field as default

__all__ = ['InteractionError', 'FIELD_KINDS', 'Field', 'column_of', 'numbers_of', 'Interactions', 'encode_like', 'encode', 'split_by_seed', 'split_by_time', 'split_by_user']

class InteractionError(ValueError):
    """A table that cannot be trusted: says the field, the row, what was found, what was expected,
    and what to do."""

FIELD_KINDS: Incomplete

@dataclass(frozen=True)
class Field:
    """One column that a ranker reads, with its domain (UM.4)."""
    name: str
    kind: str = ...
    domain: str = ...
    size: int = ...
    def __post_init__(self) -> None: ...

def column_of(frame: pd.DataFrame, name, what: str = 'field') -> pd.Series:
    """The column of the frame, or an error that says which there are."""
def numbers_of(frame: pd.DataFrame, name, what: str = 'field') -> np.ndarray:
    """A column as numbers, NaN where missing; refuses dates, infinities and text that is no number."""

@dataclass
class Interactions:
    """Rows of ids and numbers with a label: what a ranker reads."""
    fields: tuple
    categorical: np.ndarray
    dense: np.ndarray
    label: np.ndarray
    user: np.ndarray = ...
    time: np.ndarray = ...
    vocabularies: dict = default(default_factory=dict, repr=False)
    scales: dict = default(default_factory=dict, repr=False)
    report: pd.DataFrame = default(default=None, repr=False)
    def __len__(self) -> int: ...
    def __post_init__(self) -> None: ...
    def __getitem__(self, rows) -> Interactions:
        """The rows asked for, with the same fields and maps."""
    def decode(self, name) -> np.ndarray:
        """The values of a categorical field, None where the id is 0."""

def encode_like(data: Interactions, frame: pd.DataFrame, label, user=None, time=None) -> Interactions:
    """Rows of another frame with the maps of `data`; what they do not know is id 0, and counted as
    unseen."""
def encode(frame: pd.DataFrame, fields, label, user=None, time=None, train=None, min_count: int = 1) -> Interactions:
    """Ids and standardised numbers, fitted on the training rows only."""
def split_by_seed(n, fractions=(0.8, 0.1, 0.1), seed: int = 2024) -> tuple:
    """Rows in the random order of `RandomState(seed)`, cut at the fractions."""
def split_by_time(time, fractions=(0.8, 0.1, 0.1)) -> tuple:
    """Every row of a part before every row of the next; rows of one time stay together."""
def split_by_user(user, fractions=(0.8, 0.1, 0.1), seed: int = 0) -> tuple:
    """All rows of a user in one part, by a hash of the user."""
