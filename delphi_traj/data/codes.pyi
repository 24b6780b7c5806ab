import numpy as np
from _typeshed import Incomplete
from dataclasses import dataclass

__all__ = ['LIFE', 'KINDS', 'refuse_names', 'Vocab', 'make_vocab', 'write_whole']

LIFE: Incomplete
KINDS: Incomplete

def refuse_names(names, kinds) -> None:
    """Raise `CohortError` unless names and kinds can be a vocabulary."""

@dataclass(frozen=True)
class Vocab:
    """Names, kinds and ids of codes; the id is the position in `names`."""
    names: tuple
    kinds: tuple
    first_occurrence: bool = ...
    def __post_init__(self) -> None: ...
    def __len__(self) -> int: ...
    def id(self, name: str) -> int:
        """Id of the code `name`; an unknown name is an error that lists the nearest names."""
    @property
    def kind_id(self) -> np.ndarray:
        """Position in `KINDS` of each code's kind."""
    def of_kind(self, *kinds: str) -> np.ndarray:
        """True for codes of one of the `kinds`."""
    @property
    def death(self):
        """Id of death, or None where the vocabulary has none."""
    @property
    def no_event(self):
        """Id of the no-event token, or None."""
    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any name, kind, order or the occurrence rule."""
    def difference(self, other: Vocab) -> str:
        """Where two vocabularies part, in words; empty where they are the same."""
    def require(self, found: Vocab):
        """Raise `CohortError` unless people were read with these codes: a model knows codes by position."""
    def save(self, path):
        """Write the vocabulary as CSV with columns name, kind; the occurrence rule stands in the header."""
    @classmethod
    def load(cls, path) -> Vocab:
        """Read what `save` wrote."""

def make_vocab(diseases, lifestyle=(), death: str = 'Death', first_occurrence: bool = True) -> Vocab:
    """A vocabulary of padding, no event, the two sexes, `lifestyle`, `diseases` and `death`, in
    that order."""
def write_whole(path, data):
    """Write `data` (bytes or str) to `path` by way of a temporary file, so that no reader sees half
    of it."""
