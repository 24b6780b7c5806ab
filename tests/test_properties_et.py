"""What the event-trajectory model must do in both modes and both time modes, for any lives, after
redrawing all parameters."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from delphi_traj.data.batches import collate
from lives import VOCAB, as_cohort, cohorts, copied, examples, padded, redraw
from test_ledger_et import MODES, a_model, every_mode, small

seeds = st.integers(0, 2**31 - 1)
TRAINED = [
    ('next_token', 'competing', 'exponential'),
    ('next_token', 'competing', 'mixed'),
    ('next_token', 'delphi', 'exponential'),
    ('all_future', 'all_future', 'exponential'),
    ('all_future', 'all_future', 'weibull'),
]
every_objective = pytest.mark.parametrize(
    'mode, objective, head', TRAINED, ids=map('-'.join, TRAINED)
)


@st.composite
def batches(draw, people=(1, 4), least=0):
    """Inputs of random lives, with landmarks anywhere; without no-event tokens some rows are
    padding only."""
    batch = collate(
        draw(cohorts(people=people, least=least)),
        None,
        draw(st.sampled_from(['regular', None])),
        every=15.0,
    )
    landmark = draw(st.lists(st.integers(0, 40_000), min_size=len(batch), max_size=len(batch)))
    known = [
        draw(st.sampled_from([float(day), *ages]))
        for day, ages in zip(landmark, batch.age.tolist(), strict=True)
    ]  # half of them on a day of an event
    return replace(batch, clock=None).asked_at(torch.tensor(known)[:, None])


def person(batch, i):
    "Row i alone, without padding."
    n = max(int(batch.valid[i].sum()), 1)
    return replace(
        batch,
        sex=batch.sex[[i]],
        query_age=batch.query_age[[i]],
        **{f: getattr(batch, f)[[i], :n] for f in ('token', 'age', 'valid')},
    )


def redrawn(batch, after, floor, seed):
    """The batch with another life where `after` [b l]: tokens, ages of at least `floor` [b 1], and
    what is valid."""
    rng = torch.Generator().manual_seed(seed)
    age = floor + torch.randint(0, 9_000, batch.age.shape, generator=rng)
    token = torch.randint(0, len(VOCAB), batch.token.shape, generator=rng)
    valid = torch.rand(batch.age.shape, generator=rng) < 0.5
    return replace(
        batch,
        token=torch.where(after, token, batch.token),
        age=torch.where(after, age, batch.age),
        valid=torch.where(after, valid, batch.valid),
    )


@torch.no_grad()
def answers(model, batch):
    "Hidden states and log scales of all codes, side by side, with an axis for the queries."
    hidden = model(batch)
    both = torch.cat([hidden, model.hazards(hidden).log_scale], -1)
    return both if model.config.mode == 'next_token' else both[:, None]


@every_mode
@given(batch=batches(), seed=seeds, data=st.data())
@examples(12)
def test_future_moves_nothing(mode, time_mode, batch, seed, data):
    """Another future, of later ages or of the same day and later places, leaves everything up to
    now as it is, bit for bit."""
    model, l = a_model(mode, time_mode, seed=seed), batch.token.shape[1]
    now = data.draw(st.integers(0, l - 1)) if mode == 'next_token' else 0
    if mode == 'next_token':
        after = (torch.arange(l) > now).expand_as(batch.age)
        floor = batch.age[:, : now + 1].amax(1, keepdim=True)
    else:
        after, floor = (batch.age > batch.query_age) | ~batch.valid, batch.query_age + 1
    here, there = (
        answers(model, b)[:, : now + 1] for b in (batch, redrawn(batch, after, floor, seed))
    )
    assert torch.equal(here, there) and here.isfinite().all()


@every_mode
@given(batch=batches(least=3), seed=seeds, data=st.data())
@examples(12)
def test_past_is_read(mode, time_mode, batch, seed, data):
    """Another code, age or sex in the past moves what comes later; under all_future another
    landmark does too."""
    model, i = a_model(mode, time_mode, seed=seed), data.draw(st.integers(0, len(batch) - 1))
    n = int(batch.valid[i].sum())
    assume(n >= 2)
    last, past = (
        (n - 1, data.draw(st.integers(0, n - 2)))
        if mode == 'next_token'
        else (0, data.draw(st.integers(0, n - 1)))
    )
    batch.query_age[i] = batch.age[i].max() + 1
    token, age, sex, later = (copied(batch) for _ in range(4))
    token.token[i, past] = 5 + (token.token[i, past] - 4) % 6  # another disease
    age.age[i, past] += 700 if age.age[i, past] < 700 else -700
    sex.sex[i] = (sex.sex[i] + 1) % 3
    later.query_age[i] += 700
    before = answers(model, batch)[i, last]
    for changed in (token, age, sex) + (later,) * (mode == 'all_future'):
        assert (answers(model, changed)[i, last] - before).abs().max() > 1e-9


@every_mode
@pytest.mark.parametrize(
    'dtype, tolerance', [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=['float64', 'float32']
)
@given(batch=batches(people=(2, 4)), seed=seeds, more=st.integers(1, 20))
@examples(6)
def test_batch_mates_and_padding(mode, time_mode, dtype, tolerance, batch, seed, more):
    "States and hazards are the same alone, among others and with more padding."
    model = a_model(mode, time_mode, seed=seed, dtype=dtype)
    among, wide = answers(model, batch), answers(model, padded(batch, more))
    real = batch.valid[..., None] if mode == 'next_token' else torch.tensor(True)
    scale = (among * real).abs().max()
    assert ((wide[:, : among.shape[1]] - among) * real).abs().max() <= tolerance * scale
    for i in range(len(batch)):
        n = int(batch.valid[i].sum()) if mode == 'next_token' else 1
        if n:
            assert (
                answers(model, person(batch, i))[0, :n] - among[i, :n]
            ).abs().max() <= tolerance * scale


@every_mode
def test_dropout_in_training_only(mode, time_mode, few_people):
    """Evaluation gives the same bits twice with every dropout at a half, training does not; each
    dropout alone acts, none leaves it exact."""
    batch = collate(few_people, small(mode).objective)
    for dropout in (
        dict(dropout=0.5, token_dropout=0.5),
        dict(dropout=0.5, token_dropout=0.0),
        dict(dropout=0.0, token_dropout=0.5),
        dict(dropout=0.0),
    ):
        model = a_model(mode, time_mode, dtype=torch.float32, vocab=few_people.vocab, **dropout)
        with torch.no_grad():
            assert torch.equal(model(batch), model(batch)) and torch.equal(
                model.nll(batch).total, model.nll(batch).total
            )
            model.train()
            torch.manual_seed(0)
            assert torch.equal(model(batch), model(batch)) == (not any(dropout.values()))
        with pytest.raises(RuntimeError, match='training'):
            model.predict(batch)


FEW = as_cohort(
    VOCAB,
    np.array([[2, 9_000, 5], [3, 9_000, VOCAB.death]]),  # no history, one event, death only
    pd.DataFrame({'subject_id': [1, 2, 3], 'start': [0, 0, 0], 'end': [20_000, 20_000, 9_000]}),
)


@every_objective
@pytest.mark.parametrize('time_mode', ['absolute', 'relative'])
def test_little_is_enough(mode, objective, head, time_mode):
    """No history, one event and death only have finite states, losses and gradients, together and
    alone; under all_future nothing is read."""
    model = a_model(mode, time_mode, objective=objective, head=head)
    for people in (FEW, FEW[0], FEW[1], FEW[2]):
        batch = collate(people, objective, None)
        loss = redraw(model).nll(batch)
        loss.total.backward()
        assert (
            loss.total.isfinite()
            and model(batch).isfinite().all()
            and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        )
    if mode == 'all_future':
        hidden, rounds = model(
            collate(FEW, objective, landmark=[100, 200, 300]), return_rounds=True
        )
        # queries still know their age
        assert not rounds.weight.any() and (hidden[0] - hidden[1]).abs().max() > 1e-9


@every_mode
def test_no_history_is_refused_without_a_landmark(mode, time_mode):
    """A row of padding has no last position and no last age; given a landmark, all_future predicts
    for it."""
    model, empty = a_model(mode, time_mode), collate(FEW, None, None)
    by_hand = replace(empty, made_for=None)
    with pytest.raises(ValueError, match='row 0'):
        model.predict(by_hand)
    if mode == 'all_future':
        with pytest.raises(ValueError, match="made for 'inputs'"):
            model.predict(empty)
    if mode == 'all_future':
        assert (
            model.predict(empty.asked_at(torch.full((3, 1), 9_500.0)))
            .hazard[0, 5:]
            .isfinite()
            .all()
        )


@every_mode
def test_bfloat16(mode, time_mode, few_people):
    """Under bfloat16 autocast states stay within 3% of their range, losses within 1%; the clock
    stays float32, so one day counts."""
    model = a_model(mode, time_mode, dtype=torch.float32, vocab=few_people.vocab)
    batch = collate(few_people, model.config.objective, landmark=None)
    later = replace(batch, age=batch.age + 1)
    with torch.no_grad():
        exact, loss, embedded = model(batch), model.nll(batch), model.embed(batch)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        rough = model(batch)
        rough_loss = model.nll(batch)
        rough_embedded = model.embed(batch)
        moved = model.embed(later)
        if time_mode == 'relative':
            angle = (batch.age / 365.25)[..., None] * model.rotation.frequency
            assert all(map(torch.equal, model.rotation(batch.age), (angle.cos(), angle.sin())))
            assert model.rbf(batch.age, batch.age).dtype == torch.float32
    real = batch.valid if mode == 'next_token' else torch.ones(len(batch)).bool()
    # there steps of bfloat16 are 128 days
    assert batch.age.dtype == torch.float32 and batch.age.max() > 20_000
    assert (rough - exact)[real].abs().max() < 0.03 * exact.abs().max()
    assert rough_loss.total.dtype == torch.float32 and torch.isclose(
        rough_loss.total, loss.total, rtol=0.01
    )
    assert (rough_embedded - embedded).abs().max() < 0.03 and rough_embedded.dtype == torch.float32
    assert ((moved - rough_embedded).abs().amax(-1) > 1e-3)[batch.valid].all()


@every_objective
@pytest.mark.parametrize('time_mode', ['absolute', 'relative'])
@given(cohort=cohorts(), seed=seeds, no_events=st.sampled_from(['regular', 'random', None]))
@examples(8)
def test_everything_is_finite(mode, objective, head, time_mode, cohort, seed, no_events):
    """Loss, parts and all gradients are finite for any lives, rows of padding among them, and parts
    add up."""
    model = a_model(mode, time_mode, seed=seed, dtype=torch.float32, objective=objective, head=head)
    batch = collate(cohort, objective, no_events)
    loss = model.nll(batch)
    loss.total.backward()
    assert all(v.isfinite() for v in (loss.total, *loss.parts.values())) and torch.isclose(
        sum(loss.parts.values()), loss.total
    )
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    if objective == 'delphi':
        assert model.nll(batch, validation=True).total.isfinite()


@every_mode
@given(batch=batches(), seed=seeds, at=st.integers(0, 4))
@examples(8)
def test_row_of_padding(mode, time_mode, batch, seed, at):
    """A row without anything in a batch has finite gradients and leaves those of the others as they
    are."""
    model, n = a_model(mode, time_mode, seed=seed), len(batch)

    def more(t, row):
        return torch.cat([t[:at], row, t[at:]])

    other = replace(
        batch,
        sex=more(batch.sex, torch.tensor([2])),
        query_age=more(batch.query_age, torch.tensor([[500.0]])),
        **{
            f: more(t, torch.zeros_like(t[:1]))
            for f in ('token', 'age', 'valid')
            if (t := getattr(batch, f)) is not None
        },
    )
    kept = torch.cat([torch.arange(min(at, n)), torch.arange(min(at, n) + 1, n + 1)])
    grads = []
    for hidden in (lambda: model(batch), lambda: model(other)[kept], lambda: model(other)):
        model.zero_grad()
        hidden().pow(2).sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for name, alone in grads[0].items():
        near = 1e-9 * (1 + alone.abs().max())
        assert grads[2][name].isfinite().all() and torch.allclose(
            alone, grads[1][name], rtol=1e-9, atol=near
        ), name


@every_objective
@pytest.mark.parametrize('time_mode', ['absolute', 'relative'])
def test_every_parameter_learns(mode, objective, head, time_mode, few_people):
    "Every parameter gets a gradient that is not zero."
    model = a_model(mode, time_mode, vocab=few_people.vocab, objective=objective, head=head)
    model.nll(collate(few_people, objective)).total.backward()
    for name, p in model.named_parameters():
        assert p.grad.abs().max() > 0, name


@every_objective
@pytest.mark.parametrize('time_mode', ['absolute', 'relative'])
@given(cohort=cohorts(), seed=seeds)
@examples(8)
def test_prediction_blanks(mode, objective, head, time_mode, cohort, seed):
    """A prediction is NaN exactly for what is no cause and what was had; the rest are hazards, and
    the CIFs complete the survival."""
    model = a_model(mode, time_mode, seed=seed, objective=objective, head=head)
    batch = collate(cohort, 'competing' if mode == 'next_token' else 'all_future')
    when = batch.age.amax(1) if mode == 'next_token' else batch.query_age[:, 0]
    now, got = model.predict(batch), model.predict(batch, years=2.0)
    assert now.cumulative_hazard is None and torch.equal(now.hazard.isnan(), got.hazard.isnan())
    for i in range(len(cohort)):
        had = {int(k) for k, t in zip(cohort[i].token, cohort[i].age, strict=True) if t <= when[i]}
        if VOCAB.death in had:
            continue  # see test_nothing_follows_death
        risk = torch.tensor(
            [kind in ('disease', 'death') and k not in had for k, kind in enumerate(VOCAB.kinds)]
        )
        for value in (got.hazard, got.cumulative_hazard, got.cif_next):
            assert torch.equal(value[i].isnan(), ~risk)
        assert (got.hazard[i][risk] > 0).all() and (got.cumulative_hazard[i][risk] > 0).all()
        assert torch.isclose(
            got.cif_next[i][risk].sum() + got.survival[i], torch.ones(()).double(), atol=1e-5
        )


@pytest.mark.parametrize(
    'mode, time_mode', [pytest.param(*which, id='-'.join(which)) for which in MODES]
)
def test_nothing_follows_death(mode, time_mode):
    """For a dead person nothing is predicted, and survival is certain; for others in the batch
    nothing changes."""
    model, batch = a_model(mode, time_mode), collate(FEW, None)
    if mode == 'all_future':
        batch = batch.asked_at(torch.full((3, 1), 9_000.0))
    got = model.predict(batch, years=2.0)
    assert got.hazard[2].isnan().all() and got.cif_next[2].isnan().all() and got.survival[2] == 1
    assert got.hazard[:2].isnan().sum(1).tolist() == [5, 6]


@pytest.mark.parametrize('time_mode', ['absolute', 'relative'])
@given(cohort=cohorts(), seed=seeds)
@examples(12)
def test_what_follows_the_landmark_is_not_needed(time_mode, cohort, seed):
    "Under all_future a batch that ends at the landmark and one that goes on give one prediction."
    model = a_model('all_future', time_mode, seed=seed)
    ends = collate(cohort, 'all_future', 'random', seed=seed % 9)
    goes_on = collate(cohort, None, None).asked_at(ends.query_age)
    one, other = (model.predict(batch, years=5.0) for batch in (ends, goes_on))
    for name in ('hazard', 'cumulative_hazard', 'cif_next', 'survival'):
        assert torch.allclose(
            getattr(one, name), getattr(other, name), rtol=1e-10, equal_nan=True
        ), name


@pytest.mark.parametrize('time_mode', ['absolute', 'relative'])
@given(batch=batches(people=(2, 4), least=3), seed=seeds, more=st.integers(0, 9))
@examples(12)
def test_prediction_is_of_the_last_position(time_mode, batch, seed, more):
    """Hazards of next tokens are those of each person's last valid position, however much padding
    follows."""
    assume(batch.valid.any(1).all())
    model = a_model(time_mode=time_mode, seed=seed)
    with torch.no_grad():
        log_hazard = model.log_hazard(model(batch))
    got = model.predict(padded(batch, more)).hazard
    for i, n in enumerate(batch.valid.sum(1).tolist()):
        risk = ~got[i].isnan()
        assert torch.allclose(got[i][risk], log_hazard[i, n - 1].exp()[risk], rtol=1e-9)


@every_mode
def test_order_of_people_is_nothing(mode, time_mode, few_people):
    "The same people in another order have the same loss, and each the same answer."
    model = a_model(mode, time_mode, vocab=few_people.vocab)
    order = np.random.default_rng(0).permutation(len(few_people))
    one, other = (
        collate(people, model.config.objective) for people in (few_people, few_people[order])
    )
    assert (answers(model, one)[order] - answers(model, other)).abs().max() < 1e-11
    with torch.no_grad():
        assert torch.isclose(model.nll(one).total, model.nll(other).total, rtol=1e-12)
