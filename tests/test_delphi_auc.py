"""Delphi's AUC: against loops written from the definition, DeLong against pairs and a library, and
what must not move a number."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from delphi_traj.data.batches import collate
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.events import Cohort
from delphi_traj.data.simulator import simulate
from delphi_traj.evaluation.delphi_auc import (
    CaseControl,
    auc_by_cell,
    case_control,
    delong,
    delphi_auc,
    earlier_input,
    one_of_each,
    position_scores,
    prediction_rows,
    row_uniforms,
    summarise_delphi_auc,
)
from delphi_traj.evaluation.oracle import oracle_log_hazard
from delphi_traj.models.event_trajectory import EventTrajectory, event_trajectory_shared_v2
from lives import RECURRENT, VOCAB, cohorts, examples, redraw, tiny_model

LIFE = dict(ages=(0, 90), min_cases=1, no_events=None)  # every age and code of the random lives


@pytest.fixture(scope='module')
def people():
    return simulate(400, seed=8)


def hashed(people, day):
    """A score that depends on the person, the day and the code, with many ties, and on nothing
    after the day."""
    n = (
        people.subjects.subject_id.to_numpy()[:, None] * 7919
        + np.asarray(day)[:, None] * 104729
        + np.arange(len(people.vocab)) * 31
    )
    return (n * 2654435761 % 2**32 // 2**28).astype(float)


def pairs(x, y):
    psi = (x[:, None] > y) + (x[:, None] == y) / 2
    return psi.sum() / psi.size, psi.mean(1).var(ddof=1) / len(x) + psi.mean(0).var(ddof=1) / len(y)


# DeLong

levels = st.sampled_from([2, 5, 10**6])


@examples(60)
@given(
    st.integers(2, 9),
    st.integers(2, 30),
    levels,
    st.integers(0, 10**6),
    st.sampled_from([np.float32, np.float64]),
)
def test_delong_is_the_double_sum(m, n, levels, seed, kind):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, levels, (c, 7)).astype(kind) for c in (m, n))
    x[0, 0] = y[0, 0] = -np.inf
    x[2:][rng.random((m - 2, 7)) < 0.4], y[2:][rng.random((n - 2, 7)) < 0.4] = np.nan, np.nan
    auc, variance = delong(x, y)
    expected = np.array(
        [pairs(x[~np.isnan(x[:, k]), k], y[~np.isnan(y[:, k]), k]) for k in range(7)]
    )
    assert auc.tolist() == expected[:, 0].tolist()
    np.testing.assert_allclose(variance, expected[:, 1], atol=1e-14)
    np.testing.assert_allclose(delong(y, x), (1 - auc, variance), atol=1e-14)
    np.testing.assert_allclose(
        delong(*(np.arctan(s.astype(float)) for s in (x, y))), (auc, variance), atol=1e-14
    )


def test_delong_of_the_tables_in_the_text():
    assert delong([1.0, 2.0], [1.0, 1.0]) == (3 / 4, 1 / 16) and delong([1.0, 2.0], [2.0, 1.0]) == (
        1 / 2,
        1 / 8,
    )
    assert (
        delong([2.0, 3.0], [0.0, 1.0]) == (1, 0)
        and delong([0.0, 1.0], [2.0, 3.0]) == (0, 0)
        and delong([4.0] * 3, [4.0] * 5) == (0.5, 0)
    )


def test_delong_without_enough():
    assert delong([1.0], [0.0, 2.0])[0] == 0.5 and np.isnan(delong([1.0], [0.0, 2.0])[1])
    assert np.isnan(delong(np.full((2, 1), np.nan), np.ones((3, 1)))).all()
    with pytest.raises(ValueError, match='infinite'):
        delong([np.inf, 1.0], [0.0, 2.0])


def test_delong_leaves_its_input_alone():
    x, y = np.array([[3.0, 1.0], [np.nan, 2.0]]), np.array([[2.0, 2.0], [1.0, np.nan]])
    before = x.copy(), y.copy()
    delong(x, y)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])


@pytest.mark.parametrize('levels', (4, 10**6))
def test_delong_is_the_librarys(levels):
    library, rng = pytest.importorskip('MLstatkit'), np.random.default_rng(levels)
    x, y = rng.integers(0, levels, 40) + levels // 3, rng.integers(0, levels, 150)
    *_, auc, half, info = library.Delong_test(
        np.repeat([1, 0], [40, 150]), np.r_[x, y], np.zeros(190)
    )
    assert half == 0.5
    np.testing.assert_allclose(
        delong(x.astype(float), y.astype(float)), (auc, info['var_diff']), rtol=1e-12
    )


def test_delong_variance_and_coverage_by_simulation():
    rng = np.random.default_rng(3)
    auc, variance = delong(rng.normal(1, 1, (30, 3000)), rng.normal(0, 1, (60, 3000)))
    truth = norm.cdf(2**-0.5)
    assert abs(auc.mean() - truth) < 0.004
    assert 0.92 < variance.mean() / auc.var() < 1.08
    assert 0.915 < (abs(auc - truth) < 1.96 * variance**0.5).mean() < 0.96


# rows


@examples(60)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.lists(st.integers(0, 35), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.1, 1.0, 7.5]),
    st.integers(0, 3),
)
def test_earlier_input_counts_what_is_strictly_earlier(ages, targets, offset, pads):
    age = torch.tensor([sorted(ages) + [0] * pads]).float()
    valid = torch.arange(age.shape[1])[None] < len(ages)
    found = earlier_input(age, valid, torch.tensor([targets]).float(), offset)
    assert found.tolist() == [[sum(a < t - offset for a in ages) - 1 for t in targets]]


def rows_by_hand(cohort, offset_days):
    """(person, code, code day, reading day) of every target, from the cohort alone; no-event tokens
    absent."""
    out = []
    for i in range(len(cohort)):
        own = slice(*cohort.offsets[i : i + 2])
        age, token = cohort.age[own], cohort.token[own]
        for j in range(1, len(age)):
            earlier = [a for a in age[:-1] if a < age[j] - offset_days]
            if earlier:
                out.append((i, int(token[j]), int(age[j]), int(max(earlier))))
    return out


@examples(60)
@given(cohorts(people=(1, 5)), st.sampled_from([0.0, 0.1 / 365.25, 1.0, 10.0]))
def test_rows_are_those_of_the_definition(cohort, offset):
    rows = prediction_rows(cohort, offset, no_events=None)
    assert list(zip(rows.person, rows.code, rows.code_day, rows.day, strict=True)) == rows_by_hand(
        cohort, offset * 365.25
    )


@pytest.mark.parametrize('objective', ('delphi', 'competing'))
@pytest.mark.parametrize('how', ('regular', 'random'))
def test_readings_are_last_of_a_day_and_early_enough(people, objective, how):
    rows = prediction_rows(people, 0.5, objective, how, seed=3)
    batch = collate(people, objective, how, seed=3)
    age = np.where(batch.valid, batch.age, np.inf)
    assert (age[rows.person, rows.position] == rows.day).all()
    assert (rows.day < rows.code_day - 0.5 * 365.25).all()
    after = np.pad(age, ((0, 0), (0, 1)), constant_values=np.inf)[rows.person, rows.position + 1]
    assert (after > rows.day).all() and (after >= rows.code_day - 0.5 * 365.25).all()


def table_by_hand(cohort, score, c, offset_days, low, high, step):
    """{(code, sex, bin): (cases, controls)} in loops; which legal row of a control stays is read
    from `c`."""
    rows = rows_by_hand(cohort, offset_days)
    value = {(p, d): score(cohort[[p]], np.array([d]))[0] for p, _, _, d in rows}
    kept = dict(zip(zip(c.control.person, c.control.bin, strict=True), c.control.day, strict=True))
    out = {}
    for k in np.flatnonzero(cohort.vocab.of_kind('disease', 'death')):
        ever = {
            p
            for p in range(len(cohort))
            if k in cohort.token[cohort.offsets[p] : cohort.offsets[p + 1]]
        }
        for sex in ('female', 'male'):
            for bin in range(low, high, step):
                here = [
                    (p, t, d)
                    for p, t, _, d in rows
                    if cohort.subjects.sex[p] == sex and bin <= d / 365.25 < bin + step
                ]
                cases = [value[p, d][k] for p, t, d in here if t == k]
                controls = []
                for p in sorted({p for p, _, _ in here} - ever):
                    assert kept[p, bin] in {d for q, _, d in here if q == p}  # a legal row
                    controls.append(value[p, kept[p, bin]][k])
                if cases and controls:
                    out[cohort.vocab.names[k], sex, bin] = np.array(cases), np.array(controls)
    return out


@examples(15)
@given(
    cohorts(people=(3, 8), least=2),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 3),
    st.sampled_from([5, 30]),
)
def test_the_table_is_the_double_loop(cohort, offset, seed, step):
    expected = (
        table_by_hand(
            cohort,
            hashed,
            case_control(cohort, offset, step, seed=seed, **LIFE),
            offset * 365.25,
            0,
            90,
            step,
        )
        if has_case(cohort, offset, step)
        else {}
    )
    if not expected:
        with pytest.raises(ValueError, match='found no cell'), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            delphi_auc(hashed, cohort, offset=offset, bin_years=step, least=1, seed=seed, **LIFE)
        return
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        found = delphi_auc(
            hashed, cohort, offset=offset, bin_years=step, least=1, seed=seed, **LIFE
        )
    assert set(zip(found.code, found.sex, found.bin, strict=True)) == set(expected)
    for r in found.itertuples():
        x, y = expected[r.code, r.sex, r.bin]
        assert (r.cases, r.controls) == (len(x), len(y))
        assert r.auc == sum((a > b) + (a == b) / 2 for a in x for b in y) / (len(x) * len(y))


def has_case(cohort, offset, step):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return len(case_control(cohort, offset, step, **LIFE).codes) > 0


def test_the_table_on_simulated_people(people):
    few = people[:50]  # loops
    found = delphi_auc(hashed, few, no_events=None, min_cases=1)
    c = case_control(few, no_events=None, min_cases=1)
    expected = {
        k: v
        for k, v in table_by_hand(few, hashed, c, 0.0, 40, 80, 5).items()
        if min(map(len, v)) >= 2
    }
    assert (
        set(zip(found.code, found.sex, found.bin, strict=True)) == set(expected) and len(found) > 40
    )
    for r in found.itertuples():
        x, y = expected[r.code, r.sex, r.bin]
        auc, variance = pairs(x, y)
        assert r.auc == auc and (r.cases, r.controls) == (len(x), len(y))
        np.testing.assert_allclose(r.variance, variance, atol=1e-14)


# the draw


def test_one_row_a_person_and_bin_and_no_control_with_the_disease(people):
    c = case_control(people, seed=1)
    assert (
        not c.control.duplicated(['person', 'bin']).any()
        and not c.case.duplicated(['person', 'code', 'bin']).any()
    )
    ever = np.zeros((len(people), len(people.vocab)), bool)
    ever[people.person, people.token] = True
    np.testing.assert_array_equal(c.never, ~ever[c.control.person][:, c.codes])
    assert ever[c.case.person, c.case.code].all()
    for t in (c.case, c.control):
        assert ((t.day / 365.25 >= t.bin) & (t.day / 365.25 < t.bin + 5)).all() and t.bin.between(
            40, 75
        ).all()


def test_recurring_codes_give_one_case_a_bin():
    rows = [
        (1, 0, 'Female'),
        (1, 15_000, 'Ash'),
        (1, 15_100, 'Elm'),
        (1, 15_200, 'Elm'),
        (1, 15_300, 'Elm'),
    ]
    subject, age, code = zip(*rows, strict=True)
    cohort = Cohort.from_rows(
        RECURRENT,
        subject,
        age,
        [RECURRENT.id(c) for c in code],
        pd.DataFrame(dict(subject_id=[1], end=[16_000])),
    )
    with pytest.warns(UserWarning, match='no case of'):
        c = case_control(cohort, min_cases=1, no_events=None)
    elm = c.case[c.case.code == RECURRENT.id('Elm')]
    assert len(elm) == 1 and elm.day.item() in (15_000, 15_100, 15_200)


def test_same_seed_same_table_another_seed_another(people):
    one, two, other = (delphi_auc(hashed, people, seed=s) for s in (5, 5, 6))
    pd.testing.assert_frame_equal(one, two)
    assert abs(summarise_delphi_auc(one).auc - summarise_delphi_auc(other).auc).max() > 0


def test_numpys_global_generator_is_neither_read_nor_moved(people):
    few = people[:100]
    np.random.seed(1)
    state = np.random.get_state()[1].copy()
    one = delphi_auc(hashed, few, min_cases=4)
    assert (np.random.get_state()[1] == state).all()
    np.random.seed(2)
    pd.testing.assert_frame_equal(one, delphi_auc(hashed, few, min_cases=4))


def test_what_else_is_judged_and_the_order_of_people_move_nothing(people):
    whole = delphi_auc(hashed, people)
    alone = delphi_auc(hashed, people, codes=['Gout', 'Death'])
    pd.testing.assert_frame_equal(alone, whole[whole.code.isin(alone.code)].reset_index(drop=True))
    pd.testing.assert_frame_equal(
        whole, delphi_auc(hashed, people[np.random.default_rng(0).permutation(len(people))])
    )
    late = delphi_auc(hashed, people, ages=(60, 80), codes=['Death'])
    pd.testing.assert_frame_equal(
        late, whole[(whole.code == 'Death') & (whole.bin >= 60)].reset_index(drop=True)
    )


def test_other_people_move_no_draw(people):
    whole, part = case_control(people).control, case_control(people[:50]).control
    pd.testing.assert_frame_equal(whole[whole.person < 50].reset_index(drop=True), part)


def test_every_row_is_as_likely():
    days = np.array([15_000, 15_400, 15_800, 16_200])
    cohort = Cohort.from_rows(
        VOCAB,
        np.ones(5),
        np.r_[days, 16_400],
        [VOCAB.id(c) for c in ('Ash', 'Beech', 'Cedar', 'Dogwood', 'Elm')],
        pd.DataFrame(dict(subject_id=[1], sex=['male'], end=[17_000])),
    )
    rows = prediction_rows(cohort, no_events=None)
    rows = rows[rows.day > 0]
    drawn = [
        rows.day.iloc[
            one_of_each(rows.person, row_uniforms(rows, cohort.subjects.subject_id, s))
        ].item()
        for s in range(400)
    ]
    assert (
        set(drawn) == set(days.tolist()) and np.bincount(np.searchsorted(days, drawn)).min() > 70
    )  # 100 each expected, deviation 9


def test_one_of_each_takes_the_smallest():
    assert one_of_each([7, 5, 7, 5, 7], [0.3, 0.9, 0.1, 0.2, 0.8]).tolist() == [3, 2]


# scores

MODELS = {
    'delphi': lambda: tiny_model(objective='delphi'),
    'competing': tiny_model,
    'tie mask': lambda: tiny_model(objective='delphi', tie_mask='delphi'),
    'trajectory': lambda: trajectory('exponential'),
    'weibull': lambda: trajectory('weibull'),
}


def trajectory(head, mode='next_token'):
    config = event_trajectory_shared_v2(
        None, vocab_size=len(VOCAB), n_trajectory=4, trajectory_dim=6, mode=mode, head=head
    )
    return redraw(EventTrajectory(config, VOCAB).double().eval())


def scores_of(model, cohort, rows, **options):
    out = np.full((len(rows), len(cohort.vocab)), np.nan)
    for at, score in position_scores(
        model, cohort, rows, objective=model.config.objective, **options
    ):
        out[at] = score
    return out


@pytest.mark.parametrize('name', MODELS)
@examples(4)
@given(cohort=cohorts(people=(2, 4), least=2), change=st.integers(0, 10**6))
def test_nothing_at_or_after_the_target_moves_its_score(name, cohort, change):
    model, code = MODELS[name](), VOCAB.of_kind('disease', 'death')
    rows = prediction_rows(cohort, objective=model.config.objective, no_events=None)
    rows = rows[code[rows.code]]
    if not len(rows):
        return
    person, day = rows.iloc[change % len(rows)][['person', 'code_day']]
    mine, me = cohort[[person]], cohort.subjects.subject_id[person]
    keep = mine.age < day
    late = np.setdiff1d(np.flatnonzero(VOCAB.of_kind('disease')), mine.token[keep])[
        : 1 + change % 2
    ]  # other things happen on that day
    window = mine.subjects.drop(columns='died').assign(
        start=np.minimum(mine.subjects.start, day - 1)
    )
    as_was = Cohort.from_rows(VOCAB, np.full(len(mine.token), me), mine.age, mine.token, window)
    otherwise = Cohort.from_rows(
        VOCAB,
        np.full(keep.sum() + len(late), me),
        np.r_[mine.age[keep], np.full(len(late), day)],
        np.r_[mine.token[keep], late],
        window.assign(end=day + 900),
    )
    read = [
        (r := prediction_rows(c, objective=model.config.objective, no_events=None))[
            r.code_day == day
        ].iloc[[0]]
        for c in (as_was, otherwise)
    ]
    assert read[0].day.item() == read[1].day.item() < day
    one, two = (
        scores_of(model, c, r, no_events=None)
        for c, r in zip((as_was, otherwise), read, strict=True)
    )
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize('name', ('delphi', 'competing', 'trajectory', 'weibull'))
def test_scores_are_those_of_one_person_at_a_time(name, few_lives):
    model = MODELS[name]()
    objective = model.config.objective
    rows = prediction_rows(few_lives, objective=objective, no_events='regular').iloc[::4]
    found = scores_of(model, few_lives, rows, batch_size=3, no_events='regular')
    for i, r in enumerate(rows.itertuples()):
        batch = collate(few_lives[[r.person]], objective, 'regular')
        with torch.no_grad():
            hidden = model(batch)[0, r.position]
        expected = (
            model.hazards(hidden).log_hazard(batch.clock[0, r.position] / 365.25)
            if name == 'weibull'
            else model.log_hazard(hidden)
        )
        np.testing.assert_allclose(found[i], expected.detach().numpy(), atol=1e-10)


@pytest.fixture(scope='module')
def few_lives():
    rng = np.random.default_rng(4)
    n = 12
    codes = np.flatnonzero(VOCAB.of_kind('disease'))
    rows = [
        (i, rng.integers(10_000, 25_000), k)
        for i in range(n)
        for k in rng.choice(codes, 4, replace=False)
    ]
    table = pd.DataFrame(
        dict(subject_id=range(n), sex=['female', 'male'] * 6, start=9_000, end=26_000)
    )
    return Cohort.from_rows(VOCAB, *np.array(rows).T, table)


def test_batch_size_moves_nothing(few_lives):
    model = tiny_model()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        tables = [
            delphi_auc(model, few_lives, bin_years=40, min_cases=1, batch_size=b)
            for b in (1, 5, 100)
        ]
    for t in tables[1:]:
        pd.testing.assert_frame_equal(tables[0], t)


def test_the_model_keeps_its_mode_and_is_judged_without_dropout(few_lives):
    model = tiny_model(attention_dropout=0.5).train()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        one, two = (delphi_auc(model, few_lives, bin_years=40, min_cases=1) for _ in range(2))
    assert model.training
    pd.testing.assert_frame_equal(one, two)
    model.eval()


def test_perfect_reversed_constant_and_random_scores(people):
    sick = np.zeros((people.subjects.subject_id.max() + 1, len(people.vocab)))
    sick[people.subjects.subject_id.to_numpy()[people.person], people.token] = 1

    def ahead(p, day):
        return sick[p.subjects.subject_id.to_numpy()]

    assert set(delphi_auc(ahead, people).auc) == {1.0} and set(
        delphi_auc(lambda p, d: -ahead(p, d), people).auc
    ) == {0.0}
    same = delphi_auc(lambda p, d: np.zeros((len(p), len(p.vocab))), people)
    assert set(same.auc) == {0.5} and set(same.variance) == {0.0}
    rng = np.random.default_rng(0)
    chance = summarise_delphi_auc(
        delphi_auc(lambda p, d: rng.normal(size=(len(p), len(p.vocab))), people)
    )
    assert abs(chance.auc.mean() - 0.5) < 0.02


def test_the_truth_beats_noise_and_loses_with_the_offset(people, world):
    def truth(p, day):
        return oracle_log_hazard(world, p, day)

    now, ahead = (
        summarise_delphi_auc(delphi_auc(truth, people, offset=o)).auc.mean() for o in (0.0, 5.0)
    )
    assert 0.5 < ahead < now - 0.03 and now > 0.72


def test_half_precision_ties_what_is_close(people):
    def close(p, d):
        return 1e-4 * hashed(p, d) - 4

    assert (delphi_auc(close, people).auc != 0.5).any() and set(
        delphi_auc(close, people, half=True).auc
    ) == {0.5}


# doors


def test_people_of_unknown_sex_are_in_no_cell(people):
    unknown = people.subjects.sex.cat.set_categories(people.subjects.sex.cat.categories).where(
        people.subjects.subject_id > 50, 'unknown'
    )
    cohort = Cohort(
        people.vocab, people.token, people.age, people.offsets, people.subjects.assign(sex=unknown)
    )
    c = case_control(cohort)
    assert (
        c.case.person.min() >= 50 and c.control.person.min() >= 50 and set(c.control.sex) == {0, 1}
    )


def test_death_under_another_name_does_not_pass_in_silence(people):
    alive = people[~people.subjects.died.to_numpy()]
    with pytest.warns(UserWarning, match="no case of 'Death'"):
        assert 'Death' not in set(delphi_auc(hashed, alive).code)
    with pytest.raises(ValueError, match='another name'):
        delphi_auc(hashed, alive, codes=['Death'])
    with pytest.raises(ValueError, match='nearest'):
        delphi_auc(hashed, people, codes=['Deth'])


def test_refusals(people, few_lives):
    with pytest.raises(ValueError, match='landmark_auc'):
        delphi_auc(trajectory('exponential', 'all_future'), few_lives)
    with pytest.raises(ValueError, match='vocabulary'):
        delphi_auc(tiny_model(), people)
    with pytest.raises(ValueError, match='trained with'):
        delphi_auc(tiny_model(), few_lives, objective='delphi')
    with pytest.raises(ValueError, match='shape'):
        delphi_auc(lambda p, d: np.zeros((len(p), 3)), people)
    with pytest.raises(ValueError, match='NaN'):
        delphi_auc(lambda p, d: np.full((len(p), len(p.vocab)), np.nan), people)
    with pytest.raises(ValueError, match='found no cell'):
        delphi_auc(hashed, people, least=10_000)
    with pytest.raises(ValueError, match='with which the rows were made'):
        scores_of(
            tiny_model(),
            few_lives,
            prediction_rows(few_lives, objective='competing', no_events='random'),
            no_events=None,
        )


def test_a_single_nan_of_a_person_who_counts_is_refused(people):
    k, c = people.vocab.id('Gout'), case_control(people)
    j = int(np.flatnonzero(c.never[:, np.searchsorted(c.codes, k)])[0])
    who = (
        c.control.subject_id[j]
        if 'subject_id' in c.control
        else people.subjects.subject_id[c.control.person[j]]
    )
    when = c.control.day[j]

    def holed(p, d):
        out = hashed(p, d)
        out[(p.subjects.subject_id.to_numpy() == who) & (d == when), k] = np.nan
        return out

    with pytest.raises(ValueError, match="'Gout'"):
        delphi_auc(holed, people)


def test_codes_with_few_cases_are_left_out_and_counted(people):
    table = delphi_auc(hashed, people, min_cases=30)
    all_of_them = delphi_auc(hashed, people, min_cases=1)
    assert (
        table.code.nunique() + table.attrs['left_out'] == 45
        and table.code.nunique() < all_of_them.code.nunique()
    )
    count = case_control(people, min_cases=1).case.code.value_counts()
    assert set(table.code) == {people.vocab.names[k] for k in count.index[count >= 30]}


def test_the_summary_is_the_mean_over_cells(people):
    table = delphi_auc(hashed, people)
    for by in ('code', ['code', 'sex']):
        for row, (_, cells) in zip(
            summarise_delphi_auc(table, by).itertuples(), table.groupby(by, sort=False), strict=True
        ):
            assert row.cells == len(cells) and row.cases == cells.cases.sum()
            np.testing.assert_allclose(
                (row.auc, row.variance), (cells.auc.mean(), cells.variance.sum() / len(cells) ** 2)
            )
    gap = table.assign(variance=table.variance.where(table.index > 0))
    assert (
        np.isnan(summarise_delphi_auc(gap).variance[0])
        and np.isfinite(summarise_delphi_auc(gap).variance[1:]).all()
    )


def test_controls_may_be_chosen_otherwise():
    def frame(person, code):
        return pd.DataFrame(
            dict(person=person, code=code, code_day=0, position=0, day=0, sex=0, bin=50)
        )

    c = CaseControl(
        frame([0, 1], [2, 2]),
        frame([2, 3, 4], [2, 2, 2]),
        np.array([[True], [True], [False]]),
        np.array([2]),
    )

    def table(free):
        return auc_by_cell(
            c,
            np.array([1.0, 2.0], np.float32),
            np.array([[1.0], [1.0], [9.0]], np.float32),
            free,
            ['a', 'b', 'c'],
        )

    assert (table(c.never).auc.item(), table(c.never).controls.item()) == (0.75, 2)
    assert (table(~c.never | c.never).auc.item(), table(~c.never | c.never).controls.item()) == (
        0.5,
        3,
    )


@pytest.mark.slow
def test_a_thousand_diseases_of_seven_thousand_people_in_seconds():
    import time

    rng, vocab = np.random.default_rng(0), make_vocab([f'D{i}' for i in range(1200)])
    rate = np.exp(rng.normal(0, 1, 1200))
    person = np.repeat(np.arange(7000), rng.poisson(12, 7000))
    table = pd.DataFrame(
        dict(
            subject_id=np.arange(7000),
            sex=np.array(['female', 'male'])[rng.integers(0, 2, 7000)],
            start=14_000,
            end=29_220,
        )
    )
    cohort = Cohort.from_rows(
        vocab,
        person,
        rng.integers(7_305, 29_220, len(person)),
        4 + rng.choice(1200, len(person), p=rate / rate.sum()),
        table,
    )
    began = time.process_time()
    with pytest.warns(UserWarning, match='no case of'):
        found = delphi_auc(lambda p, d: np.zeros((len(p), len(vocab)), np.float32), cohort)
    assert found.code.nunique() > 1000 and time.process_time() - began < 30
