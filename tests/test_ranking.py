"""Measures of a ranker against brute force, sklearn and hand-made cases; power laws against scipy and simulated runs; the published numbers against themselves."""
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import curve_fit
from sklearn.metrics import log_loss as sk_log_loss, roc_auc_score

from delphi_traj.data.interactions import Field, Interactions
from delphi_traj.evaluation.ranking import (auc, count_flops, evaluate_ranker, fit_power_law, flops_of, log_loss, matmul_peak, mfu,
                                            per_user_auc, ranker_mfu, ranking_measures, scored_labels, seconds_of, user_auc)
from delphi_traj.layers.permutation import unimix
from delphi_traj.layers.unimixing import UniMixing, UniMixingLite
from delphi_traj.models.unimixer import make_ranker

PUBLISHED = Path(__file__).parents[1] / 'data/published'
BASE = .744577


def pairs_won(score, label):
    "The AUC by counting every pair, ties half; None with one label only."
    ones, zeros = score[label == 1], score[label == 0]
    if not len(ones) or not len(zeros): return None
    return sum((a > b) + (a == b) / 2 for a in ones for b in zeros) / (len(ones) * len(zeros))


def rows(seed, n=200, users=12, levels=6):
    "Rows with many tied scores, users of very different size, some with one label only."
    rng = np.random.default_rng(seed)
    user = np.minimum(rng.geometric(.25, n), users)
    return rng.integers(0, levels, n) / levels, rng.integers(0, 2, n), user


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 8), st.integers(1, 5))
def test_um_20_auc(seed, n, users, levels):
    "AUC and per-user AUC equal a count of pairs in loops over users."
    score, label, user = rows(seed, n, users, levels)
    if 0 < label.sum() < n: assert abs(auc(score, label) - pairs_won(score, label)) < 1e-12
    found = per_user_auc(score, label, user)
    each = {u: pairs_won(score[user == u], label[user == u]) for u in np.unique(user)}
    assert found.index.tolist() == list(each)
    for u, value in each.items():
        assert math.isnan(found.auc[u]) if value is None else abs(found.auc[u] - value) < 1e-12
        assert (found.rows[u], found.positives[u]) == ((user == u).sum(), label[user == u].sum())
    known = {u: v for u, v in each.items() if v is not None}
    if not known: return
    summary = user_auc(score, label, user)
    weight = np.array([(user == u).sum() for u in known])
    assert (summary.users, summary.left_out) == (len(known), len(each) - len(known))
    assert abs(summary.plain - np.mean(list(known.values()))) < 1e-12
    assert abs(summary.weighted - np.average(list(known.values()), weights=weight)) < 1e-12


def test_um_20():
    "Against sklearn user by user; two users by hand; one user with one label is counted and left out."
    score, label, user = rows(0, 3_000, 40, 50)
    found = per_user_auc(score, label, user)
    for u, row in found[found.auc.notna()].iterrows():
        assert abs(row.auc - roc_auc_score(label[user == u], score[user == u])) < 1e-12
    hand = user_auc([.9, .1, .2, .8, .3, .3, .5], [1, 0, 1, 0, 0, 1, 1], ['a', 'a', 'b', 'b', 'b', 'b', 'c'])
    assert (hand.users, hand.left_out) == (2, 1) and abs(hand.plain - (1 + .125) / 2) < 1e-12
    assert abs(hand.weighted - (2 * 1 + 4 * .125) / 6) < 1e-12
    both = found[found.auc.notna()]
    assert both.positives.corr(both.rows) < .999 and abs(user_auc(score, label, user).weighted - (both.auc * both.rows).sum() / both.rows.sum()) < 1e-12
    p = np.array([.9, .2, .6])
    assert abs(log_loss(p, [1, 0, 0]) + (math.log(.9) + math.log(.8) + math.log(.4)) / 3) < 1e-12
    assert abs(log_loss(p, [1, 1, 1]) - sk_log_loss([1, 1, 1], p, labels=[0, 1])) < 1e-12
    law = fit_power_law([1, 4, 16, 64], .003 * np.array([1, 4, 16, 64.])**.13)
    assert abs(law.coefficient - .003) < 1e-9 and abs(law.exponent - .13) < 1e-6
    assert mfu(50, 2, 100) == .25


def test_what_moves_which_auc():
    "A user's own offset moves the AUC and not the per-user AUC; an increasing map moves neither; a sign turns both."
    rng = np.random.default_rng(1)
    score, label, user = rng.normal(size=500), rng.integers(0, 2, 500), rng.integers(0, 20, 500)
    moved = score + 10 * rng.normal(size=20)[user]
    assert abs(user_auc(moved, label, user).plain - user_auc(score, label, user).plain) < 1e-12
    assert abs(auc(moved, label) - auc(score, label)) > 1e-3
    assert auc(np.exp(score), label) == auc(score, label)
    assert abs(auc(-score, label) + auc(score, label) - 1) < 1e-12
    assert abs(user_auc(-score, label, user).weighted + user_auc(score, label, user).weighted - 1) < 1e-12
    assert user_auc(np.zeros(500), label, user).plain == auc(np.zeros(500), label) == .5
    order = rng.permutation(500)
    a, b = user_auc(score[order], label[order], user[order]), user_auc(score, label, user)
    assert abs(a.plain - b.plain) < 1e-12 and abs(a.weighted - b.weighted) < 1e-12


def test_float32_and_tensors():
    "Tensors are read as they are; float32 scores keep their ties and gain none."
    score, label, user = rows(3)
    assert auc(torch.tensor(score), torch.tensor(label)) == auc(score, label)
    narrow = score.astype(np.float32)
    assert auc(narrow, label.astype(np.float32)) == auc(score, label) and user_auc(narrow, label, user) == user_auc(score, label, user)


@pytest.mark.parametrize('call, word', [
    (lambda: auc([.1, .2], [1, 1]), 'needs both labels'),
    (lambda: auc([.1, .2], [1, 2]), 'row 1: found label 2.0; expected 0 or 1'),
    (lambda: auc([.1, .2], [1, np.nan]), 'row 1: found label nan'),
    (lambda: auc([np.nan, .2], [1, 0]), 'row 0: found score nan; expected a finite number'),
    (lambda: auc([.1, .2, .3], [1, 0]), 'one score and one label'),
    (lambda: auc([[.1, .2]], [[1, 0]]), 'one score and one label'),
    (lambda: auc([], []), 'needs both labels'),
    (lambda: user_auc([.1, .2], [1, 0], [1, 2]), 'no user with both labels among 2'),
    (lambda: user_auc([.1, .2], [1, 0], [1]), 'expected one for each of 2 rows'),
    (lambda: user_auc([.1, .2], [1, 0], [1, None]), '1 missing'),
    (lambda: log_loss([1.5, .2], [1, 0]), 'row 0: found probability 1.5'),
    (lambda: log_loss([.5, -1e-9], [1, 0]), 'row 1: found probability'),
    (lambda: mfu(0, 1, 1), 'three positive numbers'),
    (lambda: mfu(1, 1, math.nan), 'three positive numbers'),
    (lambda: fit_power_law([1, 2, 0], [1, 1, 1]), 'sizes above zero'),
    (lambda: fit_power_law([1, 2, 3], [1, np.nan, 1]), 'finite gains'),
    (lambda: fit_power_law([1, 2], [1, 1]), 'at least 3 runs of 2 sizes'),
    (lambda: fit_power_law([2, 2, 2], [1, 1, 1]), 'at least 3 runs of 2 sizes'),
    (lambda: fit_power_law([1, 2, 3], [-1, -1, -2]), 'no power law fits'),
    (lambda: fit_power_law([1, 2, 3], [1, 1e3, 1e6]), 'no power law fits'),
    (lambda: fit_power_law(np.repeat([1, 3, 10, 30], 3), .0001 + np.random.default_rng(2).normal(0, .0005, 12)), 'do not stand out of their scatter'),
    (lambda: fit_power_law([1, 2, 3], [1, 1, 1], reference=[.5]), 'at least 2 runs of the reference'),
    (lambda: fit_power_law([1, 2, 3], [1, 1, 1], level=95), 'between 0 and 1'),
])
def test_bad_input_is_named(call, word):
    "Errors say which row, what was found and what was expected."
    with pytest.raises(ValueError, match=word.replace('(', r'\(')): call()


FIELDS = (Field('user', size=9), Field('item', size=7), Field('price', 'dense'))


def table(n=64, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, f.size, n) for f in FIELDS[:2]], 1)
    return Interactions(FIELDS, ids, rng.normal(size=(n, 1)).astype(np.float32), rng.integers(0, 2, n).astype(np.float32), user=ids[:, 0])


def test_evaluating_a_ranker_is_measuring_its_predictions():
    "One row of numbers, the same for every batch size, the model left as it was."
    data, model = table(), make_ranker('unimixer', FIELDS, 2, 8, 1, embedding=4).train()
    with torch.no_grad(): p = model(torch.as_tensor(data.categorical), torch.as_tensor(data.dense)).sigmoid().numpy()
    found = evaluate_ranker(model, data, batch_size=7)
    want = ranking_measures(p, data.label, data.user)
    assert found.keys() == want.keys() and all(abs(found[k] - want[k]) < 1e-6 for k in want) and model.training
    data.user = None
    assert math.isnan(evaluate_ranker(model, data)['user_auc']) and evaluate_ranker(model, data)['auc'] == evaluate_ranker(model, data)['auc']


def test_flops_are_two_per_multiply_add():
    "A linear layer; UniMixing's n^2 B + n B^2; Lite's two extra products, once per call; a second batch doubles only what is per row."
    n, B, r, b = 8, 6, 3, 2
    x = torch.randn(5, n * B)
    assert flops_of(torch.nn.Linear(n * B, 7), x) == 2 * 5 * n * B * 7
    assert flops_of(UniMixing(n, B), x) == 2 * 5 * (n**2 * B + n * B**2)
    lite = UniMixingLite(n, B, r, b)
    assert flops_of(lite, x) == 2 * 5 * (n**2 * B + n * B**2) + 2 * (n * r * n + n * b * B**2)
    assert flops_of(lite, torch.cat([x, x])) - flops_of(lite, x) == 2 * 5 * (n**2 * B + n * B**2)
    assert flops_of(unimix, x, torch.eye(n), torch.eye(B).expand(n, B, B)) == flops_of(UniMixing(n, B, n_iters=500), x)
    assert flops_of(torch.logsumexp, x, -1) == flops_of(torch.exp, x) == 0


def test_a_batch_is_a_batch():
    "Counted operations grow with the batch, not with the table; few rows are repeated."
    model, few, many = make_ranker('unimixer', FIELDS, 2, 8, 1, embedding=4), table(5), table(64)
    assert count_flops(model, few, 32) == count_flops(model, many, 32) == count_flops(model, many, 64) / 2
    assert model.training and all(p.grad is None for p in model.parameters())


def test_utilisation_is_a_ratio():
    "No time is tested: only that calls are counted, that the peak is positive, and the arithmetic."
    calls = []
    assert len(seconds_of(calls.append, 1, repeats=4)) == 4 and len(calls) == 6
    assert matmul_peak(size=64, repeats=2) > 0
    model = make_ranker('unimixer', FIELDS, 2, 8, 1, embedding=4)
    assert ranker_mfu(model, table(), 32, peak=1e30, repeats=2) < 1e-6


def test_the_law_is_the_least_squares_of_scipy():
    "The profile over exponents finds what scipy's curve_fit finds, negative gains among them."
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = rng.choice([1e5, 1e6, 1e7, 2e7], 12) if seed % 2 else rng.uniform(1, 100, 9)
        g = rng.uniform(.5, 2) * (n / n.mean())**rng.uniform(-.5, 1.5) + rng.normal(0, .3, len(n))
        law = fit_power_law(n, g, resamples=10) if (g > 0).mean() > .5 else None
        if law is None: continue
        z = n / n.mean()
        (a, b), _ = curve_fit(lambda z, a, b: a * z**b, z, g, p0=(law.coefficient * n.mean()**law.exponent, law.exponent), maxfev=10_000)
        assert abs(b - law.exponent) < 1e-4 and abs(a - law(n.mean())) < 1e-4 * a


def test_a_unit_moves_the_coefficient_only():
    "Parameters in millions or one by one: the exponent and its interval stay, a becomes a 10^(-6 b)."
    n, g = np.array([1., 3, 10, 30]), np.array([.003, .0035, .0039, .0047])
    small, large = fit_power_law(n, g), fit_power_law(n * 1e6, g)
    assert abs(small.exponent - large.exponent) < 1e-6
    assert np.allclose(small.exponent_interval, large.exponent_interval, atol=1e-6)
    assert abs(large.coefficient / (small.coefficient * 1e6**-small.exponent) - 1) < 1e-5
    assert np.allclose(small(n), large(n * 1e6))
    low, high = small.band(n)
    assert (low < small(n)).all() and (small(n) < high).all()
    assert small.draws.tolist() == fit_power_law(n, g).draws.tolist() != fit_power_law(n, g, seed=1).draws.tolist()


@pytest.mark.parametrize('shared', [False, True])
def test_intervals_cover(shared):
    "Simulated runs, a reference with its own scatter or none: the 90% interval holds the truth in about 90% of the cases."
    rng, n, sd, hits = np.random.default_rng(0), np.repeat([1., 4, 16, 64], 3), 3e-4, 0
    for _ in range(100):
        reference = rng.normal(BASE, sd, 2 if shared else 1)
        score = BASE + .003 * n**.13 + rng.normal(0, sd, len(n))
        gain = score - (reference.mean() if shared else BASE)
        low, high = fit_power_law(n, gain, reference=reference if shared else None, level=.9, resamples=200).exponent_interval
        hits += low <= .13 <= high
    assert 82 <= hits <= 98


def test_a_scattered_reference_widens_the_interval():
    n = np.repeat([1., 4, 16, 64], 3)
    g = .003 * n**.13 + np.random.default_rng(0).normal(0, 1e-4, 12)
    width = lambda **k: np.diff(fit_power_law(n, g, **k).exponent_interval)[0]
    alike = .7446 + np.std(g - fit_power_law(n, g)(n), ddof=2) * np.array([-1, 1]) / 2**.5 # scatters like the runs, so the pool stays
    assert width(reference=alike) > 1.08 * width()
    assert width(reference=[.7436, .7446, .7456]) > 1.5 * width()
    assert abs(width(reference=[.7446, .7446]) / width() - 1) < .1


# --- the published numbers ---------------------------------------------------------------------------------------------------------------

def read(name): return pd.read_csv(PUBLISHED / f'unimixer_{name}.csv')


def test_published_gains_are_differences():
    t = read('results')
    assert len(t) == 11 and t.auc[0] == BASE and np.isnan(t.dauc_times_100[0])
    assert np.abs(100 * (t.auc - BASE) - t.dauc_times_100)[1:].max() < 1e-9


def test_published_laws_in_their_units():
    "Millions of parameters, GFLOP per batch, gains absolute; the two checks of the README."
    law = {(r.model, r.axis): lambda n, r=r: r.coefficient * n**r.exponent for r in read('scaling_fits').itertuples()}
    assert len(law) == 6
    assert round(law['UniMixer', 'parameters'](6.57), 6) == round(.748464 - BASE, 6) == .003887
    assert round(law['RankMixer', 'parameters'](135.5), 6) == .004804
    t = read('results').set_index('model')
    assert t.dauc_times_100['RankMixer'] == .4752 and round(law['RankMixer', 'flops'](1680), 6) == .004808
    for model in ('UniMixer', 'UniMixing-Lite'):
        two = t.loc[[model]].query('blocks == 2')
        for axis, size in (('parameters', two.parameters_millions), ('flops', 1000 * two.flops_per_batch_tera)):
            assert np.abs(law[model, axis](size) / (two.dauc_times_100 / 100) - 1).max() < .04


def test_published_sweeps_share_their_model():
    t = read('lite_sweep')
    assert len(t) == 12 and (t[(t.model == 'UniMixing-Lite') & ((t.varied + t.value.astype(str)).isin(['basis2', 'rank128', 'blocks2']))].auc == .749228).all()
    a = read('ablations')
    assert len(a) == 5 and (a.dauc_times_100 < 0).all() and a.dauc_times_100.abs().sum() > .3


def test_measures_without_a_user_to_rank():
    "Nobody has both labels: the other measures are still worth a row."
    found = ranking_measures([.1, .9, .4], [0, 1, 1], [1, 2, 2])
    assert math.isnan(found['user_auc']) and math.isnan(found['user_auc_weighted']) and (found['users'], found['users_left_out']) == (0, 2)
    assert found['auc'] == 1
