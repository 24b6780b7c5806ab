"""Simulated clicks: the logit is its terms, interactions are nothing else, and the best AUC is the
best."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from delphi_traj.data.clicks import (
    centred,
    deviation,
    expected_auc,
    interaction_table,
    simulate_interactions,
)
from delphi_traj.data.interactions import InteractionError


# -------------------------------------------------------------------------------------- simulator
@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 99))
def test_an_interaction_is_nothing_but_interaction(shape, rank, seed):
    rng = np.random.default_rng(seed)
    weights = [rng.dirichlet(np.ones(n)) for n in shape]
    table = interaction_table(rng, weights, rank, 0.7)
    for axis, w in enumerate(weights):
        assert abs(np.moveaxis(table, axis, -1) @ w).max() < 1e-9
    joint = np.einsum(','.join('abc'[: len(shape)]) + '->' + 'abc'[: len(shape)], *weights)
    assert (
        abs((joint * table**2).sum() ** 0.5 - 0.7) < 1e-9
        and abs(deviation(table, weights) - 0.7) < 1e-9
    )
    np.testing.assert_allclose(centred(table, weights), table, atol=1e-9)
    if len(shape) == 2:
        assert np.linalg.matrix_rank(table, tol=1e-9) <= min(rank, min(shape) - 1)


PROBABILITIES = st.lists(
    st.one_of(st.sampled_from([0.1, 0.5, 0.9]), st.floats(0.01, 0.99)), min_size=2, max_size=12
)


@given(PROBABILITIES)
def test_expected_auc_is_the_sum_over_pairs(p):
    won = total = 0
    for i in range(len(p)):
        for j in range(len(p)):
            if i == j:
                continue
            total += p[i] * (1 - p[j])
            won += p[i] * (1 - p[j]) * ((p[i] > p[j]) + (p[i] == p[j]) / 2)
    assert abs(expected_auc(p) - won / total) < 1e-9 and 0.5 - 1e-9 <= expected_auc(p) <= 1


@given(st.lists(st.floats(0.01, 0.99), min_size=2, max_size=5))
def test_no_other_order_wins_more_pairs(p):
    "Every ranking of the rows, by its expected number of pairs in the right order."

    def won(rank):
        return sum(
            p[i] * (1 - p[j]) for i in range(len(p)) for j in range(len(p)) if rank[i] > rank[j]
        )

    truth = np.argsort(np.argsort(p, kind='stable'), kind='stable')
    assert won(truth) >= max(map(won, permutations(range(len(p))))) - 1e-12


@pytest.fixture(scope='module')
def known_world():
    return simulate_interactions(30_000, seed=3)


def test_the_logit_is_its_terms(known_world):
    logit = known_world.intercept + sum(known_world.terms[k] for k in known_world.terms)
    np.testing.assert_allclose(1 / (1 + np.exp(-logit)), known_world.probability, atol=1e-12)
    frame = known_world.frame
    for names, table in known_world.tables.items():
        row = frame.iloc[17]
        cell = table[tuple(int(row[k]) for k in names if k != 'log_price')] * (
            row.log_price if 'log_price' in names else 1
        )
        assert abs(known_world.terms[' × '.join(names)][17] - cell) < 1e-12
    np.testing.assert_allclose(
        known_world.terms.std()[known_world.pairs.fields], known_world.pairs.deviation, rtol=0.06
    )
    assert (
        abs(frame.clicked.mean() - 0.3) < 0.02 and abs(known_world.probability.mean() - 0.3) < 0.01
    )


def test_terms_explain_nothing_of_each_other(known_world):
    "Interactions of independent fields are uncorrelated with every field alone."
    terms = known_world.terms
    pairs = [
        'region × brand',
        'hour × category',
        'age_band × category',
        'age_band × category × device',
    ]
    alone = [k for k in terms if '×' not in k]
    assert abs(terms.corr().loc[pairs, alone].to_numpy()).max() < 0.04


def test_clicks_follow_the_probability(known_world):
    bins = np.digitize(known_world.probability, np.linspace(0, 1, 11)[1:-1])
    for k in range(10):
        rows = bins == k
        p = known_world.probability[rows]
        assert abs(known_world.frame.clicked[rows].sum() - p.sum()) < 4 * (p * (1 - p)).sum() ** 0.5


def test_best_auc_two_ways(known_world):
    p = known_world.probability
    redrawn = [roc_auc_score(np.random.default_rng(k).random(len(p)) < p, p) for k in range(6)]
    assert abs(known_world.best_auc() - expected_auc(p)) < 5 * np.std(redrawn)
    assert abs(np.mean(redrawn) - expected_auc(p)) < 5 * np.std(redrawn) / 6**0.5
    assert all(
        known_world.auc_without([k]) < known_world.best_auc() for k in known_world.pairs.fields
    )
    assert (
        abs(
            known_world.best_auc(np.arange(500))
            - roc_auc_score(known_world.frame.clicked[:500], p[:500])
        )
        < 1e-12
    )


def test_a_longer_table_begins_with_the_shorter(known_world):
    short = simulate_interactions(700, seed=3)
    pd.testing.assert_frame_equal(short.frame, known_world.frame[:700])
    np.testing.assert_array_equal(short.probability, known_world.probability[:700])
    assert (
        simulate_interactions(700, seed=4).frame.user != short.frame.user
    ).any() and short.intercept == known_world.intercept


def test_users_and_items_carry_their_attributes(known_world):
    frame = known_world.frame
    for owner, names in (('user', ['region', 'age_band']), ('item', ['brand', 'category'])):
        assert (frame.groupby(owner)[names].nunique() == 1).all(axis=None)
    counts = frame.user.value_counts()
    assert (
        abs(counts.idxmax()) < 3
        and abs(counts.max() / 30_000 - 1 / (np.arange(1, 1001.0) ** -0.8).sum()) < 0.006
    )


def test_a_world_without_effects_knows_nothing():
    none = simulate_interactions(
        300,
        mains={
            k: 0
            for k in (
                'user',
                'region',
                'age_band',
                'item',
                'brand',
                'category',
                'hour',
                'device',
                'log_price',
                'log_days',
            )
        },
        pairs={},
        rate=0.2,
    )
    np.testing.assert_allclose(none.probability, 0.2, atol=1e-9)
    assert abs(expected_auc(none.probability) - 0.5) < 1e-6 and len(none.pairs) == 0


def test_other_worlds():
    other = simulate_interactions(
        400,
        sizes=dict(user=7, item=5),
        pairs={('user', 'item'): (2, 1.0), ('hour', 'log_days'): (1, 0.5)},
        power=0,
    )
    assert other.frame.user.nunique() == 7 and other.tables['user', 'item'].shape == (7, 5)
    np.testing.assert_allclose(
        other.terms['hour × log_days'],
        other.tables['hour', 'log_days'][other.frame.hour] * other.frame.log_days,
        atol=1e-12,
    )
    data = other.encode(np.arange(300))
    assert (
        len(data) == 400
        and [f.name for f in data.fields][-2:] == ['log_price', 'log_days']
        and len(other.interactions) == 400
    )
    np.testing.assert_allclose(data.dense[:300].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(data.dense[:300].std(0), 1, atol=1e-4)
    for bad in (
        dict(sizes=dict(users=3)),
        dict(mains=dict(prize=1)),
        dict(pairs={('user', 'itme'): (1, 1)}),
        dict(pairs={('user', 'user'): (1, 1)}),
        dict(pairs={('user',): (1, 1)}),
    ):
        with pytest.raises(InteractionError, match='field|pairs'):
            simulate_interactions(10, **bad)
    with pytest.raises(InteractionError, match='at least one row'):
        simulate_interactions(0)
