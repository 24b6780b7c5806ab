import numpy as np
from ..data.events import Cohort
from dataclasses import dataclass

__all__ = ['N_AGES', 'lived', 'lexis', 'age_sex_features', 'AgeSexBaseline']

N_AGES: int

def lived(years, group, n_group: int) -> np.ndarray:
    """Years lived in each year of life from birth to age `years`, summed by group."""
def lexis(cohort: Cohort):
    """Events and years at risk inside the windows by sex (female, male, unknown), year of life and
    code."""
def age_sex_features(years, sex) -> np.ndarray:
    """1, decades from 50, their square, sex (unknown: a half), sex x decades."""

@dataclass
class AgeSexBaseline:
    """Hazards from age and sex alone, one Poisson regression a cause."""
    coefficient: np.ndarray
    first_occurrence: bool = ...
    @classmethod
    def fit(cls, cohort: Cohort):
        """Fit on everybody's person-years."""
    def log_hazard(self, age_days, sex) -> np.ndarray:
        """Log hazard per year of every cause at an age."""
    def nll(self, cohort: Cohort, chunk: int = 1000) -> float:
        """Negative log-likelihood per event inside the windows, defined as in `competing_loss` and
    `oracle_nll`."""
