import torch
from ..data.batches import Batch
from ..data.codes import Vocab
from ..training.checkpoints import Checkpoint
from _typeshed import Incomplete
from dataclasses import dataclass
from pathlib import Path
from torch import nn

__all__ = ['log', 'INPUTS', 'OUTPUTS', 'LandmarkProgram', 'program_inputs', 'traced', 'FILES', 'PART', 'sha256', 'describe', 'export_program', 'example_inputs', 'check_same', 'Program', 'load_program', 'program_gap', 'check_program']

log: Incomplete
INPUTS: Incomplete
OUTPUTS: Incomplete

class LandmarkProgram(nn.Module):
    """A sequence model as a function of seven tensors; mixing matrices are baked in."""
    model: Incomplete
    def __init__(self, model) -> None: ...
    def forward(self, token, age, sex, valid, had, clock, query_age): ...

def program_inputs(batch: Batch, n_code: int) -> tuple:
    """The seven tensors of a batch."""
def traced(model, example) -> torch.export.ExportedProgram:
    """The model as a graph for any number of people and events."""

FILES: Incomplete
PART: str

def sha256(path) -> str:
    """Hash of a file."""
def describe(stored: Checkpoint, hash_of_program: str) -> dict:
    """What program.json says."""
def export_program(stored: Checkpoint, out) -> Path:
    """Write a checkpoint as a `torch.export` program with its vocabulary; the program is compared
    with the model first."""
def example_inputs(vocab: Vocab, people: int = 3, events: int = 5, seed: int = 0) -> tuple:
    """People with random codes, for tracing and checking."""
def check_same(program, model, vocab: Vocab, tolerance: float = 0.0001):
    """Refuse a program whose log hazards differ from the model's for other numbers of people and
    events."""

@dataclass
class Program:
    """An exported model: `hazards` answers for a batch, in the terms of `vocab`."""
    module: nn.Module
    vocab: Vocab
    facts: dict
    path: Path
    def hazards(self, batch: Batch) -> tuple:
        """Hazards at the landmark, causes at risk and the clock, as `EventTrajectory.landmark` returns
    them."""

def load_program(path, vocab: Vocab = None) -> Program:
    """Read an export; raises `CheckpointError` unless its three files belong together."""
def program_gap(program, model, cohort, most: int = 200) -> float:
    """Largest difference of log hazards between a program and the model, where observation starts."""
def check_program(out, program, model, cohort, data) -> None:
    """Say how far a program is from its model; refuse one that is too far."""
