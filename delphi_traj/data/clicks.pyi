import numpy as np
import pandas as pd
from .interactions import Interactions
from _typeshed import Incomplete
from dataclasses import dataclass

__all__ = ['SIMULATED_FIELDS', 'SIMULATED_SIZES', 'SIMULATED_MAINS', 'SIMULATED_PAIRS', 'centred', 'deviation', 'interaction_table', 'Simulation', 'simulate_interactions', 'expected_auc']

SIMULATED_FIELDS: Incomplete
SIMULATED_SIZES: Incomplete
SIMULATED_MAINS: Incomplete
SIMULATED_PAIRS: Incomplete

def centred(table, weights) -> np.ndarray:
    """The table less its weighted mean along every axis: what the fields say only together."""
def deviation(table, weights) -> float:
    """Weighted root mean square: the standard deviation of a centred table."""
def interaction_table(rng, weights, rank, size) -> np.ndarray:
    """A centred table of given rank over one to three fields of these popularities, with deviation
    `size`."""

@dataclass
class Simulation:
    """A simulated table with all that is true about it."""
    frame: pd.DataFrame
    fields: tuple
    probability: np.ndarray
    terms: pd.DataFrame
    intercept: float
    pairs: pd.DataFrame
    tables: dict
    def __len__(self) -> int: ...
    def encode(self, train=None, min_count: int = 1) -> Interactions:
        """The table as ids and numbers, fitted on the training rows."""
    @property
    def interactions(self) -> Interactions:
        """All rows, fitted on all rows."""
    def best_auc(self, rows=...) -> float:
        """AUC of the true logit on these rows: on average no score that reads the fields does better."""
    def auc_without(self, names, rows=...) -> float:
        """AUC of the true logit less some of its terms."""

def simulate_interactions(n: int = 20000, seed: int = 0, *, sizes=None, mains=None, pairs=None, power: float = 0.8, rate: float = 0.3) -> Simulation:
    """Users meet items in a context and click or not. Same seed, same world; a longer table begins
    with the shorter one."""
def expected_auc(probability) -> float:
    """Expected wins over expected pairs of labels drawn from these probabilities (a ratio, the mean
    AUC of many rows)."""
