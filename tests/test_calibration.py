"""Calibration against definitions in loops, against lifelines, hazardous, torchsurv and
scikit-survival, and on real people."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from delphi_traj.data.events import days_of_years
from delphi_traj.data.simulator import make_world, simulate
from delphi_traj.evaluation.calibration import (
    Forecast,
    TimeToEvent,
    calibration_intercept,
    calibration_slope,
    calibration_table,
    expected_risk,
    forecast,
    ici,
    ici_interval,
    ici_null,
    ipcw,
    logistic_fit,
    observed_over_expected,
    observed_risk,
    risk_bins,
    risk_from_hazards,
    smooth_observed,
    spline,
    time_to_event,
)
from delphi_traj.evaluation.metrics import (
    NOT_FOLLOWED,
    interval,
    landmark_auc,
    multiplicities,
    outcomes_at,
)
from delphi_traj.evaluation.oracle import oracle_risk
from delphi_traj.evaluation.performance import (
    MEASURES,
    age_band,
    auc,
    auc_without_dead,
    brier,
    by_group,
    chapter_report,
    compare,
    concordance,
    risk_report,
    scaled_brier,
)

YEAR = 365.25


def aalen_johansen(days, cause, horizon, k=1):
    """The definition: on each day with an event, the share of those still here, times the chance to
    be still here."""
    S, F = 1.0, 0.0
    for t in np.unique(days[(cause > 0) & (days <= horizon)]):
        here, now = (days >= t).sum(), days == t
        S, F = S * (1 - (now & (cause > 0)).sum() / here), F + S * (now & (cause == k)).sum() / here
    return F


def draw(seed, n=60, ties=True, last=True):
    "Days, causes and risks; `last`: somebody is watched for ever."
    rng = np.random.default_rng(seed)
    days = rng.integers(1, 12, n).astype(float) if ties else rng.permutation(4 * n)[:n] + 1.0
    cause = rng.integers(0, 3, n)
    if last:
        days[0], cause[0] = 10_000, 0
    return days, cause, rng.random(n)


# The weights


@given(st.integers(0, 10**6), st.integers(2, 60), st.floats(0.5, 14), st.booleans())
def test_weighted_shares_are_aalen_johansen(seed, n, horizon, ties):
    days, cause, _ = draw(seed, n, ties)
    w = ipcw(days, cause, horizon / YEAR)
    for k in (1, 2):
        assert np.isclose(
            (w * ((cause == k) & (days <= horizon))).mean(),
            aalen_johansen(days, cause, horizon, k),
            atol=1e-12,
        )
    assert np.isclose(w.sum(), n)


def test_weights_from_the_definition():
    days, cause, _ = draw(3, 40)
    for horizon in (3.0, 6.0, 11.0):  # whole days, as every horizon is
        w = ipcw(days, cause, horizon / YEAR)
        for i in range(len(days)):
            G, known = 1.0, cause[i] > 0 or days[i] >= horizon
            for u in range(1, 13):
                if u < min(days[i], horizon):
                    stay = ((days >= u) & ~((days == u) & (cause > 0))).sum()
                    G *= 1 - ((days == u) & (cause == 0)).sum() / max(stay, 1)
            assert np.isclose(w[i], 1 / G if known else 0)


def test_death_as_a_departure_is_kaplan_meier_and_is_more():
    days, cause, _ = draw(5, 200)
    w = ipcw(days, cause == 1, 8 / YEAR)
    km = 1 - np.prod(
        [1 - ((days == t) & (cause == 1)).sum() / (days >= t).sum() for t in range(1, 9)]
    )
    assert np.isclose((w * ((cause == 1) & (days <= 8))).mean(), km)
    assert km > aalen_johansen(days, cause, 8) + 0.05


def test_a_departure_on_the_day_of_the_horizon_is_known():
    assert (ipcw([3.0, 5, 5], [1, 0, 1], 5 / YEAR) == 1).all()
    assert ipcw([3.0, 4.99, 5], [1, 0, 0], 5 / YEAR)[1] == 0


def test_nobody_followed_to_the_horizon_is_nan():
    assert np.isnan(ipcw([1.0, 2, 3], [1, 0, 0], 5 / YEAR)).all()
    assert np.isnan(ipcw([1.0, 2, 3], [0, 0, 0], 5 / YEAR)).all()
    # the last to be seen died: she cannot stand for all
    assert np.isnan(ipcw([1.0, 2, 3], [1, 0, 2], 5 / YEAR)).all()
    assert np.isnan(ipcw([1.0, 2, 5], [1, 0, 1], 5 / YEAR)).all()  # or fell ill on the last day
    assert np.allclose(ipcw([1.0, 2, 5], [1, 0, 0], 5 / YEAR), [1, 0, 2])
    assert np.allclose(ipcw([1.0, 2, 3], [1, 2, 2], 5 / YEAR), 1)  # nobody was censored
    some = ipcw([1.0, 2, 3, 9], [1, 0, 0, 0], 5 / YEAR, ['a', 'a', 'a', 'b'])
    assert np.isnan(some[:3]).all() and some[3] == 1


def test_groups_have_curves_of_their_own():
    days, cause, _ = draw(7, 80)
    group = np.arange(80) % 2
    days[1] = 10_000
    cause[1] = 0
    w = ipcw(days, cause, 6 / YEAR, group)
    for g in (0, 1):
        assert np.allclose(
            w[group == g], ipcw(days[group == g], cause[group == g], 6 / YEAR), rtol=1e-12
        )


def test_lifelines_without_ties():
    lifelines = pytest.importorskip('lifelines')
    days, cause, _ = draw(1, 150, ties=False)
    for k in (1, 2):
        fit = lifelines.AalenJohansenFitter(calculate_variance=False).fit(
            days, cause, event_of_interest=k
        )
        for horizon in (50.0, 200.0, 500.0):
            ours = (ipcw(days, cause, horizon / YEAR) * ((cause == k) & (days <= horizon))).mean()
            assert np.isclose(ours, fit.cumulative_density_.loc[:horizon].iloc[-1, 0], atol=1e-12)


# The measures


def looped(f, kept=lambda i: True):
    "Weighted AUC pair by pair."
    top = bottom = 0.0
    for i in np.flatnonzero(f.event):
        for j in np.flatnonzero(~f.event):
            if kept(j):
                w = f.weight[i] * f.weight[j]
                top, bottom = (
                    top + w * ((f.risk[i] > f.risk[j]) + 0.5 * (f.risk[i] == f.risk[j])),
                    bottom + w,
                )
    return top / bottom


@pytest.mark.parametrize('seed', range(3))
def test_measures_in_loops(seed):
    days, cause, risk = draw(seed, 70)
    risk = risk.round(1)
    f = Forecast(risk, days, cause, 6 / YEAR)
    y = [c == 1 and d <= 6 for c, d in zip(cause, days, strict=True)]
    p = aalen_johansen(days, cause, 6)
    assert np.isclose(
        brier(f)[0], sum(w * (e - r) ** 2 for w, e, r in zip(f.weight, y, risk, strict=True)) / 70
    )
    assert np.isclose(scaled_brier(f)[0], 1 - brier(f)[0] / (p * (1 - p)))
    assert np.isclose(observed_over_expected(f)[0], p / risk.mean())
    assert np.isclose(auc(f)[0], looped(f))
    assert np.isclose(auc_without_dead(f)[0], looped(f, lambda j: days[j] > 6 or cause[j] == 0))
    assert auc(f)[0] != auc_without_dead(f)[0]


def test_the_lost_and_the_dead():
    "One case, one control, one dead before the horizon, one lost: by hand."
    f = Forecast([0.9, 0.5, 0.95, 1.0], [2, 9, 3, 4], [1, 0, 2, 0], 5 / YEAR)
    assert f.weight.tolist() == [1, 2, 1, 0]
    assert auc(f)[0] == 2 / 3 and auc_without_dead(f)[0] == 1 and observed_risk(f)[0] == 1 / 4
    assert np.isclose(brier(f)[0], (0.1**2 + 2 * 0.5**2 + 0.95**2) / 4)


def test_replicates_are_the_sample_with_rows_repeated():
    days, cause, risk = draw(2, 80)
    person = np.sqrt(np.arange(80)).astype(int)  # of 1, 3, 5 .. rows
    f = Forecast(risk, days, cause, 6 / YEAR, person=person, draws=multiplicities(person, 3))
    i = np.repeat(np.arange(80), f.draws[:, 2].astype(int))
    again = Forecast(risk[i], days[i], cause[i], 6 / YEAR)
    again.weight = f.weight[i]
    for measure in (
        expected_risk,
        observed_risk,
        observed_over_expected,
        brier,
        auc,
        auc_without_dead,
    ):
        assert np.isclose(measure(f)[2], measure(again)[0]), measure.__name__
    w, p = f.weight[i], (f.weight * f.event)[i].mean()
    assert np.isclose(
        scaled_brier(f)[2],
        1 - (w * (f.event[i] - risk[i]) ** 2).sum() / (w * (f.event[i] - p) ** 2).sum(),
    )
    curve = smooth_observed(f)[i, 2]
    assert np.isclose(ici(f)[2], np.abs(curve - risk[i]).mean())


def test_hazardous_brier():
    metrics = pytest.importorskip('hazardous.metrics')
    days, cause, risk = draw(4, 120, ties=False)
    y = pd.DataFrame(dict(event=cause, duration=days))
    for horizon in (60.0, 200.0):
        theirs = metrics.brier_score_incidence(y, y, risk[:, None], [horizon], event_of_interest=1)[
            0
        ]
        f = Forecast(risk, days, cause, horizon / YEAR)
        assert f.weight.max() < 20 and np.isclose(brier(f)[0], theirs, atol=1e-12)


def test_concordance_in_loops():
    """Wolbers and others (2014): later or alive, weighted by 1 / (G(T-) G(T)); or dead by then, by
    1 / (G(T-) G(T_j-))."""
    pytest.importorskip('hazardous')
    days, cause, risk = draw(6, 60, ties=False)
    risk = risk.round(1)
    f = Forecast(risk, days, cause, 150 / YEAR)

    def ended(t):
        return np.prod([1 - 1 / (days >= u).sum() for u in days[(cause == 0) & (days <= t)]])

    top = bottom = 0.0
    for i in np.flatnonzero(f.event):
        for j in range(60):
            later, dead = days[j] > days[i], cause[j] == 2 and days[j] <= days[i]
            if later or dead:
                w = 1 / ended(days[i]) / ended(days[i] if later else days[j])
                top, bottom = (
                    top + w * ((risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j])),
                    bottom + w,
                )
    assert np.isclose(concordance(f)[0], top / bottom)


def test_missing_hazardous_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'hazardous.metrics', None)
    with pytest.raises(ImportError, match=r"delphi_traj\[survival\]"):
        concordance(Forecast([0.1], [9], [1], 1.0))


# Calibration


@pytest.fixture(scope='module')
def calibrated():
    "20,000 people whose outcome is drawn from their risk; a quarter is lost at random times."
    rng = np.random.default_rng(0)
    n = 20_000
    risk = rng.beta(1, 8, n)
    ill = rng.random(n) < risk
    days = (
        np.where(
            ill, rng.uniform(0, 5, n), np.where(rng.random(n) < 0.2, rng.uniform(0, 5, n), 6.0)
        )
        * YEAR
    )
    cause = np.where(ill, 1, np.where(days < 5 * YEAR, 2, 0))
    end = np.where(rng.random(n) < 0.25, rng.uniform(0, 5, n), 9.0) * YEAR
    return risk, np.minimum(days, end), np.where(end < days, 0, cause)


def test_right_risks_are_found_right(calibrated):
    f = Forecast(*calibrated, 5.0)
    table = calibration_table(f)
    assert abs(observed_over_expected(f)[0] - 1) < 0.04 and ici(f)[0] < 0.006
    error = (table.observed - table.predicted) / np.sqrt(table.predicted / table.people)
    assert np.abs(error).max() < 4.5 and table.people.sum() == len(f.risk)


def test_scaling_changes_levels_not_ranks(calibrated):
    risk, days, cause = calibrated
    f, half = Forecast(risk, days, cause, 5.0), Forecast(risk / 2, days, cause, 5.0)
    assert np.isclose(auc(f)[0], auc(half)[0], atol=1e-12)
    assert np.isclose(observed_over_expected(half)[0], 2 * observed_over_expected(f)[0])
    assert (
        abs(ici(half)[0] - risk.mean() / 2) < 0.01
        and scaled_brier(half)[0] < scaled_brier(f)[0] - 0.01
    )


def test_any_bend_is_followed(calibrated):
    risk, days, cause = calibrated
    f = Forecast(risk**1.5, days, cause, 5.0)
    inside = (risk > 0.02) & (risk < 0.4)
    assert np.abs(smooth_observed(f)[inside, 0] - risk[inside]).max() < 0.02
    assert abs(ici(f)[0] - np.abs(risk - risk**1.5).mean()) < 0.006


def test_splines_are_smooth_and_straight_outside():
    knots = np.array([-1.0, 0, 0.5, 3])
    x = np.linspace(-4, 8, 1201)
    bend = np.diff(spline(x, knots), 2, axis=0) / 0.01**2
    assert (
        np.allclose(bend[(x[1:-1] < -1) | (x[1:-1] > 3.01)], 0, atol=1e-6)
        and np.abs(np.diff(bend, axis=0)).max() < 0.1
    )
    assert (spline(x, knots)[:, 0] == x).all() and np.abs(bend).max(0)[1:].min() > 0.1


def test_bins_equal_lifelines(calibrated):
    lifelines = pytest.importorskip('lifelines')
    risk, days, cause = (x[:2000] for x in calibrated)
    table = calibration_table(Forecast(risk, days, cause, 5.0), 5)
    for b, row in enumerate(table.itertuples()):
        at = risk_bins(risk, 5) == b
        fit = lifelines.AalenJohansenFitter(calculate_variance=False).fit(
            days[at], cause[at], event_of_interest=1
        )
        assert np.isclose(
            row.observed, fit.cumulative_density_.loc[: days_of_years(5)].iloc[-1, 0], atol=1e-12
        )


def test_intervals_cover(calibrated):
    """Of 60 samples of 300 people, nearly all intervals of observed over expected hold 1, and not
    all."""
    risk, days, cause = calibrated
    held = []
    for i in range(60):
        at = slice(300 * i, 300 * i + 300)
        low, high = interval(
            observed_over_expected(
                Forecast(
                    risk[at], days[at], cause[at], 5.0, draws=multiplicities(np.arange(300), 200)
                )
            )
        )[1:]
        held.append(low < 1 < high)
    assert 50 <= sum(held) <= 60


def test_two_copies_of_everybody_are_not_more_people(calibrated):
    risk, days, cause = (x[:500] for x in calibrated)
    twice = np.repeat(np.arange(500), 2)
    one = Forecast(risk, days, cause, 5.0, draws=multiplicities(np.arange(500), 100))
    two = Forecast(
        risk[twice], days[twice], cause[twice], 5.0, person=twice, draws=multiplicities(twice, 100)
    )
    for measure in (observed_over_expected, brier, auc):
        assert np.allclose(interval(measure(one)), interval(measure(two)), rtol=0.01)


def test_equal_risks_share_a_bin():
    assert risk_bins(np.zeros(30)).tolist() == [0] * 30
    assert risk_bins(np.r_[np.zeros(90), np.arange(1, 11)]).tolist()[:90] == [0] * 90
    assert np.bincount(risk_bins(np.random.default_rng(0).random(1000))).tolist() == [100] * 10


# Weak calibration


def bent(risk, shift, stretch):
    return expit(shift + stretch * logit(risk))


@pytest.mark.parametrize('shift, stretch', [(0, 1), (0.7, 1), (-0.4, 0.6), (0.2, 1.5)])
def test_a_known_miscalibration_is_recovered(calibrated, shift, stretch):
    """A quarter is censored and a fifth dies first: logit(truth) = shift + stretch *
    logit(prediction)."""
    risk, days, cause = calibrated
    predicted = expit((logit(risk) - shift) / stretch)
    f = Forecast(predicted, days, cause, 5.0, draws=multiplicities(np.arange(len(risk)), 50))
    slope, intercept = calibration_slope(f), calibration_intercept(f)
    assert abs(slope[0] - stretch) < 3.5 * slope[1:].std() < 0.25
    expected = brentq_intercept(predicted, bent(predicted, shift, stretch))
    assert abs(intercept[0] - expected) < 3.5 * intercept[1:].std() < 0.25


def brentq_intercept(predicted, truth):
    "The shift of the logits that makes the predictions right in the mean."
    from scipy.optimize import brentq

    return brentq(lambda a: bent(predicted, a, 1).sum() - truth.sum(), -5, 5)


def test_without_censoring_it_is_a_plain_logistic_regression(calibrated):
    risk, days, cause = (x[:4000] for x in calibrated)
    f = Forecast(risk**1.3, np.where(cause == 0, 3000.0, days), cause, 5.0)
    assert (f.weight == 1).all()
    theirs = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(
        logit(f.risk)[:, None], f.event
    )
    assert np.isclose(calibration_slope(f)[0], theirs.coef_[0, 0], atol=1e-5)
    assert np.isclose(bent(f.risk, calibration_intercept(f)[0], 1).sum(), f.event.sum(), rtol=1e-7)


def test_with_censoring_it_is_a_weighted_one(calibrated):
    risk, days, cause = (x[:4000] for x in calibrated)
    f = Forecast(risk, days, cause, 5.0)
    assert (f.weight == 0).any() and f.weight.max() > 1.1
    theirs = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(
        logit(risk)[:, None], f.event, f.weight
    )
    assert np.isclose(calibration_slope(f)[0], theirs.coef_[0, 0], atol=1e-5)


def test_dropping_the_censored_moves_the_intercept(calibrated):
    risk, days, cause = calibrated
    f = Forecast(risk, days, cause, 5.0)
    known = f.weight > 0
    dropped = Forecast(risk[known], days[known], cause[known], 5.0)
    assert calibration_intercept(dropped)[0] > 0.1 > abs(calibration_intercept(f)[0])


def test_risks_of_zero_and_one_in_weak_calibration():
    risk, days, cause = np.r_[np.linspace(0.1, 0.9, 40), 0, 1], np.full(42, 9.0), np.zeros(42)
    cause[5:40:3], days[5:40:3] = 1, 3
    inner = Forecast(risk[:40], days[:40], cause[:40], 5 / YEAR)
    cause[41], days[41] = 1, 3
    agree = Forecast(risk, days, cause, 5 / YEAR)
    for measure in (calibration_intercept, calibration_slope):
        assert np.isclose(measure(agree)[0], measure(inner)[0], rtol=1e-9)
    cause[41], days[41] = 0, 9
    against = Forecast(risk, days, cause, 5 / YEAR)
    for measure in (calibration_intercept, calibration_slope):
        assert np.isnan(measure(against)).all()


def test_one_risk_for_all_has_an_intercept_and_no_slope():
    days, cause, _ = draw(0, 50)
    f = Forecast(np.full(50, 0.3), days, cause, 6 / YEAR)
    assert np.isnan(calibration_slope(f)).all()
    assert np.isclose(
        calibration_intercept(f)[0], logit(observed_risk(f)[0]) - logit(0.3), atol=1e-6
    )


# The calibration index and noise


def test_the_interval_of_the_index_by_hand():
    assert np.allclose(
        ici_interval(np.array([0.05, 0.06]), np.r_[0.01, np.arange(1, 101) / 1000]),
        [0.05, 0, 0.05 + 0.097525],
    )
    assert np.isnan(ici_interval(np.array([0.05]), np.array([np.nan]))[1:]).all()


def test_the_null_value_by_its_definition(calibrated):
    risk, days, cause = (x[:700] for x in calibrated)
    person = np.arange(700) // 2
    f = Forecast(risk, days, cause, 5.0, person=person, draws=multiplicities(person, 50))
    curve = smooth_observed(f)
    looped = [
        np.repeat(np.abs(curve[:, r] - curve[:, 0]), f.draws[:, r].astype(int)).mean()
        for r in range(1, 51)
    ]
    assert np.allclose(ici_null(f), np.r_[np.mean(looped), looped], rtol=1e-9)


def test_right_risks_may_have_no_error_and_wrong_ones_have_theirs(calibrated):
    risk, days, cause = (x[:5000] for x in calibrated)
    given = dict(days=days, cause=cause, years=5.0, draws=multiplicities(np.arange(5000), 100))
    for predicted in (risk, risk**1.5, risk / 2):
        f = Forecast(predicted, **given)
        value, low, high = ici_interval(ici(f), ici_null(f))
        assert low <= np.abs(risk - predicted).mean() <= high and (low == 0) == (predicted is risk)


def test_the_null_value_is_the_index_of_outcomes_drawn_from_the_risks(calibrated):
    risk, days, cause = (x[:2000] for x in calibrated)
    f = Forecast(risk, days, cause, 5.0, draws=multiplicities(np.arange(2000), 100))
    again, rng, found = Forecast(risk, days, cause, 5.0), np.random.default_rng(0), []
    for _ in range(60):
        again.event = rng.random(2000) < risk
        found.append(ici(again)[0])
    assert abs(np.mean(found) / ici_null(f)[0] - 1) < 0.15


def test_more_rows_of_the_same_people_are_not_less_noise(calibrated):
    risk, days, cause = (x[:500] for x in calibrated)
    twice = np.repeat(np.arange(500), 2)
    one = Forecast(risk, days, cause, 5.0, draws=multiplicities(np.arange(500), 100))
    two = Forecast(
        risk[twice], days[twice], cause[twice], 5.0, person=twice, draws=multiplicities(twice, 100)
    )
    assert np.isclose(ici_null(two)[0], ici_null(one)[0], rtol=0.05)


# Follow-up and horizon


@pytest.mark.parametrize('late_death', (False, True))
@pytest.mark.parametrize('years', (5.01, 40.0))
def test_no_measure_beyond_the_follow_up(late_death, years):
    """Followed for 1,826 days; a death on the day after the study does not stand for all who were
    censored."""
    rng = np.random.default_rng(0)
    days = np.minimum(1 + rng.exponential(9000, 400).astype(int), 1826.0)
    cause = np.where(days < 1826, rng.integers(1, 3, 400), 0)
    if late_death:
        days[0], cause[0] = 1827, 2
    time = TimeToEvent(days[:, None], cause[:, None], np.ones((400, 1), bool))
    risk = rng.uniform(0.05, 0.3, 400)
    table = risk_report(risk, time, years, n_boot=50).set_index('measure')
    assert (
        table.value.drop('expected').isna().all()
        and (table.reason.drop('expected') == NOT_FOLLOWED).all()
    )
    assert (
        np.isfinite(table.value['expected'])
        and table.reason['expected'] == ''
        and set(table.index) == set(MEASURES)
    )
    just = risk_report(risk, time, 5.0, n_boot=50).set_index('measure')
    assert np.isfinite(just.value).all() and (just.reason == '').all() and (just.unknown == 0).all()


def test_the_c_index_needs_both_sides():
    pytest.importorskip('hazardous')
    for days, cause in ((np.full(9, 400.0), np.ones(9)), (np.full(9, 4000.0), np.zeros(9))):
        assert np.isnan(concordance(Forecast(np.linspace(0.1, 0.9, 9), days, cause, 5.0))).all()


def test_reasons_are_told_measure_by_measure():
    days, cause = np.r_[np.full(30, 400.0), np.full(30, 500.0)], np.r_[np.ones(30), np.full(30, 2)]
    time = TimeToEvent(days[:, None], cause[:, None], np.ones((60, 1), bool))
    table = risk_report(np.linspace(0.2, 0.7, 60), time, 5.0, n_boot=50).set_index('measure')
    assert table.reason['auc'] == '' and np.isfinite(table.value['auc'])
    assert table.reason['auc_without_dead'] == 'no control alive' and np.isnan(
        table.value['auc_without_dead']
    )
    all_ill = TimeToEvent(days[:30, None], cause[:30, None], np.ones((30, 1), bool))
    table = risk_report(np.linspace(0.2, 0.7, 30), all_ill, 5.0, n_boot=50).set_index('measure')
    for m in ('auc', 'calibration_slope', 'ici'):
        assert 'no control' in table.reason[m], m


def test_few_replicates_are_refused():
    days, cause, risk = draw(1, 60)
    time = TimeToEvent(days[:, None], cause[:, None], np.ones((60, 1), bool))
    for report, more in ((risk_report, ()), (chapter_report, (['a'],))):
        with pytest.raises(ValueError, match='at least 50 replicates'):
            report(risk, time, 6 / YEAR, *more, n_boot=49)
    assert risk_report(risk, time, 6 / YEAR, n_boot=0).low.isna().all()


def test_a_landmark_at_fifty_is_in_the_band_from_fifty():
    ages = np.arange(30, 90)
    assert age_band(days_of_years(ages)).tolist() == age_band(ages * YEAR).tolist()


# Pairs


def test_two_forecasts_are_compared_within_replicates(calibrated):
    risk, days, cause = (x[:800] for x in calibrated)
    draws = multiplicities(np.arange(800), 60)
    fs = {
        n: Forecast(r, days, cause, 5.0, draws=draws)
        for n, r in (('right', risk), ('half', risk / 2))
    }
    table = compare(fs).set_index('measure')
    for m, measure in (('brier', brier), ('auc', auc)):
        d = measure(fs['right']) - measure(fs['half'])
        assert np.allclose(
            table.loc[m, ['difference', 'low', 'high']].astype(float), interval(d), atol=1e-12
        )
    assert table.difference['brier'] < 0 and abs(table.difference['auc']) < 1e-9
    with pytest.raises(ValueError, match='other rows'):
        compare({'a': fs['right'], 'b': replace(fs['half'], draws=None)})


# Degenerate input


def test_no_event():
    f = Forecast(
        np.linspace(0.01, 0.2, 50),
        np.full(50, 9 * YEAR),
        np.zeros(50),
        5.0,
        draws=multiplicities(np.arange(50), 20),
    )
    assert observed_risk(f)[0] == observed_over_expected(f)[0] == 0
    for measure in (auc, auc_without_dead, ici, scaled_brier):
        assert np.isnan(measure(f)).all(), measure.__name__
    table = calibration_table(f, 2)
    assert np.allclose(table.high, 1 - 0.025 ** (1 / 25)) and (table.low == 0).all()


def test_everybody_lost():
    f = Forecast(np.linspace(0.01, 0.2, 50), np.full(50, 2 * YEAR), np.zeros(50), 5.0)
    further = [concordance] if find_spec('hazardous') else []
    for measure in (*MEASURES.values(), *further):
        if measure is expected_risk:
            continue
        assert np.isnan(measure(f)).all(), measure.__name__
    assert calibration_table(f).observed.isna().all()


def test_only_cases():
    f = Forecast(np.linspace(0.5, 0.9, 20), np.full(20, YEAR), np.ones(20), 5.0)
    assert observed_risk(f)[0] == 1 and np.isnan(auc(f)[0]) and np.isnan(ici(f)[0])


def test_risks_of_zero_and_one():
    days, cause = np.array([1.0, 9, 9, 9, 1, 9]) * YEAR, np.array([1, 0, 0, 0, 1, 0])
    f = Forecast([0.0, 0, 0, 0, 1, 1], days, cause, 5.0)
    assert smooth_observed(f)[:, 0].tolist() == [0.25] * 4 + [0.5] * 2 and np.isclose(
        ici(f)[0], (4 * 0.25 + 2 * 0.5) / 6
    )


def test_one_risk_for_all():
    days, cause, _ = draw(0, 50)
    f = Forecast(np.full(50, 0.3), days, cause, 6 / YEAR)
    assert np.isclose(ici(f)[0], abs(observed_risk(f)[0] - 0.3)) and np.isclose(auc(f)[0], 0.5)


@pytest.mark.parametrize(
    'risk, days, cause, years, says',
    [
        ([0.1, np.nan], [9, 9], [0, 1], 1.0, 'NaN'),
        ([0.1, 1.2], [9, 9], [0, 1], 1.0, '1.2'),
        ([-0.1, 0.2], [9, 9], [0, 1], 1.0, '-0.1'),
        ([0.1, 0.2], [9, 9], [0, 1], 0.0, 'horizon'),
        ([0.1], [9, 9], [0, 1], 1.0, 'shapes'),
        ([], [], [], 1.0, 'at least one'),
        ([0.1, 0.2], [9, 0], [0, 1], 1.0, 'not positive'),
        ([0.1, 0.2], [9, 9], [0, 3], 1.0, 'cause'),
    ],
)
def test_refusals(risk, days, cause, years, says):
    with pytest.raises(ValueError, match=says):
        Forecast(risk, days, cause, years)


def test_logistic_fit_says_when_it_has_not_settled():
    x = np.c_[np.ones(8), np.arange(8) - 3.5]
    # separated: no finite answer
    assert np.isnan(logistic_fit(x, np.arange(8) > 3, np.ones((8, 1)))).all()


# Cohorts


@pytest.fixture(scope='module')
def asked():
    people = simulate(400, seed=3)
    person, landmark, outcome = outcomes_at(people, (0.0, 5.0), 5.0)
    return (
        people[person],
        person,
        landmark,
        outcome,
        np.round((landmark - people.subjects.start.to_numpy()[person]) / YEAR),
    )


def test_time_to_event_in_loops(asked):
    cohort, _, landmark, outcome, _ = asked
    time = time_to_event(cohort, landmark)
    for i in range(0, len(cohort), 37):
        s = cohort.subjects.iloc[i]
        for k in np.flatnonzero(time.at_risk[i]):
            age = cohort.age[(cohort.person == i) & (cohort.token == k)]
            came = len(age) > 0
            assert time.days[i, k] == (age.min() if came else s.end) - landmark[i]
            assert time.cause[i, k] == (1 if came else 2 if s.died else 0)
    assert (time.at_risk == outcome.at_risk).all()
    assert (
        outcome.event == (time.at_risk & (time.cause == 1) & (time.days <= days_of_years(5)))
    ).all()


def test_auc_is_near_that_of_the_landmark_table(asked):
    cohort, person, landmark, outcome, stratum = asked
    score = np.random.default_rng(0).random(outcome.event.shape)
    time, theirs = time_to_event(cohort, landmark), landmark_auc(score, outcome)
    ours = [auc(forecast(score, time, k, 5.0, stratum))[0] for k in theirs.code]
    assert np.allclose(ours, theirs.auc, atol=2e-3)


def test_reports_agree_with_their_parts(asked):
    cohort, person, landmark, _, stratum = asked
    time = time_to_event(cohort, landmark)
    risk = np.random.default_rng(1).uniform(0.01, 0.2, time.days.shape)
    kw = dict(person=person, stratum=stratum, n_boot=50)
    table = risk_report(risk, time, 5.0, **kw)
    row = table[(table.measure == 'brier')].iloc[3]
    f = forecast(risk, time, row.code, 5.0, stratum)
    by_person = forecast(risk, time, row.code, 5.0, stratum, person, multiplicities(person, 50))
    assert (
        np.allclose(row[['value', 'low', 'high']].astype(float), interval(brier(by_person)))
        and (table.cases >= 10).all()
    )
    # one column of replicates or fifty: sums in another order
    assert np.isclose(row.value, brier(f)[0], rtol=1e-9)
    assert row.cases == f.event.sum() and row.people == len(f.risk) and row.deaths == f.dead.sum()
    assert (
        row.unknown == (f.weight == 0).sum()
        and table.attrs['left_out'] == time.at_risk.any(0).sum() - table.code.nunique()
    )
    chapter = np.where(cohort.vocab.of_kind('disease'), 'some', '')
    few = [5, 9, 11]
    summed = (
        chapter_report(risk, time, 5.0, chapter, codes=few, min_cases=1, **kw)
        .set_index('measure')
        .value
    )
    fs = [forecast(risk, time, k, 5.0, stratum) for k in few]
    assert np.isclose(summed['auc'], np.mean([auc(f)[0] for f in fs]))
    assert np.isclose(
        summed['observed_over_expected'],
        sum((f.weight * f.event).sum() for f in fs) / sum(f.risk.sum() for f in fs),
    )
    with pytest.raises(ValueError, match='chapters'):
        chapter_report(risk, time, 5.0, ['a'])


def test_groups_are_reports_of_their_people(asked):
    cohort, person, landmark, _, stratum = asked
    time = time_to_event(cohort, landmark)
    risk, sex = np.full(time.days.shape, 0.1), cohort.subjects.sex.to_numpy()
    k = cohort.vocab.death
    table = by_group(
        risk_report,
        sex,
        risk,
        time,
        5.0,
        codes=[k],
        person=person,
        stratum=stratum,
        n_boot=50,
        measures=('observed_over_expected',),
    )
    at = sex == 'male'
    own = TimeToEvent(time.days[at], time.cause[at], time.at_risk[at])
    assert np.isclose(
        table.set_index('group').value['male'],
        observed_over_expected(forecast(risk[at], own, k, 5.0, stratum[at]))[0],
    )
    assert table.people.sum() == len(cohort) and age_band([40 * YEAR - 1, 40 * YEAR]).tolist() == [
        '30-39',
        '40-49',
    ]


# Risks


def test_frozen_risk_against_quadrature():
    from scipy.integrate import quad

    r, d, h = 0.07, 0.03, 6.0
    assert np.isclose(
        risk_from_hazards(np.log([[r, d]]), 1, h)[0, 0],
        quad(lambda t: r * np.exp(-(r + d) * t), 0, h)[0],
    )
    assert np.isclose(risk_from_hazards(np.log([[r, d]]), 1, h)[0, 1], 1 - np.exp(-d * h))


def test_stepwise_risk_against_quadrature():
    from scipy.integrate import quad

    rate, total = lambda t, c: c * np.exp(0.3 * t), lambda t, c: c / 0.3 * (np.exp(0.3 * t) - 1)
    exact = quad(lambda t: rate(t, 0.05) * np.exp(-total(t, 0.07)), 0, 5)[0]
    steps = np.log(
        [[[rate((j + 0.5) * 5 / 400, 0.05), rate((j + 0.5) * 5 / 400, 0.02)]] for j in range(400)]
    )
    assert np.isclose(risk_from_hazards(steps, 1, 5.0)[0, 0], exact, rtol=1e-5)


def test_oracle_risk_is_the_share_that_comes():
    people = simulate(3000, seed=11)
    start = people.subjects.start.to_numpy()
    time = time_to_event(people, start)
    risk = oracle_risk(make_world(), people, start, 5.0, n=3)
    z = []
    for k in np.flatnonzero(time.at_risk.any(0)):
        f = forecast(np.clip(risk, 0, 1), time, k, 5.0)
        z.append(
            (observed_risk(f)[0] - expected_risk(f)[0])
            / np.sqrt((f.risk * (1 - f.risk)).sum())
            * len(f.risk)
        )
    assert np.abs(z).max() < 4 and abs(np.mean(z)) < 0.7
    assert np.isnan(risk[:, ~people.vocab.of_kind('disease', 'death')]).all()


# Real people


@pytest.fixture(scope='module')
def flchain():
    people, y = pytest.importorskip('sksurv.datasets').load_flchain()
    died, days = y['death'], y['futime']
    cause = np.select(
        [died & (people.chapter == c).to_numpy() for c in ('Circulatory', 'Neoplasms')] + [died],
        [1, 2, 3],
        0,
    )
    return people, days, cause, died


def score(flchain):
    "Log hazard ratio .1 a year of age around the mean, on the Nelson-Aalen hazard of all."
    people, days, _, died = flchain
    eta = 0.1 * (people.age - people.age.mean()).to_numpy()
    time, at = np.unique(days, return_inverse=True)
    here = np.bincount(at)[::-1].cumsum()[::-1]
    hazard = np.cumsum(np.bincount(at, weights=died) / here)
    return lambda years: (
        1 - np.exp(-hazard[np.searchsorted(time, years * YEAR, side='right') - 1] * np.exp(eta))
    )


def test_flchain_incidence(flchain):
    _, days, cause, _ = flchain
    assert [int((cause == k).sum()) for k in (1, 2, 3)] == [745, 567, 857]
    for k, pin in ((1, 0.0819), (2, 0.0636), (3, 0.0894)):
        f = Forecast(
            np.full(len(days), 0.1),
            days + (days == 0) / 2,
            np.where(cause == k, 1, np.where(cause > 0, 2, 0)),
            10.0,
        )
        assert abs(observed_risk(f)[0] - pin) < 5e-5


def test_flchain_exponential(flchain):
    _, days, cause, _ = flchain
    years = days.sum() / YEAR
    rate = np.array([(cause == k).sum() for k in (1, 2, 3)]) / years
    assert np.allclose(rate, [0.00944, 0.00718, 0.01086], atol=5e-6)
    for i, pin in enumerate((0.0825, 0.0628, 0.0949)):
        assert (
            abs(risk_from_hazards(np.log([[rate[i], rate.sum() - rate[i]]]), 1, 10.0)[0, 0] - pin)
            < 5e-5
        )


@pytest.mark.parametrize(
    'years, error, area', [(2.0, 0.05028, 0.7760), (5.0, 0.09148, 0.7949), (10.0, 0.13566, 0.8103)]
)
def test_flchain_brier_and_auc(flchain, years, error, area):
    _, days, _, died = flchain
    f = Forecast(score(flchain)(years), days + (days == 0) / 2, died.astype(int), years)
    assert abs(brier(f)[0] - error) < 3e-5 and abs(auc(f)[0] - area) < 5e-5  # days are tied


@pytest.mark.parametrize('years', (2.0, 5.0, 10.0))
def test_flchain_with_tied_days_parted_is_scikit_survivals(flchain, years):
    metrics, util = pytest.importorskip('sksurv.metrics'), pytest.importorskip('sksurv.util')
    _, days, _, died = flchain
    apart = days + (days == 0) / 2 + np.random.default_rng(0).permutation(len(days)) / len(days) / 2
    f = Forecast(score(flchain)(years), apart, died.astype(int), years)
    y = util.Surv.from_arrays(died, apart)
    at = [days_of_years(years)]
    assert np.isclose(
        brier(f)[0], metrics.brier_score(y, y, 1 - f.risk[:, None], at)[1][0], atol=1e-12
    )
    assert np.isclose(auc(f)[0], metrics.cumulative_dynamic_auc(y, y, f.risk, at)[0][0], atol=1e-9)


def test_flchain_concordance(flchain):
    "Uno's with hazardous, Harrell's with lifelines."
    pytest.importorskip('hazardous')
    utils = pytest.importorskip('lifelines.utils')
    _, days, _, died = flchain
    p = score(flchain)(10.0)
    assert (
        abs(concordance(Forecast(p, days + (days == 0) / 2, died.astype(int), 10.0))[0] - 0.77960)
        < 1e-5
    )
    assert abs(utils.concordance_index(days, -p, died) - 0.77882) < 1e-5


@pytest.mark.slow
def test_flchain_torchsurv(flchain):
    "Harrell's C; quadratic in people, hence slow."
    cindex, torch = pytest.importorskip('torchsurv.metrics.cindex'), pytest.importorskip('torch')
    _, days, _, died = flchain
    p = score(flchain)(10.0)
    harrell = cindex.ConcordanceIndex()(
        torch.tensor(np.log(-np.log1p(-p))), torch.tensor(died), torch.tensor(days / YEAR)
    )
    assert abs(float(harrell) - 0.77882) < 1e-5
