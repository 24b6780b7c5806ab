"""What every sequence model must do, for every mixer, way of telling time and objective, after
redrawing all parameters."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from delphi_traj.data.batches import Batches, collate
from delphi_traj.models.delphi import Delphi
from delphi_traj.models.heads import competing_loss, marginal_log_rates
from delphi_traj.training.loop import mean_loss
from lives import (
    COMBINATIONS,
    RECURRENT,
    VOCAB,
    a_life,
    as_cohort,
    cohorts,
    copied,
    examples,
    padded,
    redraw,
    table_of,
    tiny_config,
    tiny_model,
)

every_model = pytest.mark.parametrize('which', COMBINATIONS, ids='-'.join)
seeds = st.integers(0, 2**31 - 1)


@every_model
@given(cohort=cohorts(), seed=seeds, data=st.data())
@examples(15)
def test_future_moves_nothing(which, cohort, seed, data):
    "Another future leaves hidden states and hazards at and before now as they are, bit for bit."
    model, batch = tiny_model(*which, seed=seed), collate(cohort, which[2])
    now = data.draw(st.integers(0, batch.token.shape[1] - 1))
    other, rng = copied(batch), torch.Generator().manual_seed(seed)
    after = torch.arange(batch.token.shape[1]) > now
    for f in fields(other):  # whatever the batch holds about later positions is drawn anew
        value = getattr(other, f.name)
        if f.name in ('sex', 'had') or not torch.is_tensor(value):
            continue
        if f.name == 'valid':
            fresh = torch.rand(value.shape, generator=rng) < 0.5
        elif f.name in ('token', 'target', 'reader'):
            fresh = torch.randint(0, len(VOCAB), value.shape, generator=rng)
        else:
            fresh = (torch.rand(value.shape, generator=rng) * 40_000).to(value.dtype)
        value[:, after] = fresh.to(value.dtype)[:, after]
    with torch.no_grad():
        here, there = model(batch), model(other)
    assert torch.equal(here[:, : now + 1], there[:, : now + 1])
    assert torch.equal(model.log_hazard(here)[:, : now + 1], model.log_hazard(there)[:, : now + 1])


@every_model
@given(cohort=cohorts(least=3), seed=seeds, data=st.data())
@examples(15)
def test_past_is_read(which, cohort, seed, data):
    "Another code, another age or another sex in the past moves what comes later."
    model, batch = tiny_model(*which, seed=seed), collate(cohort, which[2])
    person = data.draw(st.integers(0, len(batch) - 1))
    n = int(batch.valid[person].sum())
    assume(n >= 2)
    past = data.draw(st.integers(0, n - 2))
    token, age, sex = copied(batch), copied(batch), copied(batch)
    token.token[person, past] = 5 + (token.token[person, past] - 4) % 6  # another disease
    age.age[person, past] += 700
    sex.sex[person] = (sex.sex[person] + 1) % 3
    with torch.no_grad():
        before = model(batch)[person, n - 1]
    for changed in (token, age, sex):
        with torch.no_grad():
            assert (model(changed)[person, n - 1] - before).abs().max() > 1e-9


@every_model
@pytest.mark.parametrize(
    'dtype, tolerance', [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=['float64', 'float32']
)
@given(cohort=cohorts(people=(2, 5)), seed=seeds, more=st.integers(1, 20))
@examples(8)
def test_batch_mates_and_padding(which, dtype, tolerance, cohort, seed, more):
    "A person's states and hazards are the same alone, among others and with more padding."
    model = tiny_model(*which, seed=seed, dtype=dtype)
    together = collate(cohort, which[2])
    with torch.no_grad():
        among, wide = model(together), model(padded(together, more))
    scale = among.abs().max()
    real = together.valid[..., None]
    assert ((wide[:, : among.shape[1]] - among) * real).abs().max() <= tolerance * scale
    for i in range(len(cohort)):
        alone = collate(cohort[i], which[2])
        n = int(alone.valid.sum())
        assert n == int(together.valid[i].sum())
        if n:
            with torch.no_grad():
                assert (model(alone)[0, :n] - among[i, :n]).abs().max() <= tolerance * scale


@every_model
def test_dropout_in_training_only(which, few_people):
    "Evaluation gives the same bits twice with every dropout at a half; training does not."
    dropout = dict(attention_dropout=0.5, mlp_dropout=0.5, token_dropout=0.5)
    model = redraw(Delphi(tiny_config(*which, vocab=few_people.vocab, **dropout), few_people.vocab))
    batch = collate(few_people, which[2])
    with torch.no_grad():
        assert torch.equal(model.eval()(batch), model(batch))
        assert torch.equal(model.nll(batch).total, model.nll(batch).total)
        model.train()
        torch.manual_seed(0)
        assert not torch.equal(model(batch), model(batch))


@pytest.mark.parametrize('dropout', ['attention_dropout', 'mlp_dropout', 'token_dropout'])
def test_each_dropout_acts(dropout, few_people):
    "Each of the three dropouts alone makes training random, and none at all leaves it exact."
    batch = collate(few_people)
    for p in (0.5, 0.0):
        options = dict(attention_dropout=0.0, mlp_dropout=0.0, token_dropout=0.0) | {dropout: p}
        model = redraw(
            Delphi(tiny_config(vocab=few_people.vocab, **options), few_people.vocab)
        ).train()
        torch.manual_seed(0)
        with torch.no_grad():
            assert torch.equal(model(batch), model(batch)) == (p == 0)


@given(everyone=st.lists(a_life(), min_size=1, max_size=4), data=st.data())
@examples(100)
def test_row_order_is_nothing(everyone, data):
    """Rows in any order, within a day and overall, give the same cohort, bit for bit, and the same
    report."""
    rows, table = table_of(everyone)
    first = as_cohort(VOCAB, rows, table)
    shuffled = rows[data.draw(st.permutations(range(len(rows))))] if len(rows) else rows
    second = as_cohort(VOCAB, shuffled, table.iloc[data.draw(st.permutations(range(len(table))))])
    assert first == second and first.report == second.report
    for name in ('token', 'age', 'offsets'):
        assert getattr(first, name).dtype == getattr(second, name).dtype


@every_model
def test_bfloat16(which, few_people):
    """Under bfloat16 autocast states stay within 3% of their range, losses within 1%; the clock
    stays float32, so one day counts."""
    model = redraw(Delphi(tiny_config(*which, vocab=few_people.vocab), few_people.vocab)).eval()
    batch, later = collate(few_people, which[2]), collate(few_people, which[2])
    later.age = later.age + 1
    with torch.no_grad():
        exact, loss, embedded = model(batch), model.nll(batch), model.embed(batch)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        rough, rough_loss, rough_embedded = model(batch), model.nll(batch), model.embed(batch)
        moved = model.embed(later)
        if model.rotation is not None:
            assert all(
                map(
                    torch.equal,
                    model.rotation(batch.age),
                    [f(a) for f, a in _angles(model, batch.age)],
                )
            )
            assert model.rbf(batch.age, batch.age).dtype == torch.float32
    # there steps of bfloat16 are 128 days
    assert batch.age.dtype == torch.float32 and batch.age.max() > 20_000
    assert (rough - exact)[batch.valid].abs().max() < 0.03 * exact.abs().max()
    assert rough_loss.total.dtype == torch.float32 and torch.isclose(
        rough_loss.total, loss.total, rtol=0.01
    )
    assert (rough_embedded - embedded).abs().max() < 0.03 and rough_embedded.dtype == torch.float32
    assert ((moved - rough_embedded).abs().amax(-1) > 1e-3)[batch.valid].all()


def _angles(model, age):
    angle = (age / 365.25)[..., None] * model.rotation.frequency
    return [(torch.cos, angle), (torch.sin, angle)]


@every_model
@given(cohort=cohorts(), seed=seeds)
@examples(15)
def test_everything_is_finite(which, cohort, seed):
    """Loss, parts and all gradients are finite for any lives, in training mode and in the published
    validation mode."""
    model, batch = tiny_model(*which, seed=seed, dtype=torch.float32), collate(cohort, which[2])
    loss = model.nll(batch)
    loss.total.backward()
    assert all(v.isfinite() for v in (loss.total, *loss.parts.values()))
    assert torch.isclose(sum(loss.parts.values()), loss.total)
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    if which[2] == 'delphi':
        assert model.nll(batch, validation=True).total.isfinite()


@every_model
def test_every_parameter_learns(which, few_people):
    "Every parameter gets a gradient that is not zero."
    model = redraw(Delphi(tiny_config(*which, vocab=few_people.vocab), few_people.vocab))
    model.nll(collate(few_people, which[2])).total.backward()
    for name, p in model.named_parameters():
        assert p.grad.abs().max() > 0, name


@every_model
@given(cohort=cohorts(), seed=seeds)
@examples(15)
def test_prediction_blanks(which, cohort, seed):
    """A prediction is NaN exactly for what is no cause and what was had; the rest are hazards, and
    the CIFs complete the survival."""
    model, batch = tiny_model(*which, seed=seed), collate(cohort, 'competing')
    got = model.predict(batch, years=2.0)
    for i in range(len(cohort)):
        had = set(batch.token[i][batch.valid[i]].tolist())
        if VOCAB.death in had:
            continue  # see test_nothing_follows_death
        risk = torch.tensor(
            [kind in ('disease', 'death') and k not in had for k, kind in enumerate(VOCAB.kinds)]
        )
        for value in (got.hazard, got.cumulative_hazard, got.cif_next):
            assert torch.equal(value[i].isnan(), ~risk)
        assert (got.hazard[i][risk] > 0).all()
        assert torch.isclose(got.cif_next[i][risk].sum() + got.survival[i], torch.ones(()).double())


def test_nothing_follows_death():
    "For a dead person nothing is predicted."
    dead = as_cohort(
        VOCAB,
        np.array([[1, 900, VOCAB.death]]),
        pd.DataFrame({'subject_id': [1], 'start': [0], 'end': [900]}),
    )
    assert tiny_model().predict(collate(dead)).hazard.isnan().all()


@given(cohort=cohorts(people=(2, 4)), seed=seeds, more=st.integers(0, 9))
@examples(30)
def test_prediction_is_of_the_last_position(cohort, seed, more):
    "Hazards are those of each person's last valid position, however much padding follows."
    model, batch = tiny_model(seed=seed), collate(cohort)
    with torch.no_grad():
        log_hazard = model.log_hazard(model(batch))
    got = model.predict(padded(batch, more)).hazard
    for i, n in enumerate(batch.valid.sum(1).tolist()):
        risk = ~got[i].isnan()
        assert torch.allclose(got[i][risk], log_hazard[i, n - 1].exp()[risk], rtol=1e-9)


@given(cohort=cohorts(), seed=seeds)
@examples(20)
def test_unknown_sex_is_between(cohort, seed):
    "The embedding for unknown sex is the mean of the other two."
    model, batch = tiny_model(seed=seed), collate(cohort)
    female, male, unknown = (
        model.embed(replace(batch, sex=torch.full_like(batch.sex, s))) for s in range(3)
    )
    assert torch.allclose(unknown, (female + male) / 2, atol=1e-12) and not torch.allclose(
        female, male
    )


@pytest.mark.parametrize('objective', ['delphi', 'competing'])
def test_mean_loss_knows_no_batches(objective):
    """The mean loss over a cohort is the same in one batch and person by person; people without
    events count too."""
    window = pd.DataFrame({'subject_id': [1, 2, 3], 'start': 0, 'end': [400, 400, 4_000]})
    cohort = as_cohort(VOCAB, np.array([[1, 20, 5], [1, 90, 6], [2, 10, 5], [2, 30, 8]]), window)
    one, many = (
        mean_loss(tiny_model(objective=objective), Batches(cohort, size, objective, training=False))
        for size in (3, 1)
    )
    assert one['count'] == many['count'] > 0 and abs(one['total'] - many['total']) <= 1e-9 * abs(
        one['total']
    )


@given(cohort=cohorts(people=(1, 5)), seed=seeds)
@examples(60)
def test_competing_loss_adds_over_people(cohort, seed):
    "The loss times its count is a sum over people."
    model = tiny_model(seed=seed)

    def whole(c):
        return (lambda loss: loss.total * loss.count.clamp(min=1))(model.nll(collate(c)))

    with torch.no_grad():
        assert torch.isclose(
            whole(cohort), sum(whole(cohort[i]) for i in range(len(cohort))), rtol=1e-10
        )


def at_constant_hazards(batch, log_rate, vocab=VOCAB):
    "Competing loss when every position has the log hazards `log_rate` [k]."
    cause = torch.from_numpy(vocab.of_kind('disease', 'death'))
    return competing_loss(
        log_rate.expand(*batch.token.shape, -1), batch, cause, vocab.first_occurrence
    )


@given(cohort=cohorts(), every=st.floats(0.3, 30), seed=seeds)
@examples(100)
def test_cuts_change_nothing(cohort, every, seed):
    """More no-event tokens cut intervals in pieces; with constant hazards the likelihood is the
    same."""
    log_rate = torch.randn(len(VOCAB), generator=torch.Generator().manual_seed(seed)).double()
    coarse = collate(cohort, no_events=None)
    fine = collate(cohort, no_events='regular', every=every)
    random = collate(cohort, no_events='random', every=every, seed=seed)
    assert fine.token.shape[1] >= coarse.token.shape[1]
    for cut in (fine, random):
        one, other = at_constant_hazards(cut, log_rate), at_constant_hazards(coarse, log_rate)
        assert one.count == other.count and torch.isclose(one.total, other.total, rtol=1e-10)


@pytest.mark.parametrize('vocab', [VOCAB, RECURRENT], ids=['first occurrence', 'recurrent'])
@given(data=st.data())
@examples(100)
def test_rates_are_events_over_exposure(vocab, data):
    "At events / exposure the gradient of the competing loss is zero for every cause that happened."
    cohort = data.draw(cohorts(vocab))
    log_rate = torch.from_numpy(marginal_log_rates(cohort)).requires_grad_()
    batch = collate(cohort)
    loss = at_constant_hazards(batch, log_rate, vocab)
    happened = torch.zeros(len(vocab), dtype=torch.bool)
    happened[batch.token[batch.counted]] = True
    assume(loss.count > 0)
    loss.total.backward()
    assert log_rate.grad[happened].abs().max() < 1e-9
