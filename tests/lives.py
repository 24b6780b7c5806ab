"""Random lives for Hypothesis, and tiny models whose every parameter is drawn anew."""

from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from hypothesis import settings
from hypothesis import strategies as st

from delphi_traj.data.batches import OBJECTIVES
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.events import SEXES, Cohort
from delphi_traj.layers.stages import MIXERS
from delphi_traj.models.delphi import Delphi, DelphiConfig

TIME_MODES = ('absolute', 'relative')
COMBINATIONS = [
    (m, t, o)
    for m in sorted(MIXERS)
    for t in TIME_MODES
    for o in OBJECTIVES
    if o in ('delphi', 'competing')
]
DISEASES = ['Ash', 'Beech', 'Cedar', 'Dogwood', 'Elm', 'Fir']
VOCAB = make_vocab(DISEASES, lifestyle=['Smoker'])
RECURRENT = make_vocab(DISEASES, lifestyle=['Smoker'], first_occurrence=False)


def examples(n):
    "Hypothesis settings with `n` examples, ten times as many under --slow."
    return settings(max_examples=n * settings.default.max_examples // 10)


@st.composite
def a_life(draw, vocab=VOCAB, least=0):
    """One person: (rows of (age in days, model id), sex, start, end). Few visit days, so that days
    are shared."""
    codes = np.flatnonzero(vocab.of_kind('lifestyle', 'disease')).tolist()
    days = draw(st.lists(st.integers(0, 30_000), min_size=1, max_size=4))
    # half of them have as little as may be
    n = draw(st.integers(least, 6)) if draw(st.booleans()) else least
    had = draw(
        st.lists(st.sampled_from(codes), min_size=n, max_size=n, unique=vocab.first_occurrence)
    )
    rows = [(draw(st.sampled_from(days)), code) for code in had]
    rows = list(dict.fromkeys(rows))  # a code at most once a day
    start = draw(st.integers(0, 30_000))
    end = max([start] + [age for age, _ in rows]) + draw(st.sampled_from([0, 1, 400, 4_000, 9_000]))
    if draw(st.booleans()):
        rows.append((end, vocab.death))  # with no other row: death only
    return rows, draw(st.sampled_from(SEXES)), start, end


@st.composite
def cohorts(draw, vocab=VOCAB, people=(1, 4), least=0):
    """A cohort of random lives: ties, one event, no history, death only, unknown sex, events
    outside the window."""
    everyone = draw(st.lists(a_life(vocab, least), min_size=people[0], max_size=people[1]))
    return as_cohort(vocab, *table_of(everyone))


def table_of(everyone):
    """Rows (subject, age, token) and subject table of lives as `a_life` draws them; subjects count
    from 1."""
    rows = [(i + 1, age, token) for i, life in enumerate(everyone) for age, token in life[0]]
    table = pd.DataFrame(
        [(i + 1, *life[1:]) for i, life in enumerate(everyone)],
        columns=['subject_id', 'sex', 'start', 'end'],
    )
    return np.array(rows, dtype=np.int64).reshape(-1, 3), table


def as_cohort(vocab, rows, table):
    "Cohort of rows (subject, age, token) and a subject table."
    return Cohort.from_rows(vocab, *rows.T, table)


def tiny_config(
    mixer='traj_mixer_v5', time_mode='relative', objective='competing', vocab=VOCAB, **options
):
    "A configuration small enough for hundreds of forward passes."
    return DelphiConfig(
        len(vocab),
        d_model=24,
        n_head=4,
        n_layer=2,
        mixer=mixer,
        time_mode=time_mode,
        objective=objective,
        first_occurrence=vocab.first_occurrence,
        **options,
    )


@lru_cache(maxsize=None)
def _built(mixer, time_mode, objective, dtype, options):
    return Delphi(tiny_config(mixer, time_mode, objective, **dict(options)), VOCAB).to(dtype)


def tiny_model(
    mixer='traj_mixer_v5',
    time_mode='relative',
    objective='competing',
    seed=0,
    dtype=torch.float64,
    **options,
):
    "A tiny model in evaluation mode after `redraw`; the same object for the same architecture."
    return redraw(_built(mixer, time_mode, objective, dtype, tuple(options.items())).eval(), seed)


@torch.no_grad()
def redraw(model, seed=0, std=0.3):
    """Every parameter from N(0, .3): at the frozen initial values updates are near zero and a test
    would show nothing."""
    rng = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64) * std)
        p.grad = None
    return model


# tensors of a batch that have no axis of positions
FUTURE = ('weight', 'future_open', 'future_struck', 'future_years')
BY_PERSON = ('sex', 'had', 'query_age', *FUTURE)


def padded(batch, more):
    "The batch with `more` positions of padding on the right."

    def widen(t):
        return torch.nn.functional.pad(t, (0, more))

    grids = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name not in BY_PERSON}
    return replace(batch, **{n: widen(t) for n, t in grids.items() if torch.is_tensor(t)})


def copied(batch):
    "The batch with tensors of its own, to be written into."
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{n: t.clone() for n, t in tensors.items() if torch.is_tensor(t)})
