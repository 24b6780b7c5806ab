"""An evaluation is put together from the right pieces: each number is found again by its own
way."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from delphi_traj.data.codes import make_vocab
from delphi_traj.data.events import days_of_years, years_of_days
from delphi_traj.data.files import read_frame
from delphi_traj.data.simulator import make_world, oracle_nll, simulate
from delphi_traj.evaluation.baseline import AgeSexBaseline
from delphi_traj.evaluation.comparison import (
    evaluate,
    incidence,
    predictor_likelihoods,
    predictor_scores,
)
from delphi_traj.evaluation.metrics import (
    NOT_FOLLOWED,
    age_and_sex,
    bootstrap_lead,
    bootstrap_macro,
    free_of,
    landmark_auc,
    landmark_outcome,
    log_hazard_at,
    macro_auc,
    model_nll,
    multiplicities,
    outcomes_at,
    paired_differences,
    rows_at,
    stacked,
    weighted_auc,
    without_auc,
)
from delphi_traj.evaluation.oracle import oracle_log_hazard, oracle_risk
from delphi_traj.models.delphi import Delphi, DelphiConfig


@pytest.fixture(scope='module')
def case():
    """400 people, a world, a baseline from others, and a model that knows nothing but is not
    constant."""
    people, others = simulate(400, 5), simulate(800, 6)
    torch.manual_seed(0)
    model = Delphi(
        DelphiConfig(len(people.vocab), d_model=12, n_head=2, n_layer=1, objective='competing'),
        people.vocab,
    )
    with torch.no_grad():
        [p.normal_(std=0.3) for p in model.parameters()]
    return people, make_world(), AgeSexBaseline.fit(others), model


OFFSETS = (0.0, 4.0)


@pytest.fixture(scope='module')
def rows(case):
    "Person and landmark of every row, offset by offset."
    parts = [rows_at(case[0], o) for o in OFFSETS]
    return [np.concatenate(x) for x in zip(*parts, strict=True)], parts


def test_every_predictor_is_asked_about_the_person_of_the_row(case, rows):
    people, world, baseline, model = case
    (person, landmark), _ = rows
    found = predictor_scores(
        {'model': model, 'twin': model}, baseline, world, people[person], landmark, 5.0
    )
    assert list(found) == ['model', 'twin', 'oracle', 'age and sex']
    sex = np.array([people.subjects.sex.cat.codes.iloc[i] for i in person])
    assert 0 < sex.mean() < 1
    np.testing.assert_allclose(found['age and sex'], baseline.log_hazard(landmark, sex))
    truth = oracle_risk(world, people[person], landmark, 5.0, n=20, shared=True)
    with np.errstate(divide='ignore'):
        np.testing.assert_allclose(found['oracle'], np.log(truth / 5), rtol=1e-9)
    one = int(len(person) // 2)
    np.testing.assert_allclose(
        found['model'][[one]],
        log_hazard_at(model, people[person[[one]]], landmark[[one]], years=5.0),
        rtol=1e-4,
    )


def test_likelihoods_stand_in_the_order_of_the_scores(case):
    people, world, baseline, model = case
    found = predictor_likelihoods({'model': model}, baseline, world, people)
    expected = [model_nll(model, people)['total'], oracle_nll(world, people), baseline.nll(people)]
    # float32 sums may be taken in another order
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(set(np.round(found, 3))) == 3


def test_outcomes_of_landmarks_are_stacked(case, rows):
    people = case[0]
    apart = [landmark_outcome(people[p], at, 5.0) for p, at in rows[1]]
    found = stacked(apart)
    for name in ('at_risk', 'event', 'weight'):
        together = np.vstack([getattr(o, name) for o in apart])
        np.testing.assert_allclose(getattr(found, name), together, rtol=1e-12)
    assert found.n_censored == sum(o.n_censored for o in apart) > apart[0].n_censored


def test_an_evaluation_is_its_pieces(case, rows):
    "AUC, counts and intervals; people, not rows, are drawn for the intervals."
    people, world, baseline, model = case
    (person, landmark), parts = rows
    found = evaluate(
        model, people, baseline=baseline, world=world, offsets=OFFSETS, n_boot=50, seed=3
    )
    outcome = stacked([landmark_outcome(people[p], at, 5.0) for p, at in parts])
    scores = predictor_scores({'model': model}, baseline, world, people[person], landmark, 5.0)
    by_people = bootstrap_lead(scores, outcome, person, 50, 3, 10)
    by_rows = bootstrap_lead(scores, outcome, np.arange(len(person)), 50, 3, 10)
    for column in by_people:
        np.testing.assert_allclose(found.summary[column], by_people[column], rtol=1e-9)
    assert not np.allclose(found.summary.low, by_rows.low)
    for name, s in scores.items():
        np.testing.assert_allclose(
            found.per_code[name], landmark_auc(s, outcome, 10).auc, rtol=1e-9
        )
    assert (
        found.counts['censored_rows'] == outcome.n_censored
        and found.counts['rows'] == len(person) > found.counts['people']
    )
    assert found.counts['people'] == len(set(person)) and found.counts['cases'] == int(
        outcome.event.sum()
    )
    pairs = found.differences.set_index(['predictor', 'against']).difference
    assert len(pairs) == 3
    for (a, b), d in pairs.items():
        assert np.isclose(d, found.summary.macro_auc[a] - found.summary.macro_auc[b], atol=1e-12)


# Years and days


def test_no_span_of_calendar_years_is_shorter_than_its_days():
    first = np.arange('1901-03-01', '1990-03-01', 97, dtype='datetime64[D]')
    month = first.astype('datetime64[M]')
    for years in range(1, 21):
        later = (month + 12 * years).astype('datetime64[D]') + (
            first - month.astype('datetime64[D]')
        )
        assert ((later - first).astype(int) >= days_of_years(years)).all()


def test_days_of_years_is_exact_for_whole_days_and_takes_arrays():
    days = np.arange(40_000)
    assert (days_of_years(days / 365.25) == days).all()
    assert (
        isinstance(days_of_years(5), int)
        and days_of_years(5) == 1826
        and days_of_years([1, 7]).tolist() == [365, 2556]
    )
    years = np.arange(150)
    assert (years_of_days(days_of_years(years)) == years).all()
    assert (years_of_days(days_of_years(years[1:]) - 1) == years[:-1]).all()


# Follow-up and horizon

CODES = make_vocab(['A', 'B'])


def study(n=400, seed=0, length=1826, late_death=False):
    "Everybody is followed for `length` days from the day 18,000, or to death; exponential times."
    rng = np.random.default_rng(seed)
    a, dead = rng.exponential(15 * 365, n), rng.exponential(40 * 365, n)
    last = np.minimum(dead, length).astype(int) + 1
    last[dead >= length] = length
    rows = [(i, 18_000 + int(t) + 1, 'A') for i, t in enumerate(a) if int(t) + 1 <= last[i]]
    rows += [(i, 18_000 + last[i], 'Death') for i in np.flatnonzero(dead < length)]
    if late_death:
        last[0] = length + 1
        rows = [r for r in rows if r[0] != 0] + [(0, 18_000 + last[0], 'Death')]
    sex = np.where(rng.random(n) < 0.5, 'female', 'male')
    windows = pd.DataFrame(dict(subject_id=np.arange(n), sex=sex, start=18_000, end=18_000 + last))
    return read_frame(
        pd.DataFrame(rows, columns=['subject_id', 'age', 'code']), windows, vocab=CODES
    )


def some_scores(outcome, seed=0):
    return np.random.default_rng(seed).random(outcome.at_risk.shape)


def test_a_horizon_equal_to_the_follow_up_is_reached():
    "1,826 days of follow-up and five years: as with 4.99 years, nobody is censored."
    people = study()
    just, less = (landmark_outcome(people, 18_000, years) for years in (5.0, 4.9993))
    assert just.n_censored == less.n_censored == 0
    assert (just.weight[just.at_risk] == 1).all()
    score = some_scores(just)
    k = CODES.id('A')
    expected = roc_auc_score(just.event[:, k], score[:, k])
    found = landmark_auc(score, just).set_index('code').auc
    assert np.isclose(found[k], expected, atol=1e-12)
    assert np.isclose(
        macro_auc(landmark_auc(score, less)), macro_auc(landmark_auc(score, just)), atol=0.01
    )


@pytest.mark.parametrize('years', (5.01, 6.0, 40.0))
@pytest.mark.parametrize('late_death', (False, True))
def test_no_auc_where_nobody_is_followed_to_the_horizon(years, late_death):
    people = study(late_death=late_death)
    outcome = landmark_outcome(people, 18_000, years)
    score = some_scores(outcome)
    assert outcome.n_censored > 200
    table = landmark_auc(score, outcome)
    assert len(table) == 0 and np.isnan(macro_auc(table)) and table.attrs['left_out'] == 3
    left = without_auc(outcome).set_index('code')
    assert left.reason[CODES.id('A')] == left.reason[CODES.death] == NOT_FOLLOWED
    assert left.reason[CODES.id('B')] == 'fewer than 10 cases'
    draws = multiplicities(np.arange(len(people)), 50)
    assert np.isnan(bootstrap_macro(score, outcome, draws)).all()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        lead = bootstrap_lead(
            {'model': score, 'oracle': score, 'age and sex': score}, outcome, np.arange(len(people))
        )
    assert lead.isna().all().all()


def test_one_landmark_too_late_is_not_hidden_by_another():
    """At entry five years are known; two years later they are not, and rows of both stand in one
    table."""
    people = study()
    _, _, outcome = outcomes_at(people, (0.0, 2.0), 5.0)
    assert len(landmark_auc(some_scores(outcome), outcome)) == 0
    assert NOT_FOLLOWED in set(without_auc(outcome).reason)
    assert len(landmark_auc(some_scores(o := outcomes_at(people, (0.0, 2.0), 2.0)[2]), o))


def test_everybody_dead_and_nobody_censored_has_an_answer():
    n = 30
    rows = [(i, 18_100 + i, 'A') for i in range(12)] + [(i, 18_300 + i, 'Death') for i in range(n)]
    windows = pd.DataFrame(
        dict(subject_id=range(n), sex='female', start=18_000, end=[18_300 + i for i in range(n)])
    )
    people = read_frame(
        pd.DataFrame(rows, columns=['subject_id', 'age', 'code']), windows, vocab=CODES
    )
    outcome = landmark_outcome(people, 18_000, 5.0)
    assert landmark_auc(some_scores(outcome), outcome).code.tolist() == [CODES.id('A')]
    assert 'no control' in without_auc(outcome).set_index('code').reason[CODES.death]


def test_a_horizon_of_no_day_is_refused():
    for years in (0.0, -1.0, 1 / 400):
        with pytest.raises(ValueError, match='horizon'):
            landmark_outcome(study(), 18_000, years)
    for years in (np.nan, np.inf):
        with pytest.raises(ValueError, match='finite'):
            landmark_outcome(study(), 18_000, years)


def test_an_evaluation_beyond_the_follow_up_says_why(case):
    people, world, baseline, model = case
    found = evaluate(
        model, people, baseline=baseline, world=world, offsets=0.0, years=40.0, n_boot=50
    )
    assert found.summary.drop(columns='competing_nll').isna().all().all()
    assert found.counts['codes_judged'] == 0 and len(found.per_code) == 0
    assert (
        NOT_FOLLOWED in set(found.without_auc.reason) and found.differences.difference.isna().all()
    )


# Strata


def test_strata_have_weights_of_their_own():
    people = simulate(600, 3)
    start = people.subjects.start.to_numpy()
    label = age_and_sex(people, start)
    found = landmark_outcome(people, start, 12.0, label)
    for s in np.unique(label):
        own = np.flatnonzero(label == s)
        assert len(own) >= 100
        alone = landmark_outcome(people[own], start[own], 12.0)
        np.testing.assert_allclose(found.weight[own], alone.weight, rtol=1e-12)
    one = landmark_outcome(people, start, 12.0)
    assert (found.event == one.event).all() and abs(found.weight - one.weight).max() > 0.01


def test_strata_are_bands_of_the_age_at_the_landmark():
    people = simulate(400, 3)
    label = age_and_sex(people, days_of_years(50), least=1)
    assert set(label) == {'female from 50', 'male from 50'}


def test_missing_or_misshapen_strata_are_refused():
    people = study()
    with pytest.raises(ValueError, match='expected one for each of 400'):
        landmark_outcome(people, 18_000, 5.0, ['a'])
    label = np.array(['a', None] * 200, dtype=object)
    with pytest.raises(ValueError, match='200 rows without a stratum'):
        landmark_outcome(people, 18_000, 5.0, label)
    with pytest.raises(ValueError, match="found by='age'"):
        outcomes_at(people, 0.0, 5.0, by='age')


def test_where_age_decides_who_is_censored_only_strata_find_the_share(case):
    people = simulate(4000, 12)
    entry, k = people.subjects.start.to_numpy(), people.vocab.death
    old = entry >= days_of_years(50)
    stay = days_of_years(np.random.default_rng(1).exponential(1 / np.where(old, 0.2, 0.01)))
    last = np.minimum(people.subjects.end, entry + 1 + stay).to_numpy()
    keep = people.age <= last[people.person]
    subject = people.subjects.subject_id.to_numpy()[people.person[keep]]
    windows = people.subjects.drop(columns='died').assign(end=last)
    left = type(people).from_rows(
        people.vocab, subject, people.age[keep], people.token[keep], windows
    )

    def share(cohort, label=None):
        o = landmark_outcome(cohort, entry, 8.0, label)
        return (o.weight * o.event)[:, k].sum() / o.weight[:, k].sum()

    truth, stratified = share(people), share(left, age_and_sex(left, entry))
    assert share(left) < 0.85 * truth and abs(stratified / truth - 1) < 0.06


# The truth as a predictor


def test_shared_futures_are_unbiased_for_each_person():
    people, world = simulate(40, 5), make_world()
    start = people.subjects.start.to_numpy()
    many = np.stack(
        [oracle_risk(world, people, start, 8.0, n=5, seed=s, shared=True) for s in range(60)]
    )
    alone = np.stack([oracle_risk(world, people, start, 8.0, n=5, seed=s) for s in range(100, 160)])
    k = free_of(people, start)
    error = np.sqrt((many.var(0) + alone.var(0)) / 60)[k]
    z = (many.mean(0) - alone.mean(0))[k] / np.maximum(error, 1e-12)
    assert abs(z.mean()) < 0.3 and 0.7 < z[error > 1e-9].std() < 1.3


def test_true_risks_rank_better_than_the_hazards_of_the_day():
    people, world = simulate(3000, 21), make_world()
    start = people.subjects.start.to_numpy()
    outcome = landmark_outcome(people, start, 8.0)
    k = np.flatnonzero(outcome.event.sum(0) >= 10)
    scores = {
        'risk': oracle_risk(world, people, start, 8.0, n=10, shared=True),
        'hazard': oracle_log_hazard(world, people, start),
    }
    draws = multiplicities(np.arange(len(people)), 50)
    pair = paired_differences(
        {n: bootstrap_macro(s, outcome, draws) for n, s in scores.items()}
    ).iloc[0]
    assert len(k) > 40 and pair.difference > 0.003 and pair.low > 0


def test_risk_of_a_constant_hazard_is_its_formula():
    "One disease at .1 a year, death at .05, nothing grows and nothing acts on anything."
    from dataclasses import replace

    world, people = make_world(), simulate(300, 5)
    rate = np.r_[np.log(0.1), np.full(43, -30.0), np.log(0.05)]
    world = replace(
        world,
        log_rate=rate,
        slope=np.full(45, 1e-6),
        by_sex=np.zeros((45, 2)),
        effect=np.zeros((45, 45)),
        together=np.zeros((45, 45)),
    )
    start, k = people.subjects.start.to_numpy(), np.flatnonzero(people.vocab.of_kind('disease'))[0]
    free = free_of(people, start)[:, k]
    for shared in (False, True):
        risk = oracle_risk(world, people, start, 6.0, n=100, shared=shared)
        assert np.allclose(risk[:, people.vocab.death], 1 - np.exp(-0.05 * 6), rtol=1e-3)
        assert abs(risk[free, k].mean() - 0.1 / 0.15 * (1 - np.exp(-0.15 * 6))) < 0.01


def test_a_disease_that_is_brought_along_acts_on_the_others():
    "The first disease brings the second, the second makes the third thirty times as likely."
    from dataclasses import replace

    world, people = make_world(), simulate(200, 5)
    rate = np.r_[np.log(0.2), -30.0, np.log(0.01), np.full(41, -30.0), np.log(0.001)]
    together, effect = np.zeros((45, 45)), np.zeros((45, 45))
    together[0, 1], effect[2, 1] = 1, 3.4
    world = replace(
        world, log_rate=rate, slope=np.full(45, 1e-6), by_sex=np.zeros((45, 2)), effect=effect
    )
    start, k = people.subjects.start.to_numpy(), np.flatnonzero(people.vocab.of_kind('disease'))[:3]
    free = free_of(people, start)[:, k].all(1)
    for shared in (False, True):
        alone, brought = (
            oracle_risk(replace(world, together=t), people, start, 5.0, n=40, shared=shared)[
                free, k[2]
            ].mean()
            for t in (np.zeros((45, 45)), together)
        )
        assert abs(alone - (1 - np.exp(-0.05))) < 0.002 and brought > 5 * alone


def test_people_of_unknown_sex_have_no_true_risk():
    people = simulate(50, 5)
    sex = people.subjects.sex.cat.set_categories(people.subjects.sex.cat.categories).where(
        people.subjects.subject_id > 1, 'unknown'
    )
    unknown = type(people)(
        people.vocab, people.token, people.age, people.offsets, people.subjects.assign(sex=sex)
    )
    with pytest.raises(ValueError, match='unknown sex'):
        oracle_risk(make_world(), unknown, 55 * 365, 5.0)


# Intervals and pairs


def test_few_replicates_are_refused_and_none_are_allowed(case):
    people, _, baseline, model = case
    for n in (1, 5, 49):
        with pytest.raises(ValueError, match='at least 50 replicates'):
            evaluate(model, people, n_boot=n)
    none = evaluate(
        model, people[:150], baseline=baseline, offsets=0.0, n_boot=0, min_cases=5
    ).summary
    assert none.macro_auc.notna().all() and none[['low', 'high']].isna().all().all()


def test_an_interval_of_fifty_replicates_holds_the_estimate():
    people = study(1000, 4)
    outcome = landmark_outcome(people, 18_000, 5.0)
    for seed in range(20):
        lead = bootstrap_lead(
            {'model': some_scores(outcome, seed)}, outcome, np.arange(1000), 50, seed
        )
        assert (lead.low <= lead.macro_auc).all() and (lead.macro_auc <= lead.high).all()


def test_a_paired_interval_is_narrower_than_the_marginal_ones():
    people = simulate(800, 9)
    start = people.subjects.start.to_numpy()
    outcome, draws = landmark_outcome(people, start, 8.0), multiplicities(np.arange(800), 100)
    truth = oracle_log_hazard(make_world(), people, start)
    near = truth + np.random.default_rng(0).normal(0, 0.2, truth.shape)
    macro = {
        'truth': bootstrap_macro(truth, outcome, draws),
        'near': bootstrap_macro(near, outcome, draws),
    }
    pair = paired_differences(macro).iloc[0]
    assert (pair.predictor, pair.against) == ('truth', 'near')
    assert np.isclose(pair.difference, macro['truth'][0] - macro['near'][0])
    low, high = np.percentile(macro['truth'][1:] - macro['near'][1:], [2.5, 97.5])
    assert np.allclose([pair.low, pair.high], [low, high])
    assert pair.high - pair.low < 0.7 * np.subtract(*np.percentile(macro['truth'][1:], [97.5, 2.5]))


def test_no_share_where_the_oracle_is_not_ahead():
    people = study(600, 2)
    outcome = landmark_outcome(people, 18_000, 5.0)
    same = some_scores(outcome)
    lead = bootstrap_lead(
        {'oracle': same, 'age and sex': same, 'model': some_scores(outcome, 1)},
        outcome,
        np.arange(600),
    )
    assert (
        lead.share.isna().all()
        and lead.macro_auc.notna().all()
        and (lead.ahead['age and sex'] == 0)
    )


# Windows of rates


@pytest.mark.parametrize('years', (1.0, 2.0, 0.5))
def test_windows_tile_the_time(years):
    """An event on any day is counted once, and person-years are those lived; with a death on the
    last day too."""
    k = CODES.id('A')
    days = [
        1,
        2,
        182,
        183,
        184,
        364,
        365,
        366,
        367,
        730,
        731,
        732,
        1095,
        1096,
        1097,
        1460,
        1461,
        1462,
        2191,
        2192,
        2922,
    ]
    for off in days:
        for end, death in ((4000, False), (off, True), (off, False), (off + 1, False)):
            rows = (
                [(1, 18_000 + off, 'A')]
                + [(1, 18_000 + end, 'Death')] * death
                + [(2, 18_010, 'Death')]
            )
            windows = pd.DataFrame(
                dict(subject_id=[1, 2], sex='male', start=18_000, end=[18_000 + end, 18_010])
            )
            cohort = read_frame(
                pd.DataFrame(rows, columns=['subject_id', 'age', 'code']), windows, vocab=CODES
            )[:1]
            person, landmark = rows_at(cohort, np.arange(0, 30, years))
            table = incidence(cohort[person], landmark, {}, k, years)
            assert table.events.sum() == 1, (off, end)
            assert np.isclose(table.years.sum() * 365.25, off)
            if death:
                assert incidence(cohort[person], landmark, {}, CODES.death, years).events.sum() == 1


def test_rates_of_nobody_at_risk_are_no_rows():
    people = study(50)
    with_a = people[np.unique(people.person[people.token == CODES.id('A')])]
    end = with_a.subjects.end.to_numpy()
    assert len(incidence(with_a, end - 1, {}, CODES.id('A'))) <= len(with_a)
    gone = incidence(with_a, end, {}, CODES.id('A'))  # nobody is followed beyond the end
    assert len(gone) == 0


def test_a_landmark_at_an_age_is_in_the_band_of_that_age():
    people = simulate(300, 2)
    there = np.flatnonzero(
        (people.subjects.start <= days_of_years(55)) & (people.subjects.end > days_of_years(55))
    )
    table = incidence(people[there], np.full(len(there), days_of_years(55)), {}, people.vocab.death)
    assert table.age.tolist() == [57.5]


def test_weighted_auc_without_a_side_is_nan():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert np.isnan(weighted_auc(np.arange(3.0), np.zeros(3, bool))) and np.isnan(
            weighted_auc(np.arange(3.0), np.ones(3, bool))
        )
