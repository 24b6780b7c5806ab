"""Measures of a ranker against brute force, sklearn and hand-made cases; power laws against scipy
and simulated runs; the published numbers against themselves."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit
from sklearn.metrics import log_loss as sk_log_loss
from sklearn.metrics import roc_auc_score
from torch.nn.attention import SDPBackend, sdpa_kernel

from delphi_traj.data.interactions import Field, Interactions
from delphi_traj.evaluation.power_laws import (
    exponent_interval,
    fit_power_law,
    least_squares_laws,
    t_of_a_bend,
)
from delphi_traj.evaluation.ranking import (
    auc,
    count_flops,
    evaluate_ranker,
    flops_of,
    log_loss,
    logit_loss,
    matmul_peak,
    mfu,
    per_user_auc,
    ranker_mfu,
    ranking_measures,
    seconds_of,
    user_auc,
)
from delphi_traj.layers.permutation import unimix
from delphi_traj.layers.unimixing import UniMixing, UniMixingLite
from delphi_traj.models.rankers import RANKERS, make_ranker

PUBLISHED = Path(__file__).parents[1] / 'data/published'
BASE = 0.744577


def pairs_won(score, label):
    "The AUC by counting every pair, ties half; None with one label only."
    ones, zeros = score[label == 1], score[label == 0]
    if not len(ones) or not len(zeros):
        return None
    return sum((a > b) + (a == b) / 2 for a in ones for b in zeros) / (len(ones) * len(zeros))


def rows(seed, n=200, users=12, levels=6):
    "Rows with many tied scores, users of very different size, some with one label only."
    rng = np.random.default_rng(seed)
    user = np.minimum(rng.geometric(0.25, n), users)
    return rng.integers(0, levels, n) / levels, rng.integers(0, 2, n), user


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 8), st.integers(1, 5))
def test_um_20_auc(seed, n, users, levels):
    "AUC and per-user AUC equal a count of pairs in loops over users."
    score, label, user = rows(seed, n, users, levels)
    if 0 < label.sum() < n:
        assert abs(auc(score, label) - pairs_won(score, label)) < 1e-12
    found = per_user_auc(score, label, user)
    each = {u: pairs_won(score[user == u], label[user == u]) for u in np.unique(user)}
    assert found.index.tolist() == list(each)
    for u, value in each.items():
        assert math.isnan(found.auc[u]) if value is None else abs(found.auc[u] - value) < 1e-12
        assert (found.rows[u], found.positives[u]) == ((user == u).sum(), label[user == u].sum())
    known = {u: v for u, v in each.items() if v is not None}
    if not known:
        return
    summary = user_auc(score, label, user)
    weight = np.array([(user == u).sum() for u in known])
    assert (summary.users, summary.left_out) == (len(known), len(each) - len(known))
    assert abs(summary.plain - np.mean(list(known.values()))) < 1e-12
    assert abs(summary.weighted - np.average(list(known.values()), weights=weight)) < 1e-12


def test_um_20():
    """Against sklearn user by user; two users by hand; one user with one label is counted and left
    out."""
    score, label, user = rows(0, 3_000, 40, 50)
    found = per_user_auc(score, label, user)
    for u, row in found[found.auc.notna()].iterrows():
        assert abs(row.auc - roc_auc_score(label[user == u], score[user == u])) < 1e-12
    hand = user_auc(
        [0.9, 0.1, 0.2, 0.8, 0.3, 0.3, 0.5],
        [1, 0, 1, 0, 0, 1, 1],
        ['a', 'a', 'b', 'b', 'b', 'b', 'c'],
    )
    assert (hand.users, hand.left_out) == (2, 1) and abs(hand.plain - (1 + 0.125) / 2) < 1e-12
    assert abs(hand.weighted - (2 * 1 + 4 * 0.125) / 6) < 1e-12
    both = found[found.auc.notna()]
    assert (
        both.positives.corr(both.rows) < 0.999
        and abs(
            user_auc(score, label, user).weighted - (both.auc * both.rows).sum() / both.rows.sum()
        )
        < 1e-12
    )
    p = np.array([0.9, 0.2, 0.6])
    assert abs(log_loss(p, [1, 0, 0]) + (math.log(0.9) + math.log(0.8) + math.log(0.4)) / 3) < 1e-12
    assert abs(log_loss(p, [1, 1, 1]) - sk_log_loss([1, 1, 1], p, labels=[0, 1])) < 1e-12
    law = fit_power_law([1, 4, 16, 64], 0.003 * np.array([1, 4, 16, 64.0]) ** 0.13)
    assert abs(law.coefficient - 0.003) < 1e-9 and abs(law.exponent - 0.13) < 1e-6
    assert mfu(50, 2, 100) == 0.25


def test_what_moves_which_auc():
    """A user's own offset moves the AUC and not the per-user AUC; an increasing map moves neither;
    a sign turns both."""
    rng = np.random.default_rng(1)
    score, label, user = rng.normal(size=500), rng.integers(0, 2, 500), rng.integers(0, 20, 500)
    moved = score + 10 * rng.normal(size=20)[user]
    assert abs(user_auc(moved, label, user).plain - user_auc(score, label, user).plain) < 1e-12
    assert abs(auc(moved, label) - auc(score, label)) > 1e-3
    assert auc(np.exp(score), label) == auc(score, label)
    assert abs(auc(-score, label) + auc(score, label) - 1) < 1e-12
    assert (
        abs(user_auc(-score, label, user).weighted + user_auc(score, label, user).weighted - 1)
        < 1e-12
    )
    assert user_auc(np.zeros(500), label, user).plain == auc(np.zeros(500), label) == 0.5
    order = rng.permutation(500)
    a, b = user_auc(score[order], label[order], user[order]), user_auc(score, label, user)
    assert abs(a.plain - b.plain) < 1e-12 and abs(a.weighted - b.weighted) < 1e-12


def test_float32_and_tensors():
    "Tensors are read as they are; float32 scores keep their ties and gain none."
    score, label, user = rows(3)
    assert auc(torch.tensor(score), torch.tensor(label)) == auc(score, label)
    narrow = score.astype(np.float32)
    assert auc(narrow, label.astype(np.float32)) == auc(score, label) and user_auc(
        narrow, label, user
    ) == user_auc(score, label, user)


@pytest.mark.parametrize(
    'call, word',
    [
        (lambda: auc([0.1, 0.2], [1, 1]), 'needs both labels'),
        (lambda: auc([0.1, 0.2], [1, 2]), 'row 1: found label 2.0; expected 0 or 1'),
        (lambda: auc([0.1, 0.2], [1, np.nan]), 'row 1: found label nan'),
        (lambda: auc([np.nan, 0.2], [1, 0]), 'row 0: found score nan; expected a finite number'),
        (lambda: auc([0.1, 0.2, 0.3], [1, 0]), 'one score and one label'),
        (lambda: auc([[0.1, 0.2]], [[1, 0]]), 'one score and one label'),
        (lambda: auc([], []), 'needs both labels'),
        (lambda: user_auc([0.1, 0.2], [1, 0], [1, 2]), 'no user with both labels among 2'),
        (lambda: user_auc([0.1, 0.2], [1, 0], [1]), 'expected one for each of 2 rows'),
        (lambda: user_auc([0.1, 0.2], [1, 0], [1, None]), '1 missing'),
        (lambda: log_loss([1.5, 0.2], [1, 0]), 'row 0: found probability 1.5'),
        (lambda: log_loss([0.5, -1e-9], [1, 0]), 'row 1: found probability'),
        (lambda: mfu(0, 1, 1), 'three positive numbers'),
        (lambda: mfu(1, 1, math.nan), 'three positive numbers'),
        (lambda: fit_power_law([1, 2, 0], [1, 1, 1]), 'sizes above zero'),
        (lambda: fit_power_law([1, 2, 3], [1, np.nan, 1]), 'finite gains'),
        (lambda: fit_power_law([1, 2], [1, 1]), 'at least 3 runs of 2 sizes'),
        (lambda: fit_power_law([2, 2, 2], [1, 1, 1]), 'at least 3 runs of 2 sizes'),
        (lambda: fit_power_law([1, 2, 3], [-1, -1, -2]), 'no power law fits'),
        (lambda: fit_power_law([1, 2, 3], [1, 1e3, 1e6]), 'no power law fits'),
        (
            lambda: fit_power_law(
                np.repeat([1, 3, 10, 30], 3),
                0.0001 + np.random.default_rng(2).normal(0, 0.0005, 12),
            ),
            'do not stand out of their scatter',
        ),
        (
            lambda: fit_power_law([1, 2, 3], [1, 1, 1], reference=[0.5]),
            'at least 2 runs of the reference',
        ),
        (lambda: fit_power_law([1, 2, 3], [1, 1, 1], level=95), 'between 0 and 1'),
    ],
)
def test_bad_input_is_named(call, word):
    "Errors say which row, what was found and what was expected."
    with pytest.raises(ValueError, match=word.replace('(', r'\(')):
        call()


FIELDS = (Field('user', size=9), Field('item', size=7), Field('price', 'dense'))


def table(n=64, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, f.size, n) for f in FIELDS[:2]], 1)
    return Interactions(
        FIELDS,
        ids,
        rng.normal(size=(n, 1)).astype(np.float32),
        rng.integers(0, 2, n).astype(np.float32),
        user=ids[:, 0],
    )


def test_evaluating_a_ranker_is_measuring_its_predictions():
    "One row of numbers, the same for every batch size, the model left as it was."
    data, model = table(), make_ranker('unimixer', FIELDS, 2, 8, 1, embedding=4).train()
    with torch.no_grad():
        p = model(torch.as_tensor(data.categorical), torch.as_tensor(data.dense)).sigmoid().numpy()
    found = evaluate_ranker(model, data, batch_size=7)
    want = ranking_measures(p, data.label, data.user)
    assert (
        found.keys() == want.keys()
        and all(abs(found[k] - want[k]) < 1e-6 for k in want)
        and model.training
    )
    data.user = None
    assert (
        math.isnan(evaluate_ranker(model, data)['user_auc'])
        and evaluate_ranker(model, data)['auc'] == evaluate_ranker(model, data)['auc']
    )


class Loud(torch.nn.Module):
    "A ranker whose logits are its one number, far from zero."

    target = 'binary'

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, categorical, dense):
        return self.scale * dense[:, 0]


@pytest.mark.parametrize('shift', [0, 20, 200])
def test_a_saturated_ranker_keeps_its_order(shift):
    "Ranks and log loss belong to the logits: as float32 probabilities most rows are the same 1."
    rng = np.random.default_rng(3)
    data = table(400, seed=3)
    data.dense = (rng.normal(size=(400, 1)) + shift).astype(np.float32)
    data.label = (rng.random(400) < 1 / (1 + np.exp(shift - data.dense[:, 0]))).astype(np.float32)
    logit = data.dense[:, 0].astype(np.float64)
    found = evaluate_ranker(Loud(), data, batch_size=64)
    assert found['auc'] == auc(logit, data.label) > 0.7
    assert found['user_auc'] == user_auc(logit, data.label, data.user).plain
    rest = np.log1p(np.exp(-logit))
    exact = np.where(data.label == 1, rest, logit + rest).mean()
    # float64, another order of operations
    assert abs(found['log_loss'] - exact) < 1e-9 * (1 + exact)
    saturated = torch.tensor(logit, dtype=torch.float32).sigmoid()
    if shift:
        assert auc(saturated, data.label) < found['auc'] - 0.02


def test_a_real_target_has_no_auc():
    "Values of a real target are no logits: they are refused, though each could be ranked."
    model = make_ranker('unimixer', FIELDS, 2, 8, 1, embedding=4, target='real')
    with pytest.raises(ValueError, match="found a model of target='real'.*squared error"):
        evaluate_ranker(model, table())


def test_log_loss_of_logits():
    """The loss of probabilities where they can be written down, and the logit itself where they
    cannot."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(0, 3, 200), rng.integers(0, 2, 200)
    assert abs(logit_loss(z, y) - log_loss(1 / (1 + np.exp(-z)), y)) < 1e-12
    assert logit_loss([800.0, -800.0], [0, 1]) == 800 and logit_loss([800.0, -800.0], [1, 0]) == 0
    with pytest.raises(ValueError, match='no rows'):
        logit_loss([], [])
    with pytest.raises(ValueError, match='row 1: found score inf'):
        logit_loss([0, np.inf], [1, 0])


def test_flops_are_two_per_multiply_add():
    """A linear layer; UniMixing's n^2 B + n B^2; Lite's two extra products, once per call; a second
    batch doubles only what is per row."""
    n, B, r, b = 8, 6, 3, 2
    x = torch.randn(5, n * B)
    assert flops_of(torch.nn.Linear(n * B, 7), x) == 2 * 5 * n * B * 7
    assert flops_of(UniMixing(n, B), x) == 2 * 5 * (n**2 * B + n * B**2)
    lite = UniMixingLite(n, B, r, b)
    assert flops_of(lite, x) == 2 * 5 * (n**2 * B + n * B**2) + 2 * (n * r * n + n * b * B**2)
    assert flops_of(lite, torch.cat([x, x])) - flops_of(lite, x) == 2 * 5 * (n**2 * B + n * B**2)
    assert flops_of(unimix, x, torch.eye(n), torch.eye(B).expand(n, B, B)) == flops_of(
        UniMixing(n, B, n_iters=500), x
    )
    assert flops_of(torch.logsumexp, x, -1) == flops_of(torch.exp, x) == 0


def per_row(name, T, D, e):
    """Multiply-adds of a block for a row, and for a call, written out from the formulas of each
    model."""
    # the output map; scores and weighted values, whatever the heads
    attention = T * D * D + 2 * T * T * D
    ffn, swiglu = 2 * T * D * e * D, 3 * T * D * e * D  # a per-token layer of hidden width e D
    if name == 'hetero_attention':
        return 3 * T * D * D + attention + ffn, 0
    if name == 'hiformer':  # rank 3, 2 heads: all tokens to the rank, the rank to all keys
        return T * D * D + 2 * (2 * T * D * 3 + 3 * T * D) + attention + ffn, 0
    if name == 'fat':  # 5 basis matrices, metas of width 7: the maps are made once a call
        return 3 * T * D * D + attention + ffn, 3 * (T * 7 * 5 + T * 5 * D * D)
    if name == 'rankmixer':
        return ffn, 0
    if name == 'tokenmixer_large':
        return 2 * swiglu, 0
    if name == 'wukong':  # rank 3, hidden 2 D; half of the rows from either block
        half = T // 2
        return 2 * T * D * 3 + T * 3 * 2 * D + 2 * D * half * D + half * T * D, 0
    n, B = T * D // 4, 4  # blocks of four
    mixing = n * n * B + n * B * B
    if name == 'unimixer':
        return mixing + swiglu, 0
    return mixing + swiglu, n * 3 * n + n * 2 * B * B  # Lite: rank 3, two basis matrices


OPTIONS = dict(
    hetero_attention=dict(n_head=2),
    hiformer=dict(n_head=2, rank=3),
    fat=dict(n_head=2, n_basis=5, meta=7),
    rankmixer={},
    tokenmixer_large={},
    wukong=dict(rank=3),
    unimixer=dict(block=4),
    unimixer_lite=dict(block=4, rank=3, n_basis=2),
)


@pytest.mark.parametrize('T, D, depth', [(3, 12, 1), (6, 12, 2), (2, 32, 3)])
@pytest.mark.parametrize('name', sorted(RANKERS))
def test_counter_and_formula_agree(name, T, D, depth):
    """Every ranker at three sizes and two batches: 2 for each multiply-add of the formulas, to the
    last one."""
    own = (
        dict(hidden=2 * D) if name in ('wukong', 'unimixer', 'unimixer_lite') else dict(expansion=2)
    )
    if name == 'wukong':
        own |= dict(n_fm=T // 2, n_linear=T // 2) if T % 2 == 0 else {}
    if name == 'wukong' and T % 2:
        T = T - 1
    model = make_ranker(name, FIELDS, T, D, depth, embedding=4 * T, **OPTIONS[name], **own)
    row, call = per_row(name, T, D, 2)
    for b in (1, 7):
        ends = len(FIELDS) * 4 * T * D + D  # the cuts of the embedding to tokens; the head
        assert count_flops(model, table(), b) == 2 * (b * (depth * row + ends) + depth * call)


def attention_of(backend):
    "A function that runs attention by one backend."

    def run(*qkv):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*qkv)

    return run


@pytest.mark.parametrize(
    'heads, queries, keys, e, f', [(2, 4, 4, 4, 4), (1, 5, 7, 3, 6), (3, 1, 9, 8, 8)]
)
def test_attention_counts_alike_by_every_kernel(heads, queries, keys, e, f):
    """Scores and weighted values, 2 b h q k (e + f), fused or written out, and in the layers of the
    library."""
    q, k = torch.randn(2, heads, queries, e), torch.randn(2, heads, keys, e)
    v = torch.randn(2, heads, keys, f)
    want = 2 * 2 * heads * queries * keys * (e + f)
    kernels = [SDPBackend.MATH] + [SDPBackend.FLASH_ATTENTION] * (e == f)
    assert {flops_of(attention_of(kernel), q, k, v) for kernel in kernels} == {want}
    assert flops_of(F.scaled_dot_product_attention, q, k, v) == want
    written = flops_of(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, q, k, v)
    assert written == want


def test_layers_of_the_library_and_products_with_a_vector():
    """A whole attention layer with its fast path on, and products with a vector, have their
    operations."""
    x, layer = torch.randn(2, 5, 12), torch.nn.MultiheadAttention(12, 3, batch_first=True).eval()
    assert torch.backends.mha.get_fastpath_enabled()
    assert flops_of(layer, x, x, x) == 2 * (2 * 5 * 12 * 12 * 4 + 2 * 2 * 3 * 5 * 5 * 4)
    matrix, vector = torch.randn(3, 4), torch.randn(4)
    assert flops_of(torch.mv, matrix, vector) == flops_of(torch.nn.Linear(4, 3), vector) == 2 * 12
    assert flops_of(torch.dot, vector, vector) == 8


@pytest.mark.parametrize('name, T, D', [('hetero_attention', 8, 16), ('fat', 8, 16)])
def test_queries_keys_and_values_are_made_once(name, T, D):
    "A forward pass of an attention calls `project` once."
    attention = make_ranker(name, FIELDS, T, D, 1, embedding=8).backbone.blocks[0].attention
    calls = []
    real = attention.project
    attention.project = lambda x: calls.append(1) or real(x)
    attention(torch.randn(2, T, D))
    assert len(calls) == 1


def test_a_batch_is_a_batch():
    "Counted operations grow with the batch, not with the table; few rows are repeated."
    model, few, many = make_ranker('unimixer', FIELDS, 2, 8, 1, embedding=4), table(5), table(64)
    assert (
        count_flops(model, few, 32)
        == count_flops(model, many, 32)
        == count_flops(model, many, 64) / 2
    )
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
        g = rng.uniform(0.5, 2) * (n / n.mean()) ** rng.uniform(-0.5, 1.5) + rng.normal(
            0, 0.3, len(n)
        )
        law = fit_power_law(n, g, resamples=10) if (g > 0).mean() > 0.5 else None
        if law is None:
            continue
        z = n / n.mean()
        (a, b), _ = curve_fit(
            lambda z, a, b: a * z**b,
            z,
            g,
            p0=(law.coefficient * n.mean() ** law.exponent, law.exponent),
            maxfev=10_000,
        )
        assert abs(b - law.exponent) < 1e-4 and abs(a - law(n.mean())) < 1e-4 * a


def test_a_unit_moves_the_coefficient_only():
    """Parameters in millions or one by one: the exponent and its interval stay, a becomes a 10^(-6
    b)."""
    n, g = np.array([1.0, 3, 10, 30]), np.array([0.003, 0.0035, 0.0039, 0.0047])
    small, large = fit_power_law(n, g), fit_power_law(n * 1e6, g)
    assert abs(small.exponent - large.exponent) < 1e-6
    assert np.allclose(small.exponent_interval, large.exponent_interval, atol=1e-6)
    assert abs(large.coefficient / (small.coefficient * 1e6**-small.exponent) - 1) < 1e-5
    assert np.allclose(small(n), large(n * 1e6))
    low, high = small.band(n)
    assert (low < small(n)).all() and (small(n) < high).all()
    assert (
        small.draws.tolist()
        == fit_power_law(n, g).draws.tolist()
        != fit_power_law(n, g, seed=1).draws.tolist()
    )


STUDIES = {
    'alone': (np.repeat([1.0, 4, 16, 64], 3), 0.003, 0.13, 3e-4, 0),
    'two references': (np.repeat([1.0, 3, 10, 30, 100], 3), 0.003, 0.13, 3e-4, 2),
    'steep, few': (
        np.repeat([0.01, 0.037, 0.08, 0.14, 0.31, 0.55], 3)[:-1],
        0.054,
        0.351,
        0.005,
        3,
    ),
}


@pytest.mark.parametrize('level', [0.9, 0.95])
@pytest.mark.parametrize('name', STUDIES)
def test_intervals_cover(name, level):
    "Simulated runs: the interval holds the truth as often as it says, within 3 standard errors."
    (n, a, b, sd, runs), hits = STUDIES[name], []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        reference = rng.normal(0, sd, runs) if runs else None
        gain = a * n**b + rng.normal(0, sd, len(n)) - (reference.mean() if runs else 0)
        fitted = least_squares_laws(n, gain[None])[1][0]
        low, high = exponent_interval(n, gain, fitted, reference, level)
        assert low <= fitted <= high
        hits.append(low <= b <= high)
    assert abs(np.mean(hits) - level) < 3 * (level * (1 - level) / 600) ** 0.5


def test_a_bend_is_tested_by_regression():
    "The t of `exponent_interval` is that of least squares, by the normal equations."
    n = np.array([1.0, 2, 5, 9, 9])
    gain = np.array([0.3, 0.5, 0.7, 1.0, 0.9])
    reference = np.array([0.5, 0.4, 0.7])
    b = np.array([0.2, 0.6])
    t, free = t_of_a_bend(n, gain, reference, b)
    assert free == 5 + 3 - 3
    for i in range(2):
        X = np.zeros((8, 3))
        X[:, 0] = 1
        X[:5, 1] = n ** b[i]
        X[:5, 2] = n ** b[i] * np.log(n)
        y = np.r_[gain, reference - reference.mean()]
        c = np.linalg.solve(X.T @ X, X.T @ y)
        s2 = ((y - X @ c) ** 2).sum() / free
        wanted = c[2] / np.sqrt(s2 * np.linalg.inv(X.T @ X)[2, 2])
        # QR against normal equations, up to the sign of a column
        assert abs(abs(t[i]) - abs(wanted)) < 1e-8


def test_an_exponent_interval_has_ends():
    """Exact gains give a point; gains that scatter like their size end where exponents end, and
    hold the fit."""
    n = np.repeat([1.0, 4, 16, 64], 3)
    low, high = exponent_interval(n, 0.003 * n**0.4, 0.4)
    assert 0.399 < low <= 0.4 <= high < 0.401
    wild = 0.003 * n**0.4 + np.random.default_rng(1).normal(0, 0.05, 12)
    low, high = exponent_interval(n, wild, least_squares_laws(n, wild[None])[1][0])
    assert -3 <= low <= high <= 3 and high - low > 1
    two = exponent_interval(np.array([1.0, 1, 8]), np.array([1.0, 1.1, 2.0]), 0.31)
    assert two[0] < 0.31 < two[1]


def test_a_scattered_reference_widens_the_interval():
    n = np.repeat([1.0, 4, 16, 64], 3)
    g = 0.003 * n**0.13 + np.random.default_rng(0).normal(0, 1e-4, 12)

    def width(**k):
        return np.diff(fit_power_law(n, g, **k).exponent_interval)[0]

    # scatters like the runs, so the pool stays
    alike = 0.7446 + np.std(g - fit_power_law(n, g)(n), ddof=2) * np.array([-1, 1]) / 2**0.5
    assert width(reference=alike) > 1.08 * width()
    assert width(reference=[0.7436, 0.7446, 0.7456]) > 1.5 * width()
    assert abs(width(reference=[0.7446, 0.7446]) / width() - 1) < 0.1


# --- the published numbers ------------------------------------------------------------------------
# ---------------------------------------


def read(name):
    return pd.read_csv(PUBLISHED / f'unimixer_{name}.csv')


def test_published_gains_are_differences():
    t = read('results')
    assert len(t) == 11 and t.auc[0] == BASE and np.isnan(t.dauc_times_100[0])
    assert np.abs(100 * (t.auc - BASE) - t.dauc_times_100)[1:].max() < 1e-9


def test_published_laws_in_their_units():
    "Millions of parameters, GFLOP per batch, gains absolute; the two checks of the README."
    law = {
        (r.model, r.axis): lambda n, r=r: r.coefficient * n**r.exponent
        for r in read('scaling_fits').itertuples()
    }
    assert len(law) == 6
    assert round(law['UniMixer', 'parameters'](6.57), 6) == round(0.748464 - BASE, 6) == 0.003887
    assert round(law['RankMixer', 'parameters'](135.5), 6) == 0.004804
    t = read('results').set_index('model')
    assert (
        t.dauc_times_100['RankMixer'] == 0.4752
        and round(law['RankMixer', 'flops'](1680), 6) == 0.004808
    )
    for model in ('UniMixer', 'UniMixing-Lite'):
        two = t.loc[[model]].query('blocks == 2')
        for axis, size in (
            ('parameters', two.parameters_millions),
            ('flops', 1000 * two.flops_per_batch_tera),
        ):
            assert np.abs(law[model, axis](size) / (two.dauc_times_100 / 100) - 1).max() < 0.04


def test_published_sweeps_share_their_model():
    t = read('lite_sweep')
    assert (
        len(t) == 12
        and (
            t[
                (t.model == 'UniMixing-Lite')
                & ((t.varied + t.value.astype(str)).isin(['basis2', 'rank128', 'blocks2']))
            ].auc
            == 0.749228
        ).all()
    )
    a = read('ablations')
    assert len(a) == 5 and (a.dauc_times_100 < 0).all() and a.dauc_times_100.abs().sum() > 0.3


def test_measures_without_a_user_to_rank():
    "Nobody has both labels: the other measures are still worth a row."
    found = ranking_measures([0.1, 0.9, 0.4], [0, 1, 1], [1, 2, 2])
    assert (
        math.isnan(found['user_auc'])
        and math.isnan(found['user_auc_weighted'])
        and (found['users'], found['users_left_out']) == (0, 2)
    )
    assert found['auc'] == 1
