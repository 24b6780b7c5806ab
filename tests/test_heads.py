"""Heads and their likelihoods: pins, people, and properties that hold at any shape, time and
batch."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from delphi_traj.data.batches import Batches, collate
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.drawn_days import draw_landmarks
from delphi_traj.data.events import Cohort
from delphi_traj.data.simulator import expected_events, make_world, simulate
from delphi_traj.models.heads import (
    HEADS,
    ExponentialHead,
    Hazards,
    MixedHead,
    WeibullHead,
    all_future_loss,
    at_risk,
    competing_loss,
    hazards_of,
    make_head,
    marginal_log_rates,
    set_base_rate,
)
from lives import RECURRENT, VOCAB, cohorts, examples, padded

CAUSE = torch.from_numpy(VOCAB.of_kind('disease', 'death'))
DAY = 1 / 365.25
seeds = st.integers(0, 2**31 - 1)
log_shapes = st.floats(-1.5, 1.5)
times = st.sampled_from([0.0, DAY, 100.0]) | st.floats(0, 100)


def hazards(rng, *size, dtype=torch.float64):
    "Random hazards of moderate scales and every shape that a head can give."

    def draw(lo, hi):
        return lo + (hi - lo) * torch.rand(*size, generator=rng, dtype=dtype)

    return Hazards(draw(-8, 0), draw(-1.5, 1.5))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def maximise(loss_of, *leaves):
    "The leaves at the maximum of a likelihood, by L-BFGS."
    optimiser = torch.optim.LBFGS(
        leaves,
        max_iter=300,
        line_search_fn='strong_wolfe',
        tolerance_grad=1e-10,
        tolerance_change=1e-15,
    )

    def closure():
        optimiser.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    optimiser.step(closure)


# ---- one cause, several causes


@pytest.mark.parametrize(
    'shape, scale, t', [(1.7, 4.2, 3.7), (1.0, 4.2, 3.7), (0.25, 30.0, DAY), (4.4, 60.0, 99.0)]
)
def test_weibull_is_scipys(shape, scale, t):
    "Log density, survival and log hazard are those of scipy's weibull_min(a, scale=s), b = s**-a."
    h = Hazards(*torch.tensor([[-shape * np.log(scale)], [np.log(shape)]]))
    them = stats.weibull_min(shape, scale=scale)
    density = (h.log_hazard(t) - h.cumulative_hazard(t)).item()
    assert density == pytest.approx(them.logpdf(t), abs=1e-12) and h.survival(
        t
    ).item() == pytest.approx(them.sf(t), abs=1e-14)
    if (shape, t) == (1.7, 3.7):
        assert (density, h.survival(t).item()) == pytest.approx(
            (-1.7993385546186171, 0.4465713529275779), abs=1e-14
        )


@given(seed=seeds, years=times, begin=times, k=st.integers(1, 5))
@examples(60)
def test_finite_everywhere(seed, years, begin, k):
    """Values and gradients are finite at waiting times from nothing to a century, in float32 and
    float64."""
    for dtype in (torch.float32, torch.float64):
        leaf = torch.stack(
            [(h := hazards(seeded(seed), k, dtype=dtype)).log_scale, h.log_shape]
        ).requires_grad_()
        h = Hazards(*leaf)
        for value in (
            h.log_hazard(years),
            h.cumulative_hazard(years, begin),
            h.survival(years, begin),
            h.cif(years, begin),
        ):
            assert (
                value.isfinite().all()
                and torch.autograd.grad(
                    value.sum(), leaf, retain_graph=True, materialize_grads=True
                )[0]
                .isfinite()
                .all()
            )


@given(seed=seeds, begin=times, first=times, second=times)
@examples(60)
def test_additivity(seed, begin, first, second):
    """The cumulative hazards of two neighbouring intervals add up to that of both; survivals
    multiply."""
    h = hazards(seeded(seed), 4)
    both = h.cumulative_hazard(first, begin) + h.cumulative_hazard(second, begin + first)
    torch.testing.assert_close(
        both, h.cumulative_hazard(first + second, begin), rtol=1e-9, atol=1e-12
    )


@given(seed=seeds, begin=times, years=st.floats(DAY, 100))
@examples(30)
def test_hazard_is_the_slope(seed, begin, years):
    "The hazard is the derivative of the cumulative hazard."
    h, t = hazards(seeded(seed), 4), torch.tensor(years, dtype=torch.float64, requires_grad=True)
    for k in range(4):
        (slope,) = torch.autograd.grad(h.cumulative_hazard(t, begin)[k], t)
        assert slope.log().item() == pytest.approx(h.log_hazard(begin + years)[k].item(), abs=1e-6)


def by_quad(h, years, begin):
    "Cumulative incidences by scipy.integrate.quad, in the log of the time since `begin`."
    b, a = h.log_scale.exp().numpy(), h.log_shape.exp().numpy()

    def total(u):
        return (b * u**a).sum()

    points = np.linspace(-40 if begin else -150, np.log(years), 40)

    def f(x, k):
        u = begin + np.exp(x)
        return a[k] * b[k] * u ** (a[k] - 1) * np.exp(x - total(u) + total(begin))

    return np.array(
        [
            sum(
                integrate.quad(f, lo, hi, args=(k,), epsabs=1e-11)[0]
                for lo, hi in zip(points, points[1:], strict=False)
            )
            for k in range(len(a))
        ]
    )


@given(
    seed=seeds,
    begin=st.sampled_from([0.0, DAY, 1.0, 20.0]),
    years=st.sampled_from([DAY, 0.5, 10.0, 80.0]),
    k=st.integers(2, 4),
)
@examples(8)
def test_cif_against_quad(seed, begin, years, k):
    "The 32-point rule is within 1e-5 of adaptive quadrature at any shapes."
    h = hazards(seeded(seed), k)
    np.testing.assert_allclose(h.cif(years, begin).numpy(), by_quad(h, years, begin), atol=1e-5)


@given(seed=seeds, begin=times, years=times, k=st.integers(1, 6), common=st.booleans())
@examples(60)
def test_something_happens_or_nothing_does(seed, begin, years, k, common):
    "Incidences and survival add up to one, and zero years bring nothing."
    h = hazards(seeded(seed), k)
    if common:
        h = Hazards(h.log_scale, h.log_shape[:1].expand(k))
    assert (h.cif(years, begin).sum() + h.survival(years, begin)).item() == pytest.approx(
        1, abs=1e-5
    )
    assert not h.cif(0.0, begin).any() and not h.cumulative_hazard(0.0, begin).any()


def test_cif_pins():
    """Printed digits at common and at unequal shapes; unequal shapes that are equal give the closed
    form."""

    def cif(b, a, t):
        return (
            Hazards(
                torch.tensor(b, dtype=torch.float64).log(),
                torch.tensor(a, dtype=torch.float64).log(),
            )
            .cif(t)
            .tolist()
        )

    assert cif((0.1, 0.05, 0.2), (1.3,) * 3, 1.0) == pytest.approx(
        [0.084375, 0.042187, 0.168750], abs=6e-7
    )
    assert cif((0.1, 0.05, 0.2), (1.3,) * 3, 10.0) == pytest.approx(
        [0.285449, 0.142725, 0.570899], abs=6e-7
    )
    assert cif((0.03, 0.1, 0.01), (1.7, 0.9, 2.4), 1.0) == pytest.approx(
        [0.027586, 0.093960, 0.009096], abs=6e-7
    )
    assert cif((0.03, 0.1, 0.01), (1.7, 0.9, 2.4), 10.0) == pytest.approx(
        [0.323451, 0.308350, 0.360050], abs=6e-7
    )
    assert cif((0.1, 0.05, 0.2), (1.3, 1.3, 1.3 + 1e-9), 10.0) == pytest.approx(
        cif((0.1, 0.05, 0.2), (1.3,) * 3, 10.0), abs=1e-6
    )
    rate = torch.tensor([0.02, 0.05, 0.13], dtype=torch.float64).log()
    assert Hazards(rate).cif(3.7).tolist() == pytest.approx(
        [0.05228861, 0.13072152, 0.33987595], abs=1e-8
    )


@given(seed=seeds, years=times, begin=times)
@examples(30)
def test_causes_not_at_risk_are_not_there(seed, years, begin):
    "`only` gives what a head without these causes would give."
    h, keep = hazards(seeded(seed), 5), torch.tensor([True, False, True, True, False])
    less, few = h.only(keep), Hazards(h.log_scale[keep], h.log_shape[keep])
    torch.testing.assert_close(
        less.cif(years, begin)[keep], few.cif(years, begin), rtol=1e-5, atol=1e-5
    )
    assert not less.cif(years, begin)[~keep].any()
    # five numbers, two of them 0, or three: the sums may round in another order
    first, second = less.survival(years, begin), few.survival(years, begin)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-15)


# ---- heads


def twins(seed, k=None, d=6, tied=True):
    "A Weibull head with random weights, and a maker of heads with the same."
    k = len(VOCAB) if k is None else k
    source, rng = WeibullHead(k, d, tied).double(), seeded(seed)
    with torch.no_grad():
        for p in source.parameters():
            p.copy_(torch.randn(p.shape, generator=rng) * 0.3)
    set_base_rate(source, torch.full((k,), -4.0))

    def like(name, **options):
        head = make_head(name, k, d, tied, **options).double()
        head.load_state_dict(source.state_dict(), strict=False)
        return head

    return source, like


def learn(head, cohort, objective, seed, tied):
    "Loss, its gradient at the state, and the gradients of the head's parameters by name."
    batch, rng = collate(cohort, objective, 'random'), seeded(seed)
    size = batch.token.shape if objective == 'competing' else (len(batch), 1)
    state = torch.randn(*size, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    table = torch.randn(len(VOCAB), 6, generator=rng, dtype=torch.float64) * 0.3 if tied else None
    out = head(state, table)
    loss = (
        competing_loss(out, batch, CAUSE)
        if objective == 'competing'
        else all_future_loss(out, batch)
    )
    names, leaves = zip(*[('state', state), *head.named_parameters()], strict=True)
    grads = torch.autograd.grad(loss.total, leaves, allow_unused=True, materialize_grads=True)
    return loss.total, dict(zip(names, grads, strict=True))


@pytest.mark.parametrize(
    'objective, tied', [('competing', True), ('competing', False), ('all_future', False)]
)
@given(cohort=cohorts(), seed=seeds)
@examples(20)
def test_mixed_is_both(objective, tied, cohort, seed):
    """No free shape: the exponential head. All free: the Weibull head. In value and in every
    gradient (ET.19)."""
    weibull, like = twins(seed, tied=tied)

    def run(head):
        return learn(head, cohort, objective, seed, tied)

    (value, grads), (none, none_grads) = run(like('exponential')), run(like('mixed'))
    torch.testing.assert_close(none, value, rtol=1e-12, atol=1e-12)
    for n, g in grads.items():
        torch.testing.assert_close(none_grads[n], g, rtol=1e-9, atol=1e-12)
    assert not none_grads['shape_proj.weight'].any() and not none_grads['shape_proj.bias'].any()
    (value, grads), (everything, all_grads) = (
        run(weibull),
        run(like('mixed', free_shape=torch.ones(len(VOCAB), dtype=torch.bool))),
    )
    torch.testing.assert_close(everything, value, rtol=1e-12, atol=1e-12)
    for n, g in grads.items():
        torch.testing.assert_close(all_grads[n], g, rtol=1e-9, atol=1e-12)
    one = (
        run(like('mixed', free_shape=[VOCAB.death]))[1]['shape_proj.weight']
        .any(1)
        .nonzero()[:, 0]
        .tolist()
    )
    assert set(one) <= {VOCAB.death}


def test_et_19():
    """Weibull and mixed heads read the same state, by the same map to the scale; shapes are bounded
    and start at 1."""
    source, like = twins(3)
    state = torch.randn(2, 3, 6, dtype=torch.float64) * 100
    table = torch.randn(len(VOCAB), 6, dtype=torch.float64)
    mixed, weibull = like('mixed', free_shape=[5, VOCAB.death])(state, table), source(state, table)
    assert torch.equal(mixed.log_scale, weibull.log_scale) and torch.equal(
        mixed.log_scale, like('exponential')(state, table)
    )
    assert torch.equal(
        mixed.log_shape[..., [5, VOCAB.death]], weibull.log_shape[..., [5, VOCAB.death]]
    )
    assert (
        mixed.log_shape.any(-1).all()
        and mixed.log_shape.ne(0).sum(-1).max() <= 2
        and 1.4 < weibull.log_shape.abs().max() <= 1.5
    )
    for name in ('weibull', 'mixed'):
        assert not make_head(name, 9, 6)(torch.randn(4, 6), torch.randn(9, 6)).log_shape.any()


@pytest.mark.parametrize('name', HEADS)
@pytest.mark.parametrize('tied', [True, False])
def test_heads_under_autocast(name, tied):
    """Hazards are float32 under bf16 autocast, near those at full precision, and gradients are
    finite."""
    head, state, table = make_head(name, 9, 6, tied), torch.randn(4, 6), torch.randn(9, 6)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = hazards_of(head(state.bfloat16(), table))
    full = hazards_of(head(state, table))
    assert (
        half.log_scale.dtype == torch.float32
        and (half.log_scale - full.log_scale).abs().max() < 0.1
    )
    assert half.log_shape is None or half.log_shape.dtype == torch.float32


def test_old_head_is_unchanged():
    """The tied exponential head has one buffer, no parameter, and returns the tensor <h, E> + log
    365.25."""
    head, state, table = ExponentialHead(9), torch.randn(4, 6), torch.randn(9, 6)
    assert list(head.state_dict()) == ['log_base_rate'] and not list(head.parameters())
    assert torch.equal(
        head(state, table), state @ table.T + torch.full((9,), np.log(365.25), dtype=torch.float32)
    )


def test_what_heads_refuse():
    """Unknown names, a shape set for a head without one, an untied head without a width, a tied
    head without embedding."""
    for call, word in (
        (lambda: make_head('cox', 9, 6), "expected one of"),
        (lambda: make_head('weibull', 9, 6, free_shape=[1]), 'mixed head'),
        (lambda: ExponentialHead(9, tied=False), 'width'),
        (lambda: MixedHead(9, 6)(torch.randn(6)), 'embedding'),
    ):
        with pytest.raises(ValueError, match=word):
            call()


# ---- likelihoods


@given(cohort=cohorts(), seed=seeds)
@examples(40)
def test_shape_one_is_the_exponential(cohort, seed):
    "A tensor, `Hazards` without shape and with shape 1 give one loss under both objectives."
    for objective in ('competing', 'all_future'):
        batch = collate(cohort, objective, 'random')
        size = (
            (*batch.token.shape, len(VOCAB))
            if objective == 'competing'
            else (len(batch), len(VOCAB))
        )
        x = torch.randn(*size, generator=seeded(seed), dtype=torch.float64) - 3
        loss = (
            (lambda h: competing_loss(h, batch, CAUSE).total)
            if objective == 'competing'
            else (lambda h: all_future_loss(h, batch).total)
        )
        # sums may round in another order
        torch.testing.assert_close(loss(Hazards(x)), loss(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            loss(Hazards(x, torch.zeros_like(x))), loss(x), rtol=1e-12, atol=1e-12
        )


@given(cohort=cohorts(), seed=seeds, every=st.floats(0.5, 20))
@examples(40)
def test_no_event_tokens_do_not_touch_the_clock(cohort, seed, every):
    "With one scale and one shape per cause, cuts by no-event tokens change no Weibull likelihood."
    h, totals = hazards(seeded(seed), len(VOCAB)), []
    for how in (None, 'regular', 'random'):
        batch = collate(cohort, no_events=how, every=every)
        spread = [x.expand(*batch.token.shape, -1) for x in (h.log_scale, h.log_shape)]
        totals.append(competing_loss(Hazards(*spread), batch, CAUSE).total.item())
    assert totals[1:] == pytest.approx([totals[0]] * 2, rel=1e-9, abs=1e-12)


def clock_by_loops(vocab, tokens, ages, start):
    """Days since the last disease at or before each position, or since the start where there was
    none, from the definition."""

    def last(l):
        return max(
            [
                a
                for a, t in zip(ages[: l + 1], tokens[: l + 1], strict=True)
                if vocab.kinds[t] == 'disease'
            ],
            default=start,
        )

    return [max(ages[l] - last(l), 0) for l in range(len(ages))]


@pytest.mark.parametrize('vocab', [VOCAB, RECURRENT], ids=['first', 'recurrent'])
@given(data=st.data())
@examples(60)
def test_clock(vocab, data):
    "The clock is that of the definition, also in a window that lost the disease that set it."
    cohort = data.draw(cohorts(vocab))
    whole, part = collate(cohort, None, 'random'), collate(cohort, None, 'random', max_length=2)
    for i, start in enumerate(cohort.subjects.start):
        n = int(whole.valid[i].sum())
        m = min(n, 2)
        expected = clock_by_loops(
            vocab, whole.token[i, :n].tolist(), whole.age[i, :n].tolist(), start
        )
        assert whole.clock[i, :n].tolist() == expected and not whole.clock[i, n:].any()
        assert part.clock[i, :m].tolist() == expected[n - m :]


@pytest.mark.parametrize('vocab', [VOCAB, RECURRENT], ids=['first', 'recurrent'])
@given(data=st.data())
@examples(60)
def test_every_future(vocab, data):
    "Open, struck and years of every cause are those of the definition; inputs end at the landmark."
    cohort, how = data.draw(cohorts(vocab)), data.draw(st.sampled_from(['random', 'regular']))
    batch = collate(cohort, 'all_future', how, seed=data.draw(st.integers(0, 99)))
    for i, row in cohort.subjects.iterrows():
        when, ages, tokens = (
            int(batch.query_age[i, 0]),
            *(x[cohort.person == i].tolist() for x in (cohort.age, cohort.token)),
        )
        assert row.start <= when < max(row.end, row.start + 1)
        assert batch.age[i][batch.valid[i]].tolist() == [a for a in ages if a <= when]
        for k, kind in enumerate(vocab.kinds):
            mine = [a for a, t in zip(ages, tokens, strict=True) if t == k]
            free = kind in ('disease', 'death') and not any(a <= when for a in mine)
            later = [a for a in mine if a > when]
            assert batch.future_open[i, k] == free and batch.future_struck[i, k] == (
                free and len(later) > 0
            )
            assert batch.future_years[i, k].item() == pytest.approx(
                (min(later + [row.end]) - when) / 365.25, abs=1e-4
            )


@given(cohort=cohorts(people=(2, 5)), seed=seeds)
@examples(30)
def test_everybody_stays_in(cohort, seed):
    """The all-future loss is a sum over people, each with and without an event, divided by the
    events."""
    batch, h = collate(cohort, 'all_future'), hazards(seeded(seed), len(cohort), len(VOCAB))
    whole = all_future_loss(h, batch)
    alone = [
        all_future_loss(h[i : i + 1], collate(cohort[i], 'all_future')) for i in range(len(cohort))
    ]

    def n(loss):
        return max(loss.count.item(), 1)

    assert sum(one.total.item() * n(one) for one in alone) == pytest.approx(
        whole.total.item() * n(whole), rel=1e-9
    )
    assert whole.total.isfinite() and sum(whole.parts.values()).item() == pytest.approx(
        whole.total.item()
    )


@given(cohort=cohorts(), seed=seeds, objective=st.sampled_from(['competing', 'all_future']))
@examples(40)
def test_gradients_of_the_losses_are_finite(cohort, seed, objective):
    "At any bounded shape, in float32, with people who have nothing, ties, and padding."
    batch = collate(cohort, objective, 'random')
    size = (
        (*batch.token.shape, len(VOCAB))
        if objective == 'competing'
        else (len(batch), 1, len(VOCAB))
    )
    h = hazards(seeded(seed), *size, dtype=torch.float32)
    leaf = torch.stack([h.log_scale, h.log_shape]).requires_grad_()
    loss = (
        competing_loss(Hazards(*leaf), batch, CAUSE)
        if objective == 'competing'
        else all_future_loss(Hazards(*leaf), batch)
    )
    loss.total.backward()
    assert loss.total.isfinite() and leaf.grad.isfinite().all()


@given(cohort=cohorts(), seed=seeds, more=st.integers(1, 5))
@examples(20)
def test_padding_pays_nothing(cohort, seed, more):
    "More padding changes no Weibull loss."
    batch, h = collate(cohort), hazards(seeded(seed), len(VOCAB))

    def loss(b):
        return competing_loss(
            Hazards(*(x.expand(*b.token.shape, -1) for x in (h.log_scale, h.log_shape))), b, CAUSE
        ).total

    torch.testing.assert_close(loss(padded(batch, more)), loss(batch), rtol=1e-12, atol=1e-12)


# ---- real people


@pytest.fixture(scope='module')
def flchain():
    """7,874 people, three causes of death, as a cohort that begins at 0; and a bias-only fit of a
    head to it."""
    datasets = pytest.importorskip('sksurv.datasets')
    X, y = datasets.load_flchain()
    names = ['Circulatory', 'Neoplasms', 'Other']
    n, days = len(y), y['futime'].astype(int)
    chapter = X.chapter.astype(object).where(X.chapter.isin(names[:2]), 'Other')
    vocab = make_vocab(names, death=None)
    events = np.flatnonzero(y['death'])
    table = pd.DataFrame(dict(subject_id=range(n), start=0, end=days))
    return Cohort.from_rows(
        vocab, events, days[events], [vocab.id(c) for c in chapter.iloc[events]], table
    )


def bias_only(name, cohort):
    """A head with biases only at the maximum, the batch, and the negative log-likelihood of each
    cause."""
    batch = collate(cohort, 'all_future', landmark=0)
    head = make_head(name, len(cohort.vocab), 1, tied=False).double()
    # three people died on day 0: a landmark on that day knows, the pins ask, at one day
    first = cohort.person[cohort.age == 0]
    batch.future_open[first] = torch.from_numpy(cohort.vocab.of_kind('disease'))
    batch.future_struck[first, cohort.token[cohort.age == 0]] = True
    batch.future_years.clamp_(min=DAY)
    set_base_rate(head, marginal_log_rates(cohort))
    state = torch.zeros(len(batch), 1, dtype=torch.float64)
    maximise(lambda: all_future_loss(head(state), batch).total, *head.parameters())
    h, nll = hazards_of(head(state[:1]))[0], []
    for k in range(4, 7):
        alone = replace(
            batch,
            future_open=batch.future_open & (torch.arange(7) == k),
            future_struck=batch.future_struck & (torch.arange(7) == k),
        )
        loss = all_future_loss(head(state), alone)
        nll.append((loss.total * loss.count).item())
    return h, nll


def test_flchain_exponential(flchain):
    "Occurrence over exposure, lifelines' likelihoods, and the closed-form incidence at 10 years."
    h, nll = bias_only('exponential', flchain)
    assert h.log_scale.exp()[4:].tolist() == pytest.approx([0.00944, 0.00718, 0.01086], abs=6e-6)
    assert nll == pytest.approx([4218.830, 3365.646, 4733.044], abs=2e-3)
    risk = torch.tensor([False] * 4 + [True] * 3)
    assert h.only(risk).cif(10.0)[4:].tolist() == pytest.approx([0.0825, 0.0628, 0.0949], abs=6e-5)


def test_flchain_weibull(flchain):
    "Cause-specific shapes, scales and likelihoods as lifelines fits them."
    h, nll = bias_only('weibull', flchain)
    shape, scale = h.log_shape.exp()[4:], (-h.log_scale / h.log_shape.exp()).exp()[4:]
    assert shape.tolist() == pytest.approx([0.875, 0.849, 1.109], abs=6e-4)
    assert scale.tolist() == pytest.approx([146.4, 218.46, 74.88], rel=5e-4)
    assert nll == pytest.approx([4211.159, 3356.826, 4728.119], abs=2e-3)


# ---- simulated people


@pytest.mark.parametrize('shape', [0.6, 1.0, 1.8])
def test_weibull_is_recovered(shape):
    """Shape and scale within three standard errors, from intervals cut by no-event tokens and from
    every future."""
    rng, n, years, scale = np.random.default_rng(5), 4_000, 20, 25.0
    day = np.ceil(scale * rng.exponential(size=n) ** (1 / shape) * 365.25).astype(int)
    came = day <= years * 365.25
    vocab = make_vocab(['A'], death=None)
    cohort = Cohort.from_rows(
        vocab,
        np.flatnonzero(came),
        day[came],
        np.full(came.sum(), vocab.id('A')),
        pd.DataFrame(dict(subject_id=range(n), start=0, end=int(years * 365.25))),
    )
    cut = collate(cohort)
    future = collate(cohort, 'all_future', landmark=0)
    cause = torch.from_numpy(vocab.of_kind('disease'))

    def spread(theta, *size):
        return Hazards(*(x.expand(*size, len(vocab)) for x in theta))

    losses = [
        lambda th: competing_loss(spread(th, *cut.token.shape), cut, cause).total,
        lambda th: all_future_loss(spread(th, n), future).total,
    ]
    truth = torch.tensor([-shape * np.log(scale), np.log(shape)], dtype=torch.float64)
    for loss in losses:
        theta = torch.tensor([-3.0, 0.0], dtype=torch.float64, requires_grad=True)
        maximise(lambda: loss(theta), theta)
        error = (
            (torch.autograd.functional.hessian(loss, theta.detach()) * came.sum())
            .inverse()
            .diagonal()
            .sqrt()
        )
        assert ((theta.detach() - truth).abs() < 3 * error).all()


def over_expected(log_rate, people):
    "Observed events of all causes over those that one rate per code expects in the time at risk."
    batch, cause = collate(people), torch.from_numpy(people.vocab.of_kind('disease', 'death'))
    years = (at_risk(batch, cause) * batch.exposure[..., None]).sum((0, 1)).double() / 365.25
    return (batch.counted.sum() / (torch.from_numpy(log_rate).exp()[cause] @ years[cause])).item()


def test_rates_are_judged_on_other_people():
    """On the people they come from, rates give 1 by construction; on others what the true hazards
    give, within .05."""
    learners, others = simulate(2_000, seed=11), simulate(2_000, seed=8)
    rate = marginal_log_rates(learners)
    assert over_expected(rate, learners) == pytest.approx(1, abs=1e-4)
    truth = expected_events(make_world(), others)
    wanted = truth.observed.sum() / truth.expected.sum()
    assert over_expected(rate, others) == pytest.approx(wanted, abs=0.05)
    assert over_expected(rate - np.log(2), others) > 1.9  # rates of half the size are seen


# ---- loaders


def test_all_future_batches(few_people):
    "Steps decide batches; landmarks move with the epoch; evaluation is fixed."

    def make(**k):
        return Batches(few_people, 5, 'all_future', **k)

    for step in (0, 3, 7):
        assert torch.equal(make()[step].query_age, make()[step].query_age)
    age = {
        e: torch.cat([collate(few_people, 'all_future', 'random', epoch=e).query_age])
        for e in (0, 1)
    }
    assert (age[0] != age[1]).float().mean() > 0.9
    fixed = torch.cat([make(training=False)[i].query_age for i in range(5)])
    assert sorted(fixed[:, 0].tolist()) == sorted(draw_landmarks(few_people, 'regular').tolist())
    years = torch.cat([make(training=False)[i].weight for i in range(5)])
    assert sorted(years.tolist()) == pytest.approx(
        sorted(((few_people.subjects.end - few_people.subjects.start) / 365.25).tolist()), rel=1e-6
    )


def test_landmarks_weigh_person_time():
    """A disease and death at constant .05 per year: the rates that minimise the all-future loss are
    .05 for both, at random landmarks too."""
    rng = np.random.default_rng(5)
    n, years = 6_000, 20
    ill, dead = rng.exponential(20, (2, n))
    end, who = np.minimum(dead, years), np.arange(n)
    rows = np.concatenate(
        [np.c_[who, ill, np.full(n, 4)][ill < end], np.c_[who, dead, np.full(n, 5)][dead < years]]
    )
    table = pd.DataFrame({'subject_id': who, 'start': 0, 'end': np.ceil(end * 365.25).astype(int)})
    cohort = Cohort.from_rows(
        make_vocab(['Illness']), rows[:, 0], np.ceil(rows[:, 1] * 365.25), rows[:, 2], table
    )
    for how in ('random', 'regular'):
        batch = collate(cohort, 'all_future', how)
        theta = torch.full((1, 6), math.log(0.05), dtype=torch.float64, requires_grad=True)
        all_future_loss(theta.expand(n, -1), batch).total.backward()
        # the gradient is expected minus observed, as a share of all events
        assert theta.grad[0, 4:].abs().max() < 0.03
