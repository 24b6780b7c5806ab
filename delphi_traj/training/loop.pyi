import pandas as pd
from ..data.batches import Batches
from ..data.events import Cohort
from _typeshed import Incomplete
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from torch import nn

__all__ = ['log', 'TrainOptions', 'parameter_groups', 'mean_loss', 'mean_events', 'Objective', 'train_step', 'TrainingRun', 'read_metrics', 'refuse_old_run', 'interrupts_noted', 'train']

log: Incomplete

@dataclass
class TrainOptions:
    """Numbers of a training run."""
    steps: int = ...
    batch_size: int = ...
    learning_rate: float = ...
    warmup: int = ...
    final: float = ...
    weight_decay: float = ...
    beta1: float = ...
    beta2: float = ...
    clip: float = ...
    accumulate: int = ...
    every: float = ...
    max_length: int = ...
    evaluate_every: int = ...
    base_rate: bool = ...
    mixed_precision: str = ...
    device: str = ...
    seed: int = ...
    def __post_init__(self) -> None: ...
    def rate_at(self, step: int) -> float:
        """Learning rate of `step`: linear warm-up, then a half cosine down to `final`."""

def parameter_groups(model: nn.Module, weight_decay: float) -> list:
    """Two groups for AdamW: projection matrices, which decay, and all the rest, which do not."""
def mean_loss(model: nn.Module, batches, loss_of=None) -> dict:
    """A loss over all batches in eval mode, per event."""
def mean_events(batches: Batches, most: int = 64) -> float:
    """Mean number of events of the first batches, by which a training step divides."""

class Objective(nn.Module):
    """A module whose forward is the model's loss, so that wrappers of `accelerate` see the whole
    step."""
    model: Incomplete
    def __init__(self, model: nn.Module) -> None: ...
    def forward(self, batch): ...

def train_step(accelerator, objective, optimiser, batches, step, options, per=None) -> tuple:
    """One optimiser step over `options.accumulate` batches of this process; returns the sum of
    losses, the number of events, and whether the gradient was clipped."""

class TrainingRun:
    """A run between two steps, as `train` drives it; its arguments are those of `train`."""
    accelerator: Incomplete
    out: Incomplete
    batches: Incomplete
    evaluate: Incomplete
    seen: Incomplete
    def __init__(self, model, vocab, training, tuning, options, out, resume: bool = False, evaluate=None, on_row=None) -> None: ...
    def advance(self) -> bool:
        """One step; every `evaluate_every` steps, and at the end, evaluate and save."""
    best: Incomplete
    def measure(self) -> None:
        """Evaluate, write a metrics line, save the last and, if it is, the best checkpoint."""
    def save(self, is_best: bool = False, **more) -> None:
        """Write out/last with the training state and, if it is the best so far, out/best; each is
    swapped in whole."""
    def agreed(self, asked: bool) -> bool:
        """Was any process of this run asked to stop?"""
    def interrupt(self) -> None:
        """Save the last step, unless it is saved, and raise KeyboardInterrupt."""
    def now(self) -> dict:
        """Loss per event of the last steps and the best tuning loss, for a bar."""
    def finish(self) -> pd.DataFrame:
        """The evaluations as a table; the model is left in eval mode."""

def read_metrics(path) -> pd.DataFrame:
    """A metrics file as a table, nested names joined by dots."""
def refuse_old_run(out, resume) -> None:
    """A run is never overwritten: raises ValueError where `out` holds one, unless it is continued."""
@contextmanager
def interrupts_noted() -> Generator[Incomplete]:
    """A list to which the first Ctrl-C is added; a second one raises KeyboardInterrupt at once.

    Only where Ctrl-C would raise it anyway: in the main thread, without another handler."""
def train(model, vocab, training: Cohort, tuning: Cohort, options: TrainOptions, out=None, resume: bool = False, evaluate=None, on_row=None, progress: bool = True) -> pd.DataFrame:
    """Train `model` in place; the best and the last checkpoint, and the metrics, go to `out`.
    On Ctrl-C the step is finished and saved in out/last before KeyboardInterrupt is raised."""
