from ..data.batches import Batch
from ..data.codes import Vocab
from _typeshed import Incomplete
from dataclasses import dataclass
from delphi_traj.models.heads import Hazards, Loss
from torch import Tensor, nn

__all__ = ['require_that', 'require_whole', 'SequenceModel', 'Recalibration', 'require_events', 'last_position', 'landmark_age', 'Prediction', 'NO_RATES', 'Histories', 'Memory']

def require_that(ok: bool, found: str, expected: str):
    """A wrong number or name is a ValueError that says what was found and what was expected."""
def require_whole(config, *names: str):
    """Refuse fields that are no positive whole numbers."""

class SequenceModel(nn.Module):
    """What a model answers once it has states. A family brings `token_embedding`, `sex_embedding`,
    `head` and `forward`, from a batch to states."""
    recalibration: Incomplete
    def __init__(self, config, vocab: Vocab = None) -> None: ...
    def of_kind(self, *kinds) -> Tensor:
        """True for codes of one of the kinds."""
    def parameter_count(self, trainable: bool = False) -> int:
        """Number of parameters; buffers are none."""
    def sex_context(self, sex: Tensor) -> Tensor:
        """The row of a sex; the mean of both where it is unknown (ET.3)."""
    def hazards(self, hidden: Tensor) -> Hazards:
        """Hazards of every code from hidden states, as trained, whatever the head (ET.18, ET.19)."""
    def log_hazard(self, hidden: Tensor) -> Tensor:
        """Log hazard of every code; exponential head only, as others change with time."""
    def rates(self, hidden: Tensor, sex: Tensor, age: Tensor) -> Hazards:
        """Hazards of people of this sex at this age: as trained, times the factors of a recalibration."""
    def nll(self, batch: Batch, validation: bool = False) -> Loss:
        """The configured objective on a batch made for it."""
    def state_at(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The state that answers for each person, and the age at which it stands."""
    def hazards_at(self, batch: Batch) -> Hazards:
        """Hazards at every person's last position, or at the landmark."""
    def is_dead(self, batch: Batch) -> Tensor:
        """True for rows in which death is among the inputs: nothing follows it."""
    def open_causes(self, batch: Batch) -> Tensor:
        """Causes that can still come after the last position, or after the landmark."""
    def landmark(self, batch: Batch) -> tuple[Hazards, Tensor, Tensor]:
        """Hazards at the landmark, the causes at risk there, and the time on the hazards' clock."""
    @property
    def caution(self) -> str:
        """Why hazards and risks of this model are no absolute rates; empty where they are."""
    def require_rest(self) -> None:
        """Refuse a model in training mode."""
    def predict(self, batch: Batch, years: float = None) -> Prediction:
        """Hazards at the landmark, or `years` after it, and what follows in between."""
    def remember(self, batch: Batch) -> Histories:
        """Read histories once, then `look`, `add`, `keep`; in evaluation mode, without gradients."""
    def memory_of(self, batch: Batch) -> Histories:
        """The plain memory; a family with attention has its own."""

class Recalibration(nn.Module):
    """Factors by which rates are multiplied after training, by sex, band of age and code."""
    facts: Incomplete
    def __init__(self, log_factor: Tensor, edges: Tensor, facts: dict = None) -> None: ...
    def forward(self, log_scale: Tensor, sex: Tensor, age: Tensor) -> Tensor:
        """Log hazards with the factors of these people at these ages."""

def require_events(valid: Tensor):
    """Refuse a row that holds nothing, not even the landmark."""
def last_position(valid: Tensor) -> tuple[Tensor, Tensor]:
    """Where the last True of each row stands."""
def landmark_age(batch: Batch) -> Tensor:
    """The age from which a model looks: that of the batch, or else of its last event."""

@dataclass
class Prediction:
    """Per person and code; NaN where the code is no cause or no longer at risk. Hazards per year."""
    hazard: Tensor
    cumulative_hazard: Tensor = ...
    survival: Tensor = ...
    cif_next: Tensor = ...
    caution: str = ...

NO_RATES: str

class Histories:
    """Histories that grow by a position; each look reads them anew, as the definition of a memory."""
    def __init__(self, model, batch: Batch) -> None: ...
    batch: Incomplete
    def keep(self, rows: Tensor):
        """Some of the rows, or rows several times."""
    def add(self, token: Tensor, age: Tensor, valid: Tensor):
        """A position more for every row: int64 [b]; days, [b]; bool [b], False leaves a hole."""
    def look(self, age: Tensor) -> Hazards:
        """Hazards at the last position of every row, or at `age` where a model asks from landmarks."""

class Memory:
    """Histories whose keys and values are kept: a new position costs one position."""
    layers: Incomplete
    def __init__(self, model, batch: Batch, layers: int) -> None: ...
    age: Incomplete
    valid: Incomplete
    def extend(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Ages and flags of all positions, with new ones at the end."""
    state: Incomplete
    when: Incomplete
    def add(self, token: Tensor, age: Tensor, valid: Tensor):
        """A position more for every row: int64 [b]; days, [b]; bool [b], False leaves a hole."""
    def look(self, age: Tensor) -> Hazards:
        """Hazards at the last position of every row, or at `age` where a model asks from landmarks."""
    def keep(self, rows: Tensor):
        """Some of the rows, or rows several times."""
