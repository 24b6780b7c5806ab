"""Tables for rankers: ids and scales see the training rows only, every loss is counted, and splits
keep their promise."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from delphi_traj.data.interactions import (
    Field,
    InteractionError,
    Interactions,
    encode,
    encode_like,
    split_by_seed,
    split_by_time,
    split_by_user,
)

# -------------------------------------------------------------------------------------------- ids
VALUES = st.one_of(
    st.none(),
    st.just(float('nan')),
    st.sampled_from('abcd'),
    st.integers(0, 4),
    st.sampled_from([(1, 'x'), (2, 'y')]),
)


@st.composite
def tables(draw, values=VALUES):
    """A frame with two categorical fields and a dense one, and a mask of training rows, at least
    one of them True."""
    n = draw(st.integers(1, 12))

    def column(s):
        return draw(st.lists(s, min_size=n, max_size=n))

    frame = pd.DataFrame(
        dict(
            one=pd.Series(column(values), dtype=object),
            two=pd.Series(column(st.sampled_from(['p', 'q', None])), dtype=object),
            size=column(st.one_of(st.none(), st.integers(-5, 5))),
            y=column(st.integers(0, 1)),
        )
    )
    train = np.array(column(st.booleans()))
    assume(train.any() and frame['size'][train].notna().any())
    return frame.astype(dict(size=float)), train


FIELDS = [Field('size', 'dense', 'item'), Field('one', domain='user'), Field('two', domain='item')]


@given(tables(), st.integers(1, 3))
def test_ids_are_those_of_plain_counting(table, min_count):
    frame, train = table
    data = encode(frame, FIELDS, 'y', train=train, min_count=min_count)
    assert (
        [f.name for f in data.fields] == ['one', 'two', 'size']
        and data.categorical.dtype == np.int64
        and data.dense.dtype == data.label.dtype == np.float32
    )
    for c, name in enumerate(['one', 'two']):
        missing = [v is None or v != v for v in frame[name]]
        counts = Counter(
            v for v, t, m in zip(frame[name], train, missing, strict=True) if t and not m
        )
        ids, vocabulary = data.categorical[:, c], data.vocabularies[name]
        assert vocabulary[0] is None and set(vocabulary[1:]) == {
            v for v, n in counts.items() if n >= min_count
        }
        assert (
            len(vocabulary) == len(set(vocabulary)) == data.fields[c].size
            and 0 <= ids.min()
            and ids.max() < data.fields[c].size
        )
        for v, m, i, back in zip(frame[name], missing, ids, data.decode(name), strict=True):
            known = not m and counts[v] >= min_count
            assert (i > 0) == known and (back == v if known else back is None)
        row = data.report.loc[name]
        zero = [
            (v, t)
            for v, t, m, i in zip(frame[name], train, missing, ids, strict=True)
            if i == 0 and not m
        ]
        assert row.rows_rare == sum(counts[v] > 0 for v, _ in zero) and row.rows_unseen == sum(
            counts[v] == 0 for v, _ in zero
        )
        assert row['values'] == len(vocabulary) - 1 and row.rare_values == sum(
            0 < n < min_count for n in counts.values()
        )
        assert (row.missing_train, row.missing_other) == (
            sum(m and t for m, t in zip(missing, train, strict=True)),
            sum(m and not t for m, t in zip(missing, train, strict=True)),
        )


@given(tables())
def test_numbers_are_standardised_by_the_training_rows(table):
    frame, train = table
    data = encode(frame, FIELDS, 'y', train=train)
    known = frame['size'][train].dropna().to_numpy()
    mean = sum(known) / len(known)
    spread = (sum((x - sum(known) / len(known)) ** 2 for x in known) / len(known)) ** 0.5
    want = [
        0 if x != x else (x - mean) / (spread if len(set(known)) > 1 else 1) for x in frame['size']
    ]
    np.testing.assert_allclose(data.dense[:, 0], want, atol=1e-5)
    assert data.report.loc['size', 'missing_train'] == frame['size'][train].isna().sum()
    assert data.report.loc['size', 'missing_other'] == frame['size'][~train].isna().sum()


def old_ids(column, train, min_count):
    "Ids and their values by plain counting, a row at a time."
    missing = [v is None or bool(pd.isna(v)) if np.ndim(v) == 0 else False for v in column]
    counts = {}
    for v, t, m in zip(column, train, missing, strict=True):
        if not m:
            counts[v] = counts.get(v, 0) + t
    kept = [v for v, n in counts.items() if n >= min_count]
    try:
        kept.sort()
    except TypeError:
        kept.sort(key=lambda v: (type(v).__name__, str(v)))
    number = {v: i for i, v in enumerate(kept, 1)}
    return [0 if m else number.get(v, 0) for v, m in zip(column, missing, strict=True)], kept


POOL = [None, np.nan, 'a', 'b', '1', 1, 1.0, True, 2, (1, 'x'), (2,), pd.Timestamp('2020'), b'x']


def test_ids_and_scales_are_those_of_the_plain_formulas():
    """Bit for bit, on columns of one type and of mixed ones: ids by counting in a loop; mean,
    deviation and score by the formulas."""
    rng = np.random.default_rng(0)
    for k in range(200):
        n = rng.integers(2, 40)
        mixed = [POOL[i] for i in rng.integers(0, len(POOL) if k % 2 else 5, n)]
        number = rng.normal(3, 10.0 ** rng.integers(-3, 4), n)
        number[1:][rng.random(n - 1) < 0.2] = np.nan
        train = rng.random(n) < 0.6
        train[0] = True
        frame = pd.DataFrame(dict(one=pd.Series(mixed, dtype=object), size=number, y=0))
        fields = ['one', Field('size', 'dense')]
        data = encode(frame, fields, 'y', train=train, min_count=1 + k % 3)
        ids, kept = old_ids(mixed, train, 1 + k % 3)
        assert data.categorical[:, 0].tolist() == ids
        assert data.vocabularies['one'].tolist() == [None, *kept]
        known = number[train & ~np.isnan(number)]
        mean, deviation = known.mean(), (known.std() if np.ptp(known) else 0) or 1.0
        assert data.scales['size'] == (mean, deviation)
        z = np.nan_to_num((number - mean) / deviation).astype(np.float32)
        np.testing.assert_array_equal(data.dense[:, 0], z)


def test_a_value_that_holds_a_list_is_refused():
    "A tuple has a hash of its own, a tuple with a list in it has none."
    frame = pd.DataFrame(dict(tags=pd.Series([('a',), ('b', ['c'])], dtype=object), y=0))
    with pytest.raises(InteractionError, match=r"field 'tags', row 1: found \('b', \['c'\]\)"):
        encode(frame, ['tags'], 'y')


@given(tables(), st.data())
def test_other_rows_change_no_map(table, data):
    "What stands in the rows that are not for training moves no id, no mean, and no training row."
    frame, train = table
    other = frame.copy()
    for name, values in (('one', ['new', 'a', None]), ('two', ['q', 'z']), ('size', [1e6, np.nan])):
        other.loc[~train, name] = [
            data.draw(st.sampled_from(values)) for _ in range((~train).sum())
        ]
    a, b = (encode(f, FIELDS, 'y', train=train) for f in (frame, other))
    assert a.fields == b.fields and a.scales == b.scales
    assert all(a.vocabularies[k].tolist() == b.vocabularies[k].tolist() for k in a.vocabularies)
    np.testing.assert_array_equal(a.categorical[train], b.categorical[train])
    np.testing.assert_array_equal(a.dense[train], b.dense[train])


@given(tables(), st.randoms())
def test_order_of_rows_does_not_matter(table, random):
    frame, train = table
    order = random.sample(range(len(frame)), len(frame))
    a = encode(frame, FIELDS, 'y', train=train)
    b = encode(frame.iloc[order], FIELDS, 'y', train=train[order])
    np.testing.assert_array_equal(a.categorical[order], b.categorical)
    np.testing.assert_allclose(a.dense[order], b.dense, atol=1e-6)


@given(tables(), st.integers(1, 2))
def test_the_same_frame_again_gives_the_same_rows(table, min_count):
    frame, train = table
    data = encode(frame, FIELDS, 'y', train=train, min_count=min_count)
    again = encode_like(data, frame, 'y')
    for k in ('categorical', 'dense', 'label'):
        np.testing.assert_array_equal(getattr(again, k), getattr(data, k))
    part = data[train]
    assert len(part) == train.sum() and part.fields == data.fields and part.user is None
    np.testing.assert_array_equal(part.categorical, data.categorical[np.flatnonzero(train)])
    assert (
        len(data[0]) == 1
        and len(data[:0]) == 0
        and len(data[[]]) == 0
        and data[[]].categorical.shape == (0, 2)
    )


@pytest.mark.parametrize(
    'values',
    [
        pd.Series(['a', 'b', 'a', None], dtype='category'),
        pd.Series(['a', 'b', 'a', pd.NA], dtype='string'),
        pd.Series([1, 2, 1, pd.NA], dtype='Int64'),
        pd.Series([True, False, True, None], dtype='boolean'),
        pd.Series(pd.to_datetime(['2020-01-01', '2021-01-01', '2020-01-01', None])),
    ],
    ids=str,
)
def test_every_kind_of_column(values):
    data = encode(pd.DataFrame(dict(v=values, y=0)), ['v'], 'y')
    a, b, again, missing = data.categorical[:, 0]
    assert {a, b} == {1, 2} and a == again and missing == 0
    back = data.decode('v')
    assert [back[0], back[1], back[3]] == [values[0], values[1], None]


def test_only_dense_or_only_categorical():
    frame = pd.DataFrame(dict(a=['x', 'y'], b=[1.0, 3.0], y=[0, 1]))
    assert encode(frame, ['a'], 'y').dense.shape == (2, 0) and encode(
        frame, [Field('b', 'dense')], 'y'
    ).categorical.shape == (2, 0)
    assert encode(frame, [Field('b', 'dense')], 'y').dense[:, 0].tolist() == [-1, 1]


def test_users_keep_an_identity_outside_training():
    frame = pd.DataFrame(
        dict(who=['u', 'v', 'u', 'w'], item=[1, 2, 3, 1], y=[0, 1, 0, 1], at=[4, 3, 2, 1])
    )
    data = encode(frame, ['item'], 'y', user='who', time='at', train=[0])
    assert (
        data.user.tolist() == [0, 1, 0, 2]
        and data.time.tolist() == [4, 3, 2, 1]
        and data[2:].time.tolist() == [2, 1]
    )
    assert encode(frame, ['who'], 'y', user='item').user.tolist() == [1, 2, 3, 1]


FRAME = pd.DataFrame(
    dict(
        who=['u', 'v', 'u'],
        tags=['a', ['b'], 'c'],
        price=[1.0, np.inf, 2.0],
        part=[1.0, 2.0, None],
        text=['1', '2', 'x'],
        empty=[None, None, 1.0],
        y=[0, 1, 0],
    ),
    index=['r', 's', 't'],
)


@pytest.mark.parametrize(
    'what, words',
    [
        (lambda: encode(FRAME, ['woh'], 'y'), ["field 'woh'", 'no such column', "'who'"]),
        (lambda: encode(FRAME, ['who', 'who'], 'y'), ["['who'] stand twice"]),
        (lambda: encode(FRAME, ['who', 'y'], 'y'), ["field 'y' is the label"]),
        (lambda: encode(FRAME, [], 'y'), ['found none']),
        (
            lambda: encode(FRAME, ['tags'], 'y'),
            ["field 'tags', row 1 (index 's')", "found ['b']", 'expected', 'join'],
        ),
        (lambda: encode(FRAME, ['who'], 'y', user='tags'), ["user 'tags', row 1"]),
        (
            lambda: encode(FRAME, [Field('price', 'dense')], 'y'),
            [
                "field 'price', row 1 (index 's')",
                'found inf',
                'expected a finite number',
                '1 such row',
            ],
        ),
        (
            lambda: encode(FRAME, [Field('text', 'dense')], 'y'),
            ["field 'text', row 2 (index 't')", "found 'x'"],
        ),
        (
            lambda: encode(FRAME, [Field('empty', 'dense')], 'y', train=[0, 1]),
            ["field 'empty'", 'all 2 training rows are missing', 'leave the field out'],
        ),
        (
            lambda: encode(FRAME, ['who'], 'part'),
            ["label 'part', row 2", 'found nothing', 'drop rows'],
        ),
        (lambda: encode(FRAME, ['who'], 'y', user='part'), ["user 'part', row 2", 'found nothing']),
        (lambda: encode(FRAME, ['who'], 'y', time='at'), ["time 'at'", 'no such column']),
        (lambda: encode(FRAME, ['who'], 'y', train=[3]), ['expected row numbers in 0..2']),
        (lambda: encode(FRAME, ['who'], 'y', train=[-1]), ['from -1']),
        (lambda: encode(FRAME, ['who'], 'y', train=[True]), ['a mask of 1 rows; expected 3']),
        (lambda: encode(FRAME, ['who'], 'y', train=[]), ['no training row among 3']),
        (lambda: encode(FRAME, ['who'], 'y', train=[False] * 3), ['no training row among 3']),
        (lambda: encode(FRAME, ['who'], 'y', min_count=0), ['found 0', 'at least 1']),
        (lambda: encode(FRAME[:0], ['who'], 'y'), ['found no rows']),
        (
            lambda: encode(pd.concat([FRAME.who, FRAME.who, FRAME.y], axis=1), ['who'], 'y'),
            ["field 'who'", '2 columns of that name'],
        ),
        (lambda: encode(FRAME, ['who'], 'y').decode('whom'), ["field 'whom'", "'who'"]),
        (lambda: Field('a', 'number'), ["field 'a'", "found kind 'number'"]),
        (lambda: Field('a', 'dense', size=2), ["field 'a'", 'found size 2']),
        (
            lambda: Interactions(
                (Field('a', size=3),), np.zeros((2, 1), int), np.zeros((3, 0)), np.zeros(2)
            ),
            ['dense', 'found 3 rows', 'expected 2'],
        ),
        (
            lambda: Interactions(
                (Field('a', size=3),), np.zeros((2, 2), int), np.zeros((2, 0)), np.zeros(2)
            ),
            ['categorical', '2 columns', 'expected 1'],
        ),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else '',
)
def test_errors_name_field_row_and_remedy(what, words):
    with pytest.raises(InteractionError) as e:
        what()
    for word in words:
        assert word in str(e.value)


# ----------------------------------------------------------------------------------------- splits
FRACTIONS = st.sampled_from(
    [(0.8, 0.1, 0.1), (0.5, 0.5), (0.6, 0.2, 0.2), (0.25, 0.25, 0.25, 0.25)]
)


@given(st.integers(0, 200), FRACTIONS, st.integers(0, 9))
def test_split_by_seed_parts_the_rows(n, fractions, seed):
    parts = split_by_seed(n, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(n)) and len(parts) == len(fractions)
    assert all(abs(len(p) - f * n) <= 1 for p, f in zip(parts, fractions, strict=True))


def test_split_by_seed_is_the_published_permutation():
    order = np.random.RandomState(2024).permutation(1000)
    for a, b in zip(split_by_seed(1000), (order[:800], order[800:900], order[900:]), strict=True):
        np.testing.assert_array_equal(a, b)


@given(st.lists(st.integers(0, 30), min_size=3, max_size=80), FRACTIONS)
def test_split_by_time_never_overlaps(time, fractions):
    time = np.array(time)
    try:
        parts = split_by_time(time, fractions)
    except InteractionError as e:
        assert 'distinct times' in str(e)
        return
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(time))) and all(map(len, parts))
    for a, b in zip(parts, parts[1:], strict=False):
        assert time[a].max() < time[b].min()
    for cut, want in zip(np.cumsum([len(p) for p in parts]), np.cumsum(fractions), strict=True):
        possible = [int((time < t).sum()) for t in time] + [len(time)]
        assert (
            abs(cut - want * len(time)) <= min(abs(c - want * len(time)) for c in possible) + 1e-9
        )


@given(st.lists(st.integers(-5, 10**12), min_size=1, max_size=60), FRACTIONS, st.integers(0, 5))
def test_split_by_user_keeps_users_whole(user, fractions, seed):
    user = np.array(user + user[:3])
    parts = split_by_user(user, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(user)))
    where = {u: k for k, p in enumerate(parts) for u in user[p]}
    assert sum(len(set(user[p])) for p in parts) == len(where)
    for k, p in enumerate(split_by_user(user[::2], fractions, seed)):
        assert all(where[u] == k for u in user[::2][p])


def test_split_by_user_meets_the_fractions_on_average():
    sizes = [len(p) for p in split_by_user(np.arange(20_000))]
    np.testing.assert_allclose(np.array(sizes) / 20_000, (0.8, 0.1, 0.1), atol=0.01)


@pytest.mark.parametrize(
    'what, words',
    [
        (lambda: split_by_seed(9, (0.5, 0.4)), 'sum to 1'),
        (lambda: split_by_seed(9, (1.5, -0.5)), 'positive'),
        (lambda: split_by_time([1, 1, 1]), '1 distinct times'),
        (lambda: split_by_time([1.0, None, np.nan]), 'row 1'),
        (lambda: split_by_user([1], 1.0), 'positive numbers that sum to 1'),
    ],
)
def test_splits_refuse(what, words):
    with pytest.raises(InteractionError, match=words):
        what()
