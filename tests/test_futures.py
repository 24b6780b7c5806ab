"""Risks and sampled futures: closed forms, laws of the draws, the cache, what must never leak or
follow, and the people at the edges."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from delphi_traj.data.batches import LandmarkBatch
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.drawn_days import CENTURY
from delphi_traj.data.events import Cohort
from delphi_traj.data.landmarks import codes_had, known_at
from delphi_traj.data.simulator import make_world, simulate
from delphi_traj.evaluation.drawing import (
    ENDED,
    Rules,
    Walk,
    draw_exponential,
    draw_next,
    draw_weibull,
    streams,
    uniforms,
)
from delphi_traj.evaluation.futures import risk_mc, sample_futures
from delphi_traj.evaluation.oracle import oracle_futures, oracle_log_hazard
from delphi_traj.evaluation.risk import (
    REASONS,
    came_within,
    cif_next,
    frozen_risk,
    landmark_hazards,
    landmark_inputs,
    next_probability,
    risk,
)
from delphi_traj.layers.stages import MIXERS
from delphi_traj.models.delphi import Delphi
from delphi_traj.models.event_trajectory import EventTrajectory, event_trajectory_shared_v2
from delphi_traj.models.heads import Hazards, set_base_rate
from delphi_traj.models.sequence import Histories, Memory
from lives import RECURRENT, VOCAB, as_cohort, cohorts, examples, tiny_config

K, DEATH, YEAR = len(VOCAB), VOCAB.death, 365.25
CAUSE = VOCAB.of_kind('disease', 'death')
ASH, BEECH = VOCAB.id('Ash'), VOCAB.id('Beech')
FAMILIES = [('delphi', 'competing', 'exponential'), ('delphi', 'delphi', 'exponential')] + [
    ('rounds', mode, head)
    for mode in ('next_token', 'all_future')
    for head in ('exponential', 'weibull', 'mixed')
]


def wide(x):
    return torch.tensor(x, dtype=torch.float64)


def build(family, what, head='exponential', vocab=VOCAB, dtype=torch.float64, **options):
    "A tiny model; `what` is an objective of Delphi or a mode of EventTrajectory."
    torch.manual_seed(0)
    if family == 'delphi':
        return Delphi(tiny_config(objective=what, vocab=vocab, **options), vocab).to(dtype).eval()
    config = event_trajectory_shared_v2(
        None,
        3,
        what,
        vocab_size=len(vocab),
        n_trajectory=4,
        trajectory_dim=6,
        head=head,
        first_occurrence=vocab.first_occurrence,
        **options,
    )
    return EventTrajectory(config, vocab).to(dtype).eval()


@torch.no_grad()
def redraw(model, rate=-1.5, spread=0.3, seed=0):
    """Every parameter from N(0, spread), log rates around `rate`, so that nothing is near zero by
    construction."""
    rng = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64) * spread)
    model.head.log_base_rate.fill_(rate)
    return model


@torch.no_grad()
def constant(model, rates):  # per year, {id: rate}; .01 elsewhere
    "The model with hazards that do not depend on anything."
    if model.head.scale_proj is None:
        model.token_embedding.weight.zero_()
    else:
        model.head.scale_proj.weight.zero_()
        model.head.scale_proj.bias.zero_()
    log_rate = torch.full((model.config.vocab_size,), np.log(0.01))
    for k, r in rates.items():
        log_rate[k] = np.log(r)
    set_base_rate(model.head, log_rate)
    return model


def person(rows=(), start=10_000, end=30_000, sex='female', vocab=VOCAB, n=1):
    "`n` people with the same rows (day, code)."
    table = pd.DataFrame(
        {'subject_id': np.arange(1, n + 1), 'sex': sex, 'start': start, 'end': end}
    )
    events = np.array(
        [(i, day, code) for i in range(1, n + 1) for day, code in rows], dtype=np.int64
    ).reshape(-1, 3)
    return as_cohort(vocab, events, table)


LIFE = [(9_000, VOCAB.id('Smoker')), (12_000, ASH), (15_000, BEECH), (15_000, VOCAB.id('Elm'))]
CROWD = [
    person(LIFE[:i] if i < 4 else LIFE, sex=s)
    for i, s in ((0, 'unknown'), (1, 'female'), (2, 'male'), (4, 'female'))
]


def crowd():
    "Four people with other histories, subjects 1 to 4."
    rows = np.concatenate(
        [np.stack([np.full(len(c.token), i + 1), c.age, c.token], 1) for i, c in enumerate(CROWD)]
    )
    table = pd.concat([c.subjects.assign(subject_id=i + 1) for i, c in enumerate(CROWD)])[
        ['subject_id', 'sex', 'start', 'end']
    ]
    return Cohort.from_rows(VOCAB, *rows.T, table, sex_tokens=False)


# ---- formulas


def test_exponential_risk_is_its_integral():
    "r_k / (r_k + r_d) (1 - exp(-(r_k + r_d) h)); death alone for death; nothing else competes."
    h = Hazards(wide([[0.1, 0.7, 0.02]]).log())
    got = frozen_risk(h, torch.ones(1, 3, dtype=torch.bool), 2, 10.0, torch.zeros(1).double())[0]
    for k in (0, 1):
        r = h.log_scale.exp()[0, k].item()
        assert got[k] == pytest.approx(
            integrate.quad(lambda t, r: r * np.exp(-(r + 0.02) * t), 0, 10, (r,))[0], abs=1e-12
        )
    assert got[0] == pytest.approx(0.582, abs=5e-4) and got[2] == pytest.approx(
        1 - np.exp(-0.2), abs=1e-12
    )
    none = frozen_risk(h, None, None, 10.0, torch.zeros(1).double())[0]
    assert none.tolist() == pytest.approx(
        (1 - np.exp(-10 * np.array([0.1, 0.7, 0.02]))).tolist(), abs=1e-12
    )


@given(
    shapes=st.lists(st.floats(-1.4, 1.4), min_size=3, max_size=3),
    begin=st.sampled_from([0.0, 0.3, 12.0]),
)
@examples(8)
def test_weibull_risk_is_its_integral(shapes, begin):
    "Against scipy.integrate.quad, conditional on survival to `begin`, for shapes of every kind."
    a, b = np.exp(shapes), np.array([0.05, 0.2, 0.03])
    got = frozen_risk(
        Hazards(wide([b.tolist()]).log(), wide([shapes])), None, 2, 10.0, wide([begin])
    )[0]

    def H(k, t):
        return b[k] * ((begin + t) ** a[k] - begin ** a[k])

    def density(v, k):  # t = 10 v^8 tames the pole at 0
        t = begin + 10 * v**8
        rivals = sum(H(j, 10 * v**8) for j in {k, 2})
        return 80 * v**7 * b[k] * a[k] * t ** (a[k] - 1) * np.exp(-rivals)

    for k in range(3):
        exact = integrate.quad(density, 0, 1, (k,), limit=400, epsabs=1e-10)[0]
        assert got[k] == pytest.approx(exact, abs=1e-5)


def test_next_event_is_not_risk():
    "Pins: 9.9 times too small at a total of 1 per year over 10 years, and ranks inverted."
    two, zero = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1).double()
    h = Hazards(wide([[0.002, 0.998]]).log())
    assert (1 - np.exp(-0.02)) / next_probability(h, two, None, 10.0, zero)[
        0, 0
    ].item() == pytest.approx(9.9, abs=0.01)
    a, b = (
        next_probability(Hazards(wide([[r, total - r]]).log()), two, None, 10.0, zero)[0, 0].item()
        for r, total in ((0.002, 0.2), (0.004, 2.0))
    )
    assert (a, b) == pytest.approx((0.0086, 0.0020), abs=5e-5)


@pytest.mark.parametrize('family, what, head', FAMILIES)
def test_agrees_with_predict(family, what, head):
    "Hazards and next-event probabilities at the landmark are those of the models' own `predict`."
    model = redraw(build(family, what, head))
    people = crowd()
    landmark = np.array([16_000, 11_000, 20_000, 15_000])
    own = model.predict(
        landmark_inputs(model.config.objective, known_at(people, landmark), landmark), 10.0
    )
    got = cif_next(model, people, landmark, 10)
    np.testing.assert_allclose(got.value, own.cif_next.numpy(), atol=1e-7)
    np.testing.assert_array_equal(got.why == 0, ~np.isnan(own.hazard.numpy()))
    hazards, begin = landmark_hazards(model, people, landmark)
    free = torch.from_numpy(got.why == 0)
    spent = hazards.cumulative_hazard(torch.full_like(begin, 10.0), begin)[free]
    np.testing.assert_allclose(spent, own.cumulative_hazard[free], rtol=1e-5)


# ---- random numbers and draws


def test_streams():
    """Uniform, never 0 or 1, uncorrelated between lanes, steps, draws and subjects, and a function
    of subject, draw and seed only."""
    n = 40_000
    key = streams(torch.arange(n) // 8, torch.arange(n) % 8, 3)
    assert len(key.unique()) == n and not torch.equal(
        key, streams(torch.arange(n) // 8, torch.arange(n) % 8, 4)
    )
    u = torch.cat([uniforms(key, 1, 3), uniforms(key, 2, 3)], 1)
    assert (
        0 < u.min()
        and u.max() < 1
        and stats.kstest(u.flatten()[::7].numpy(), 'uniform').pvalue > 1e-4
    )
    # itself, the subject before, the draw before
    both = torch.cat([u.T[:, 8:], u.T[:, :-8], u.T[:, 7:-1]])
    assert (torch.corrcoef(both) - torch.eye(18)).abs().max() < 5 / n**0.5
    lows, highs = uniforms(torch.arange(-300_000, 300_000), 0, 1).aminmax()
    assert 0 < lows and highs < 1 and torch.isfinite(lows.log()) and highs.log() < 0
    assert torch.equal(uniforms(key[9:11], 5, 2), uniforms(key, 5, 2)[9:11]) and torch.equal(
        streams(torch.tensor([7]), torch.tensor([2]), -5),
        streams(torch.tensor([7]), torch.tensor([2]), -5),
    )


@pytest.mark.parametrize('shapes', [None, [1.0, 1.0, 1.0], [1.7, 0.9, 2.4], [0.3, 0.3, 0.3]])
@pytest.mark.parametrize('begin', [0.0, 4.0])
def test_law_of_a_draw(shapes, begin):
    """KS of the waiting time, chi-square of the cause, hazard spent until the event:
    Exponential(1); conditional on `begin`."""
    n, b = 20_000, [0.03, 0.1, 0.01]
    h = Hazards(
        wide([b]).log().expand(n, 3), None if shapes is None else wide([shapes]).log().expand(n, 3)
    )
    t0 = torch.full((n,), begin).double()
    wait, cause = draw_next(
        h, t0, streams(torch.arange(n), torch.zeros(n, dtype=torch.int64), 1), 1
    )
    assert stats.kstest(h.cumulative_hazard(wait, t0).sum(-1).numpy(), 'expon').pvalue > 1e-4
    a = np.array(shapes or [1.0] * 3)

    def law(t):
        return 1 - np.exp(
            -sum(bk * ((begin + t) ** ak - begin**ak) for bk, ak in zip(b, a, strict=True))
        )

    assert stats.kstest(wait.numpy(), law).pvalue > 1e-4
    p = h[0].cif(3.0, begin).numpy()
    assert (
        stats.chisquare(
            np.r_[torch.bincount(cause[wait <= 3], minlength=3), (wait > 3).sum()],
            n * np.r_[p, 1 - p.sum()],
        ).pvalue
        > 1e-4
    )


def test_draws_at_the_edges():
    """No cause left: never; a cause without hazard: never, not even at the ends of the uniforms;
    the conditional formula of the pins."""
    ends = wide([[0.5, 2**-53], [0.5, 1 - 2**-53]])
    assert draw_exponential(wide([[0.0, 0.3, 0.0]] * 2), ends)[1].tolist() == [1, 1]
    assert draw_exponential(torch.zeros(2, 3).double(), ends)[0].tolist() == [np.inf] * 2
    u, t0 = wide([[0.3], [0.9], [1e-12]]), wide([0.0, 3.0, 1e-3])
    h = Hazards(wide([[0.2]] * 3).log(), wide([[1.7], [0.4], [3.0]]).log())
    exact = (t0 ** h.log_shape.exp()[:, 0] - u[:, 0].log() / 0.2) ** (
        1 / h.log_shape.exp()[:, 0]
    ) - t0
    torch.testing.assert_close(draw_weibull(h, t0, u)[0], exact, rtol=1e-9, atol=1e-12)
    assert (
        draw_weibull(
            Hazards(torch.full((1, 2), -torch.inf).double(), torch.zeros(1, 2).double()),
            wide([1.0]),
            wide([[0.5, 0.5]]),
        )[0].item()
        == np.inf
    )


# ---- cache


@pytest.mark.parametrize('family, what, head', FAMILIES)
@pytest.mark.parametrize('time_mode', ['relative', 'absolute'])
def test_cache_changes_nothing(family, what, head, time_mode):
    """The same futures from the same random numbers, cached or recomputed: 1e-6 days in float64,
    hazards within 1e-5 in float32."""
    model = redraw(build(family, what, head, time_mode=time_mode))
    people = crowd()
    landmark = np.array([16_000, 11_000, 20_000, 15_000])
    a, b = (
        sample_futures(model, people, landmark, 15, n=4, cache=c, batch_size=s)
        for c, s in ((True, 256), (False, 3))
    )
    assert len(a.token) > 20
    np.testing.assert_array_equal(a.token, b.token)
    np.testing.assert_array_equal(a.offsets, b.offsets)
    np.testing.assert_array_equal(a.ended, b.ended)
    np.testing.assert_allclose(a.age, b.age, atol=1e-6)
    assert_same_hazards(model.float(), people, landmark, 1e-5)


@pytest.mark.parametrize('mixer', sorted(MIXERS))
def test_cache_with_every_mixer(mixer):
    "Hazards along one path, cached and recomputed, within 1e-12 in float64 and 1e-5 in float32."
    model = redraw(build('delphi', 'competing', mixer=mixer))
    people = crowd()
    landmark = np.array([16_000, 11_000, 20_000, 15_000])
    assert_same_hazards(model, people, landmark, 1e-11)
    assert_same_hazards(model.float(), people, landmark, 1e-5)


@torch.no_grad()
def assert_same_hazards(model, people, landmark, tolerance):
    "Twelve positions are added to both memories; every look agrees, relative to the hazard."
    rules = Rules(False, 1000, True, 'random', 5.0)
    walks = [
        Walk(
            model,
            known_at(people, landmark),
            landmark,
            np.arange(4),
            np.zeros(4, int),
            10.0,
            0,
            replace(rules, cache=c),
        )
        for c in (True, False)
    ]
    rng = np.random.default_rng(0)
    for step in range(12):
        age = torch.full((4,), landmark.max() + 100.0 * (step + 1))  # rows change places below
        token = torch.from_numpy(rng.integers(1, K, 4))
        valid = torch.from_numpy((rng.random(4) < 0.7) | (model.config.objective != 'all_future'))
        if step == 6:
            for w in walks:
                w.memory.keep(torch.tensor([3, 1, 1, 0]))
        for w in walks:
            w.memory.add(token, age, valid)
        a, b = (w.memory.look(age + 5) for w in walks)
        for x, y in ((a.log_scale, b.log_scale), (a.log_shape, b.log_shape)):
            if x is not None:
                torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
    assert type(walks[0].memory) is Memory and type(walks[1].memory) is Histories


@pytest.mark.parametrize('family, what, head', FAMILIES)
def test_alone_or_in_company(family, what, head):
    """A person's futures depend on subject and seed, not on the batch, its size, its order or the
    number of futures."""
    model = redraw(build(family, what, head))
    people = crowd()
    landmark = np.array([16_000, 11_000, 20_000, 15_000])
    every = sample_futures(model, people, landmark, 10, n=6, seed=2)
    alone = sample_futures(model, people[2], landmark[2], 10, n=3, seed=2, batch_size=1)
    chosen = (every.person == 2) & (every.draw < 3)
    np.testing.assert_array_equal(every.token[chosen], alone.token)
    np.testing.assert_allclose(every.age[chosen], alone.age, atol=1e-6)
    turned = sample_futures(
        model, people[[3, 2, 1, 0]], landmark[::-1], 10, n=6, seed=2, batch_size=5
    )
    for i in range(4):
        np.testing.assert_array_equal(
            every.token[every.person == i], turned.token[turned.person == 3 - i]
        )
    other = sample_futures(model, people, landmark, 10, n=6, seed=3)
    assert len(other.token) != len(every.token) or (other.age != every.age).any()


# ---- laws of whole futures


@torch.no_grad()
def gaps(model, futures, most):
    """Total hazard between events along each future of one person, by the plain model on whole
    histories: draws from Exponential(1)."""
    past, at = futures.past, futures.offsets[:-1, None] + np.arange(most)
    token = futures.token[at]
    when = np.c_[np.full(len(at), futures.landmark[0]), futures.age[at]]
    n = len(at)
    base, spent = landmark_inputs(model.config.objective, past, futures.landmark), []
    clock = np.full(
        n,
        futures.landmark[0]
        if model.config.objective == 'all_future'
        else past.age[VOCAB.of_kind('disease')[past.token]].max(),
    )
    for j in range(most):
        seen = torch.cat([base.token.expand(n, -1), torch.from_numpy(token[:, :j].astype(int))], 1)
        age = torch.cat(
            [base.age.expand(n, -1), torch.from_numpy(when[:, 1 : j + 1].astype(np.float32))], 1
        )
        batch = LandmarkBatch(
            seen,
            age,
            base.sex.expand(n),
            torch.ones_like(seen, dtype=torch.bool),
            query_age=torch.from_numpy(when[:, j : j + 1].astype(np.float32)),
        )
        hidden = model(batch)
        had = torch.zeros(n, K, dtype=torch.bool).scatter_(1, seen, True)
        years, begin = (
            torch.from_numpy(x) / YEAR for x in (when[:, j + 1] - when[:, j], when[:, j] - clock)
        )
        state = hidden if hidden.ndim == 2 else hidden[:, -1]
        h = model.rates(state, batch.sex, batch.query_age[:, 0]).cumulative_hazard(years, begin)
        spent.append((h * (torch.from_numpy(CAUSE) & ~had)).sum(-1).numpy())
        clock = when[:, j + 1]
    return np.stack(spent, 1)


@pytest.mark.parametrize('family, what, head', [f for f in FAMILIES if f[1] != 'delphi'])
def test_gaps_are_exponential(family, what, head):
    """Time rescaling: the hazards between events that the plain model gives add up to independent
    draws from Exponential(1)."""
    model, people = redraw(build(family, what, head), rate=-2.0), person(LIFE[:2], n=1)
    with torch.no_grad():
        model.head.log_base_rate[DEATH] = -12.0  # so that nobody leaves early
    futures = sample_futures(
        model, people, 16_000, 120, n=400, no_events=None, budget=3, batch_size=400
    )
    assert (futures.ended == 2).all()
    spent = gaps(model, futures, 3)
    for j in range(3):
        assert stats.kstest(spent[:, j], 'expon').pvalue > 1e-4
    assert abs(np.corrcoef(spent.T) - np.eye(3)).max() < 5 / len(spent) ** 0.5


@pytest.mark.parametrize(
    'family, what', [('delphi', 'competing'), ('rounds', 'next_token'), ('rounds', 'all_future')]
)
def test_waiting_time_and_cause(family, what):
    """With constant hazards: KS of the first waiting time past the landmark, chi-square of its
    cause, through no-event tokens."""
    model = constant(build(family, what), {ASH: 0.2, BEECH: 0.1, DEATH: 0.05})
    futures = sample_futures(model, person(), 20_000.0, 99, n=2000, budget=1, batch_size=2000)
    first = futures.offsets[:-1][np.diff(futures.offsets) > 0]
    rates = np.array([0.2, 0.1, 0.05, 0.01, 0.01, 0.01, 0.01])
    total = rates.sum()
    assert (
        len(first) > 1990
        and stats.kstest(
            (futures.age[first] - 20_000) / YEAR, stats.expon(scale=1 / total).cdf
        ).pvalue
        > 1e-4
    )
    counts = np.bincount(futures.token[first], minlength=K)[
        [ASH, BEECH, DEATH, *(VOCAB.id(c) for c in ('Cedar', 'Dogwood', 'Elm', 'Fir'))]
    ]
    assert (
        counts.sum() == len(first)
        and stats.chisquare(counts, len(first) * rates / total).pvalue > 1e-4
    )


def test_weibull_waiting_time_through_no_event_tokens():
    """The clock runs on through no-event tokens, from the last disease; the draw is conditional on
    survival to the landmark."""
    model = constant(build('rounds', 'next_token', 'weibull'), {DEATH: 0.02})
    with torch.no_grad():
        model.head.shape_proj.weight.zero_()
        model.head.shape_proj.bias.fill_(np.arctanh(np.log(1.6) / 1.5))
    # two thousand days after Ash
    futures = sample_futures(model, person(LIFE[:2]), 14_000, 99, n=2000, budget=1, batch_size=2000)
    wait, t0, b = (futures.age[futures.offsets[:-1]] - 14_000) / YEAR, 2_000 / YEAR, 0.02 + 5 * 0.01
    assert stats.kstest(wait, lambda t: 1 - np.exp(-b * ((t0 + t) ** 1.6 - t0**1.6))).pvalue > 1e-4


@pytest.mark.parametrize(
    'family, what',
    [
        ('delphi', 'competing'),
        ('delphi', 'delphi'),
        ('rounds', 'next_token'),
        ('rounds', 'all_future'),
    ],
)
def test_risk_mc_is_risk_where_hazards_are_constant(family, what):
    "Within 3 standard errors, by compensator and by counting, for both families; .582, not .404."
    model, people = constant(build(family, what), {ASH: 0.1, DEATH: 0.02}), person()
    exact = risk(model, people, 20_000, 10).value[0]
    assert exact[ASH] == pytest.approx(0.582, abs=5e-4)
    for reduced in (True, False):
        found = risk_mc(model, people, 20_000, 10, n=1000, reduced=reduced, batch_size=1000)
        free = ~np.isnan(exact)
        assert (abs(found.value[0] - exact)[free] < 3 * found.standard_error[0][free] + 1e-12).all()
        assert abs(found.value[0, ASH] - 0.404) > 0.1


@pytest.mark.parametrize(
    'family, what, head',
    [
        ('delphi', 'competing', 'exponential'),
        ('rounds', 'next_token', 'weibull'),
        ('rounds', 'all_future', 'mixed'),
    ],
)
def test_compensator_is_unbiased(family, what, head):
    """Where hazards move with every event: the compensator and the count of independent futures
    agree for every code."""
    model, people = redraw(build(family, what, head)), person(LIFE[:2])
    a, b = (
        risk_mc(model, people, 16_000, 6, n=800, seed=s, reduced=r, batch_size=800)
        for s, r in ((1, True), (2, False))
    )
    free = ~np.isnan(a.value[0])
    z = ((a.value - b.value) / np.hypot(a.standard_error, b.standard_error))[0, free]
    assert stats.chi2.sf((z**2).sum(), free.sum()) > 1e-4 and free.sum() == 6
    # of what almost everybody gets, counting is the better estimate
    rare = np.nan_to_num(b.value[0], nan=1.0) < 0.5
    assert rare.any() and (a.standard_error[0, rare] < b.standard_error[0, rare]).all()


def test_standard_error_is_the_spread():
    "Over 16 seeds the estimates spread as the standard error says."
    model, people = redraw(build('delphi', 'competing')), person()
    found = [risk_mc(model, people, 16_000, 6, n=40, seed=s) for s in range(16)]
    spread = np.std([f.value[0, ASH] for f in found], ddof=1)
    said = np.mean([f.standard_error[0, ASH] for f in found])
    assert 0.5 < spread / said < 1.7


def test_counted_futures_are_risk_mc():
    "`Futures.risk` and `risk_mc(reduced=False)` count the same futures."
    model = redraw(build('rounds', 'next_token'))
    people = crowd()
    landmark = np.array([16_000, 11_000, 20_000, 15_000])
    a = sample_futures(model, people, landmark, 5, n=20, seed=4).risk()
    b = risk_mc(model, people, landmark, 5, n=20, seed=4, reduced=False, batch_size=7)
    np.testing.assert_allclose(a.value, b.value)
    np.testing.assert_allclose(a.standard_error, b.standard_error)
    np.testing.assert_array_equal(a.why, b.why)


# ---- what must never happen


@given(
    people=cohorts(),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(FAMILIES),
    when=st.floats(0, 1),
)
@examples(8)
def test_futures_are_lives(people, seed, kind, when):
    """Nothing follows death, ages rise from the landmark to the horizon, no code twice, only
    diseases and death, and a valid cohort."""
    model = redraw(_model(*kind))
    start, end = (people.subjects[c].to_numpy() for c in ('start', 'end'))
    landmark = start + np.floor(when * (end - start)).astype(int)
    futures = sample_futures(model, people, landmark, 8, n=3, seed=seed)
    had = codes_had(people, landmark)
    for i in range(len(futures)):
        token, age = (
            x[futures.offsets[i] : futures.offsets[i + 1]] for x in (futures.token, futures.age)
        )
        p = i // 3
        if futures.why[p]:
            assert len(token) == 0 and futures.ended[i] == 3
            continue
        assert (np.diff(np.r_[landmark[p], age]) > 0).all() and (
            age <= landmark[p] + 8 * YEAR
        ).all()
        assert CAUSE[token].all() and len(set(token)) == len(token) and not had[p, token].any()
        dead = np.flatnonzero(token == DEATH)
        assert len(dead) == (futures.ended[i] == 0) and (dead == len(token) - 1).all()
    if (futures.why == 0).any():
        written = futures.cohort(draw=1)
        assert (
            len(written) == (futures.why == 0).sum()
            and written.subjects.died.sum() == (futures.ended.reshape(-1, 3)[:, 1] == 0).sum()
        )
        at = landmark[futures.why == 0]
        # nothing falls on the landmark day
        np.testing.assert_array_equal(codes_had(written, at), had[futures.why == 0])


_MODELS = {}


def _model(*kind):
    if kind not in _MODELS:
        _MODELS[kind] = build(*kind)
    return _MODELS[kind]


def until_then(people, landmark):
    "The record as it stood on the landmark day, person by person."
    token, age = (
        [
            x[a:b][people.age[a:b] <= day]
            for a, b, day in zip(people.offsets, people.offsets[1:], landmark, strict=False)
        ]
        for x in (people.token, people.age)
    )
    offsets = np.cumsum([0] + [len(t) for t in token])
    return Cohort(
        people.vocab,
        np.concatenate(token),
        np.concatenate(age),
        offsets,
        people.subjects.assign(end=landmark.astype(np.int32), died=False),
    )


@given(people=cohorts(), kind=st.sampled_from(FAMILIES), when=st.floats(0, 1))
@examples(8)
def test_nothing_leaks(people, kind, when):
    """Events after the landmark, and when and how observation ended, change neither risk nor
    futures, bit for bit."""
    model = redraw(_model(*kind))
    start, end = (people.subjects[c].to_numpy() for c in ('start', 'end'))
    landmark = start + np.floor(when * (end - start)).astype(int)
    known = until_then(people, landmark)
    asked = (landmark < end) | ~people.subjects.died.to_numpy()
    if not asked.any():
        return
    for answer in (risk, cif_next):
        # the same people: other company may move the last bit
        a, b = (answer(model, c[asked], landmark[asked], 5) for c in (people, known))
        np.testing.assert_array_equal(a.value, b.value)
        np.testing.assert_array_equal(a.why, b.why)
    a, b = (
        (sample_futures(model, c[asked], landmark[asked], 5, n=2) for c in (people, known))
        if asked.any()
        else (None, None)
    )
    if a is not None:
        np.testing.assert_array_equal(a.age, b.age)
        np.testing.assert_array_equal(a.token, b.token)


@pytest.mark.parametrize('family, what, head', FAMILIES)
def test_later_diseases_do_not_leak(family, what, head):
    """The same for one life with diseases on both sides of the landmark, and for the past that goes
    into `Futures`."""
    model, whole, landmark = redraw(_model(family, what, head)), person(LIFE), np.array([13_000])
    early = until_then(whole, landmark)
    for a, b in (
        [answer(model, c, landmark, 10).value for c in (whole, early)]
        for answer in (risk, cif_next, lambda *x: risk_mc(*x, n=3))
    ):
        np.testing.assert_array_equal(a, b)
    a, b = (sample_futures(model, c, landmark, 10, n=3) for c in (whole, early))
    np.testing.assert_array_equal(a.age, b.age)
    np.testing.assert_array_equal(a.token, b.token)
    assert known_at(whole, landmark).token.tolist() == early.token.tolist() == a.past.token.tolist()


@given(people=cohorts(), kind=st.sampled_from(FAMILIES), when=st.floats(0, 1))
@examples(8)
def test_an_answer_or_a_reason(people, kind, when):
    "Every cell has a probability, or NaN and a reason; next events sum to at most 1."
    model = redraw(_model(*kind))
    start, end = (people.subjects[c].to_numpy() for c in ('start', 'end'))
    landmark = start + np.floor(when * (end - start)).astype(int)
    for found in (risk(model, people, landmark, 5), cif_next(model, people, landmark, 5)):
        answered = found.why == 0
        assert (
            (np.isnan(found.value) == ~answered).all()
            and (found.value[answered] >= 0).all()
            and (found.value[answered] <= 1).all()
        )
        assert (np.array(REASONS, dtype=object)[found.why] == found.reason).all() and (
            (found.reason != '') == ~answered
        ).all()
    assert (np.nansum(found.value, 1) <= 1 + 1e-5).all()  # to the accuracy of the quadrature


# ---- people at the edges


@pytest.mark.parametrize('family, what, head', FAMILIES)
def test_people_at_the_edges(family, what, head):
    """No history, one event, dead, too old, not yet and no longer observed: an answer or a reason;
    death's own risk is 1 - exp(-H)."""
    model = redraw(_model(family, what, head))
    table = pd.DataFrame(
        {
            'subject_id': [1, 2, 3, 4, 5, 6],
            'sex': ['unknown', 'male', 'male', 'female', 'female', 'female'],
            'start': [10_000] * 5 + [22_000],
            'end': [40_000, 40_000, 15_000, 40_000, 15_000, 40_000],
        }
    )
    people = as_cohort(VOCAB, np.array([(2, 12_000, ASH), (3, 15_000, DEATH)]), table)
    landmark = np.array([20_000, 20_000, 20_000, CENTURY + 1, 20_000, 20_000])
    row = [
        '',
        '',
        'dead at the landmark',
        'beyond the oldest age',
        'after the end of observation',
        'before entry',
    ]
    for answer in (risk, cif_next, lambda *a: risk_mc(*a, n=3)):
        found = answer(model, people, landmark, 10)
        assert (
            found.reason[:, BEECH].tolist() == row
            and (np.isnan(found.value[:, BEECH]) == [bool(r) for r in row]).all()
        )
        assert (
            found.reason[1, ASH] == 'had already'
            and np.isnan(found.value[1, ASH])
            and (found.reason[:, 2] == 'no disease').all()
        )
    assert (sample_futures(model, people, landmark, 10, n=2).ended.reshape(-1, 2)[2:] == 3).all()
    old = risk(model, people, landmark, 10, oldest=CENTURY + 2)
    assert old.reason[3, BEECH] == '' and np.isfinite(old.value[3, BEECH])
    hazards, begin = landmark_hazards(model, people[[0]], landmark[[0]])
    spent = hazards.cumulative_hazard(torch.full_like(begin, 10.0), begin)[0, DEATH]
    assert risk(model, people, landmark, 10).value[0, DEATH] == pytest.approx(
        1 - np.exp(-spent.item()), abs=1e-5
    )


def test_everybody_dead_or_nobody():
    "A cohort of the dead has reasons only, and no futures."
    model, people = redraw(build('delphi', 'competing')), person([(15_000, DEATH)], end=15_000)
    assert (
        np.isnan(risk(model, people, 15_000, 10).value).all()
        and np.isnan(risk_mc(model, people, 15_000, 10, n=2).value).all()
    )
    futures = sample_futures(model, people, 15_000, 10)
    assert (
        len(futures.token) == 0
        and len(futures.frame()) == 0
        and np.array(ENDED)[futures.ended].tolist() == ['not sampled']
    )


@pytest.mark.parametrize(
    'landmark, years, words',
    [
        (np.nan, 10, 'found landmark nan'),
        (-1, 10, 'expected days of age'),
        (60_000, 10, 'found landmark 60000'),
        (60, 10, 'not years: times 365.25'),
        (20_000, 0, 'found years=0'),
        (20_000, np.inf, 'found years=inf'),
        (20_000, np.nan, 'found years=nan'),
    ],
)
def test_wrong_questions(landmark, years, words):
    "What is no age or no horizon is an error that says so."
    model = build('delphi', 'competing')
    for answer in (risk, cif_next, risk_mc, sample_futures):
        with pytest.raises(ValueError, match=words):
            answer(model, person(), landmark, years)


def test_wrong_models_and_options():
    """Another vocabulary, a mask that reads targets, no futures, one future, unknown no-events:
    errors."""
    model = build('delphi', 'competing')
    with pytest.raises(ValueError, match='other codes than the model'):
        risk(model, person(vocab=make_vocab(['Ash'])), 20_000, 10)
    with pytest.raises(ValueError, match='first_occurrence'):
        risk(model, person(vocab=RECURRENT), 20_000, 10)
    with pytest.raises(ValueError, match='tie_mask'):
        risk(build('delphi', 'delphi', tie_mask='delphi'), person(), 20_000, 10)
    with pytest.raises(ValueError, match='n=0'):
        sample_futures(model, person(), 20_000, 10, n=0)
    with pytest.raises(ValueError, match='n=1'):
        risk_mc(model, person(), 20_000, 10, n=1)
    with pytest.raises(ValueError, match='no_events'):
        sample_futures(model, person(), 20_000, 10, no_events='sometimes')
    with pytest.raises(ValueError, match='budget=0'):
        sample_futures(model, person(), 20_000, 10, budget=0)
    with pytest.raises(ValueError, match='reached the budget'):
        risk_mc(redraw(model, rate=1.0), person(), 20_000, 10, n=5, budget=2)
    with pytest.raises(Exception, match="unknown code 'Ahs'"):
        risk_mc(model, person(), 20_000, 10, n=5, codes=['Ahs'])


def test_mode_of_the_model():
    "A model in training mode is asked at rest, without dropout, and left in training mode."
    model = redraw(build('delphi', 'competing', attention_dropout=0.5, mlp_dropout=0.5)).train()
    a, b = (risk(model, person(LIFE), 20_000, 10).value for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert model.training and np.array_equal(
        risk(model.eval(), person(LIFE), 20_000, 10).value, a, equal_nan=True
    )


# ---- switches


def test_repeats():
    """Codes come again where the vocabulary or the switch says so; a code already had then has a
    risk."""
    model = constant(build('delphi', 'competing', vocab=RECURRENT), {ASH: 0.8, DEATH: 0.001})
    people = person([(12_000, ASH)], vocab=RECURRENT)
    futures = sample_futures(model, people, 20_000, 10, n=20)
    assert np.mean(futures.token == ASH) * len(futures.token) / 20 > 4
    exact, found = risk(model, people, 20_000, 10), risk_mc(model, people, 20_000, 10, n=500)
    assert (
        abs(found.value - exact.value)[0, ASH] < 3 * found.standard_error[0, ASH] + 1e-9
        and exact.reason[0, ASH] == ''
    )
    once = sample_futures(model, people, 20_000, 10, n=20, repeats=False)
    assert (once.token != ASH).all() and risk_mc(
        model, people, 20_000, 10, n=2, repeats=False
    ).reason[0, ASH] == 'had already'


def test_no_event_tokens_of_delphi_are_drawn_and_not_shown():
    """Under `delphi` they compete as tokens, count towards the budget and never appear; elsewhere
    they are inserted."""
    rates = {VOCAB.no_event: 2.0, ASH: 0.1, DEATH: 0.001}
    model = constant(build('delphi', 'delphi'), rates)
    futures = sample_futures(model, person(), 20_000, 10, n=50, budget=5)
    assert (
        CAUSE[futures.token].all()
        and (futures.ended == 2).mean() > 0.9
        and len(futures.token) < 50 * 5
    )
    model = constant(build('delphi', 'competing'), rates)
    assert (sample_futures(model, person(), 20_000, 10, n=50, budget=50).ended != 2).all()


@torch.no_grad()
@pytest.mark.parametrize('how', ['random', 'regular', None])
def test_inserted_no_event_tokens(how):
    """One input for each quiet age, at that age, and the interval ends there; ages uniform over a
    century, as in training."""
    model = constant(build('delphi', 'competing'), {k: 1e-9 for k in range(K)})
    walk = Walk(
        model,
        known_at(person(), np.array([15_000])),
        np.array([15_000]),
        np.zeros(200, int),
        np.arange(200),
        30.0,
        0,
        Rules(False, 9, False, how, 5.0),
    )
    quiet = walk.no_events[walk.no_events <= 15_000 + 30 * YEAR]
    steps = list(walk)
    stops = torch.cat([s.age for s in steps])
    assert sorted(stops[stops < 15_000 + 30 * YEAR - 1e-6].tolist()) == sorted(quiet.tolist())
    if how == 'random':
        assert (
            stats.kstest(quiet.numpy(), stats.uniform(15_000, 30 * YEAR).cdf).pvalue > 1e-4
            and abs(len(quiet) / 200 - 6) < 0.5
        )
    if how == 'regular':
        assert len(quiet) == 200 * 6
    if how is None:
        assert len(quiet) == 0


def test_nothing_is_written_on_the_landmark_day():
    """Events within hours of the landmark are written on the days after it, in order, death last,
    not after the end."""
    model = constant(build('delphi', 'competing'), {k: 300.0 for k in np.flatnonzero(CAUSE)})
    futures = sample_futures(model, person(n=30), 20_000, 0.01)
    written = futures.cohort()
    late = written.age[VOCAB.of_kind('disease', 'death')[written.token]]
    assert (
        (futures.age < 20_001).sum() > 10
        and late.min() == 20_001
        and late.max() <= 20_003
        and len(late) == len(futures.token)
    )
    assert not codes_had(written, np.full(30, 20_000))[:, CAUSE].any()


def test_codes_asked_for():
    "Only these are summed; the others have a reason."
    model, people = redraw(build('delphi', 'competing')), person()
    some, every = (
        risk_mc(model, people, 16_000, 6, n=30, codes=c) for c in (['Beech', 'Death'], None)
    )
    assert (
        some.value[0, BEECH] == every.value[0, BEECH]
        and some.reason[0, ASH] == 'not asked for'
        and some.reason[0, 0] == 'no disease'
    )
    assert some.frame(['Beech', 'Ash']).reason.tolist() == ['', 'not asked for']


def test_frames():
    "Tidy tables with a row for each person and code, and for each event."
    model = redraw(build('delphi', 'competing'))
    people = crowd()
    landmark = np.array([16_000, 11_000, 20_000, 15_000])
    table = risk(model, people, landmark, 5).frame()
    assert len(table) == 4 * 7 and table.columns.tolist() == [
        'subject_id',
        'landmark',
        'code',
        'risk',
        'reason',
    ]
    futures = sample_futures(model, people, landmark, 5, n=3)
    table = futures.frame()
    assert (
        table.subject_id.between(1, 4).all()
        and table.draw.between(0, 2).all()
        and len(table) == len(futures.token)
        and table.code.isin(VOCAB.names).all()
    )


def test_landmark_within_a_day_is_the_day():
    "21,000.75 is the day 21,000: what happened on it is known."
    model, people = redraw(build('delphi', 'competing')), person(LIFE)
    np.testing.assert_array_equal(
        risk(model, people, 15_000.75, 5).value, risk(model, people, 15_000, 5).value
    )
    assert (
        risk(model, people, 15_000, 5).reason[0, BEECH] == 'had already'
        and risk(model, people, 14_999, 5).reason[0, BEECH] == ''
    )


# ---- the truth

WORLD, PEOPLE = make_world(), simulate(600, seed=5)
ENTRY = PEOPLE.subjects.start.to_numpy(dtype=np.int64)
FUTURES = oracle_futures(WORLD, PEOPLE, ENTRY, 8, n=10)


def test_oracle_reproduces_the_incidence():
    """Events in the eight years after entry, code by code; frozen hazards and next events expect
    fewer."""
    cause = PEOPLE.vocab.of_kind('disease', 'death')
    came = came_within(PEOPLE, ENTRY, 8).sum(0)[cause]
    expected = np.nansum(FUTURES.risk().value, 0)[cause]
    z = (came - expected) / np.sqrt(expected * 1.1)
    assert (
        stats.chi2.sf((z**2).sum(), len(z)) > 1e-4
        and abs(came.sum() - expected.sum()) < 4 * came.sum() ** 0.5
    )
    log_hazard = np.nan_to_num(oracle_log_hazard(WORLD, PEOPLE, ENTRY), nan=-np.inf, neginf=-np.inf)
    truth = Hazards(torch.from_numpy(log_hazard))
    frozen, sold = (
        f(
            truth,
            truth.log_scale > -torch.inf,
            PEOPLE.vocab.death,
            8.0,
            torch.zeros(len(PEOPLE)).double(),
        )
        .sum()
        .item()
        for f in (frozen_risk, next_probability)
    )
    assert sold < 0.45 * came.sum() < 0.9 * frozen < 0.9 * 0.9 * came.sum()


def test_oracle_hazard_spent_is_exponential():
    """The true total own hazard spent until the first jump is a draw from Exponential(1), and first
    jumps in a year come at the true rate."""
    first = FUTURES.offsets[:-1]
    has = np.diff(FUTURES.offsets) > 0
    person_of = np.flatnonzero(has) // FUTURES.n
    sex = PEOPLE.subjects.sex.cat.codes.to_numpy()
    had = codes_had(PEOPLE, ENTRY)[:, PEOPLE.vocab.of_kind('disease', 'death')]
    spent = WORLD.own_cumulative(
        ENTRY[person_of] / YEAR, FUTURES.age[first[has]] / YEAR, sex[person_of], had[person_of]
    ).sum(1)
    limit = WORLD.own_cumulative(ENTRY / YEAR, ENTRY / YEAR + 8, sex, had).sum(1)
    inside = spent < limit.min()  # censored at the horizon: compare below the smallest limit
    assert stats.kstest(spent[inside], stats.truncexpon(limit.min()).cdf).pvalue > 1e-4
    assert abs(inside.sum() - len(FUTURES) * (1 - np.exp(-limit.min()))) < 5 * len(FUTURES) ** 0.5


def test_oracle_one_code_at_a_time():
    """Without ties the hazards are the same: as many first events of each code in a short time, and
    never two on a day."""
    two = [
        oracle_futures(WORLD, PEOPLE, ENTRY, 1, n=20, seed=s, ties=t)
        for s, t in ((1, True), (2, False))
    ]
    counts = np.array([np.bincount(f.token, minlength=len(PEOPLE.vocab)) for f in two])[
        :, PEOPLE.vocab.of_kind('disease', 'death')
    ]
    z = (counts[0] - counts[1]) / np.sqrt(np.maximum(counts.sum(0), 1))
    assert (
        stats.chi2.sf((z**2).sum(), len(z)) > 1e-4
        and abs(counts[0].sum() - counts[1].sum()) < 4 * counts.sum() ** 0.5
    )
    together = [np.sum((np.diff(f.age) == 0) & (np.diff(f.row) == 0)) for f in two]
    assert together[0] > 50 and together[1] == 0


def test_oracle_futures_are_lives():
    """No code twice, none of the other sex, death last, nothing for who is not there; the same
    person alone and in company."""
    had = codes_had(PEOPLE, ENTRY)
    assert (
        not had[FUTURES.person, FUTURES.token].any()
        and not pd.DataFrame({'r': FUTURES.row, 't': FUTURES.token}).duplicated().any()
    )
    last = np.r_[FUTURES.row[1:] != FUTURES.row[:-1], True]
    dead = FUTURES.token == PEOPLE.vocab.death
    assert (
        (last | ~dead).all()
        and dead.sum() == (FUTURES.ended == 0).sum()
        and (np.diff(FUTURES.age)[~last[:-1]] >= 0).all()
    )
    female = PEOPLE.subjects.sex.eq('female').to_numpy()[FUTURES.person]
    assert not (female & np.isin(FUTURES.token, [PEOPLE.vocab.id('Prostate cancer')])).any()
    alone = oracle_futures(WORLD, PEOPLE[7], ENTRY[7], 8, n=10)
    np.testing.assert_array_equal(alone.age, FUTURES.age[FUTURES.person == 7])
    FUTURES.cohort(draw=3)
    with pytest.raises(ValueError, match='two sexes'):
        oracle_futures(WORLD, person(sex='unknown', vocab=PEOPLE.vocab), 20_000, 10)
    with pytest.raises(ValueError, match='45 causes'):
        oracle_futures(WORLD, person(), 20_000, 10)


def test_every_future_ends():
    """At its death, at the horizon, or at its last event where it was cut short; who has none is
    left out."""
    ends = FUTURES.ends()
    assert len(ends) == len(FUTURES) and set(ends.how) == {'death', 'horizon'}
    until = np.repeat(ENTRY + 8 * YEAR, FUTURES.n)
    died = (ends.how == 'death').to_numpy()
    np.testing.assert_array_equal(ends.age[~died], until[~died])
    np.testing.assert_array_equal(ends.age[died], FUTURES.age[FUTURES.token == PEOPLE.vocab.death])
    model = redraw(build('delphi', 'competing'), rate=1.0)
    model.head.log_base_rate.data[VOCAB.death] = -30.0
    cut = sample_futures(model, person(), 20_000, 100, n=2, budget=3)
    assert cut.ends().how.tolist() == ['budget'] * 2
    assert cut.ends().age.tolist() == cut.age.reshape(2, 3).max(1).tolist()
    gone = oracle_futures(WORLD, PEOPLE[:3], ENTRY[:3] - [0, 9999, 0], 8, n=2)
    assert gone.ends().subject_id.tolist() == [1, 1, 3, 3]


def test_a_future_is_written_as_long_as_it_was_drawn():
    """A draw that is not there is refused; one that was cut short ends at its last event; nobody
    outlives the oldest age of a cohort."""
    with pytest.raises(ValueError, match='draw=10; expected 0 to 9'):
        FUTURES.cohort(draw=10)
    with pytest.raises(ValueError, match='n=0'):
        oracle_futures(WORLD, PEOPLE, ENTRY, 8, n=0)
    model = redraw(build('delphi', 'competing'), rate=1.0)
    model.head.log_base_rate.data[VOCAB.death] = -30.0
    cut = sample_futures(model, person(), 20_000, 100, budget=2)
    assert cut.ended.tolist() == [2] and cut.cohort().subjects.end.item() == np.ceil(cut.age.max())
    old = sample_futures(redraw(model, rate=-5.0), person(end=36_000), 36_000, 150, n=20)
    assert all(old.cohort(i).subjects.end.max() <= 54_787 for i in range(20))


def test_modes_are_put_back():
    model = redraw(build('delphi', 'competing')).train()
    model.blocks[0].eval()
    risk(model, person(), 20_000, 10)
    assert model.training and not model.blocks[0].training
