import numpy as np
import pandas as pd
from ..data.events import Cohort
from dataclasses import dataclass
from delphi_traj.evaluation.risk import Risk

__all__ = ['Futures', 'Plan', 'sample_futures', 'risk_mc']

@dataclass
class Futures:
    """Events after the landmark, ragged: future i of person p is row p n + i."""
    past: Cohort
    landmark: np.ndarray
    years: float
    n: int
    offsets: np.ndarray
    token: np.ndarray
    age: np.ndarray
    ended: np.ndarray
    why: np.ndarray
    repeats: bool = ...
    caution: str = ...
    def __len__(self) -> int: ...
    @property
    def row(self) -> np.ndarray:
        """The future to which each event belongs."""
    @property
    def person(self) -> np.ndarray:
        """Position in `past` of the person to whom each event belongs."""
    @property
    def draw(self) -> np.ndarray:
        """Number of the future among those of its person."""
    def frame(self) -> pd.DataFrame:
        """All events as a table."""
    def ends(self) -> pd.DataFrame:
        """When and how each future ended."""
    @classmethod
    def from_steps(cls, plan: Plan, steps: list, ended: np.ndarray, repeats: bool = False, caution: str = '') -> Futures:
        """Futures from what was drawn, step by step."""
    def cohort(self, draw: int = 0) -> Cohort:
        """The past with one future of each person who has some; death is last."""
    def risk(self) -> Risk:
        """Share of the futures in which each code comes, with its standard error."""

@dataclass
class Plan:
    """Whose futures are drawn, from which day, how far and how many."""
    cohort: Cohort
    landmark: np.ndarray
    years: float
    n: int
    seed: int
    oldest: int
    why = ...
    def __post_init__(self) -> None: ...
    @property
    def rows(self) -> np.ndarray:
        """Rows p n + i of everybody who can be asked."""

def sample_futures(model, cohort: Cohort, landmark, years: float, n: int = 1, seed: int = 0, *, repeats=None, budget: int = 1000, cache: bool = True, no_events: str = 'random', every: float = 5.0, batch_size: int = 256, oldest=..., progress: bool = True) -> Futures:
    """Futures drawn from the model in continuous time, of everybody observed at the landmark."""
def risk_mc(model, cohort: Cohort, landmark, years: float, n: int = 1000, seed: int = 0, codes=None, reduced: bool = True, *, repeats=None, budget: int = 1000, cache: bool = True, no_events: str = 'random', every: float = 5.0, batch_size: int = 256, oldest=..., progress: bool = True) -> Risk:
    """Risk from futures of the model, hazards changing with age and history, with standard error."""
