import numpy as np
import pandas as pd
from .codes import Vocab
from .events import Cohort
from _typeshed import Incomplete
from dataclasses import dataclass

__all__ = ['FAMILIES', 'FEMALE_ONLY', 'MALE_ONLY', 'DISEASES', 'simulator_vocab', 'gompertz_cumulative', 'gompertz_draw', 'World', 'make_world', 'simulate', 'Intervals', 'intervals', 'expected_events', 'refitted', 'events_by_causes', 'oracle_nll']

FAMILIES: Incomplete
FEMALE_ONLY: Incomplete
MALE_ONLY: Incomplete
DISEASES: Incomplete

def simulator_vocab() -> Vocab:
    """The vocabulary of every simulated cohort: specials, 44 diseases, death."""
def gompertz_cumulative(log_rate, slope, begin, end):
    """Cumulative hazard of a Gompertz law between two ages."""
def gompertz_draw(log_rate, slope, begin, exponential):
    """Age of the first event after age `begin`."""

@dataclass
class World:
    """Everything that determines the hazards; k runs over the diseases, then death."""
    log_rate: np.ndarray
    slope: np.ndarray
    by_sex: np.ndarray
    effect: np.ndarray
    together: np.ndarray
    cap: float = ...
    def own_log_hazard(self, sex, had) -> np.ndarray:
        """Log own hazards at age 50, given history."""
    def own_cumulative(self, begin, end, sex, had) -> np.ndarray:
        """Cumulative own hazards while the history stays `had`."""
    def hazard(self, age, sex, had) -> np.ndarray:
        """True marginal hazard of every disease and of death."""
    def cumulative(self, begin, end, sex, had) -> np.ndarray:
        """True marginal cumulative hazard from age `begin` to `end` while the history stays `had`."""
    def log_hazard_at(self, cohort: Cohort, landmark: np.ndarray) -> np.ndarray:
        """True log hazard of each person at the age `landmark`, from codes at or before it; -inf where
    not at risk."""

def make_world(seed: int = 2026) -> World:
    """The world of `seed`: 44 diseases and death."""
def simulate(n, seed: int = 0, world: World = None) -> Cohort:
    """A cohort of `n` people with known hazards; the same seed gives the same people."""

@dataclass
class Intervals:
    """Each person's window cut at every day with an event; row i covers the days (begin, end]."""
    person: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    had: np.ndarray
    event: np.ndarray

def intervals(cohort: Cohort) -> Intervals:
    """Cut every window (start, end] at the days of its events."""
def expected_events(world: World, cohort: Cohort) -> pd.DataFrame:
    """Events inside the windows against the integral of the true hazards."""
def refitted(world: World, cohort: Cohort, rounds: int = 6) -> World:
    """The same world with rates under which every code is expected as often as it is observed."""
def events_by_causes(world: World, cohort: Cohort, causes, most: int = 4) -> pd.DataFrame:
    """Observed and expected events of all codes, by how many of a code's causes its owner has had."""
def oracle_nll(world: World, cohort: Cohort) -> float:
    """Negative log-likelihood per event of the true marginal hazards, inside the windows."""
