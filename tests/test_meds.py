"""MEDS and OMOP: what is read is what stands there, every row is accounted for, and writing loses
nothing."""

import json
import re
import shutil
import warnings
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meds import CodeMetadataSchema, DataSchema, DatasetMetadataSchema, SubjectSplitSchema

from delphi_traj.data import meds, meds_out
from delphi_traj.data import omop as omop_tables
from delphi_traj.data.calendar import days_of, rows_accounted_for
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.events import Cohort, FollowUpWarning
from delphi_traj.data.files import load_cohort, read_delphi, read_delphi_labels, read_frame
from delphi_traj.data.formats import cohort_format, convert, read_cohort, write_cohort
from delphi_traj.data.meds import read_meds
from delphi_traj.data.meds_out import write_meds
from delphi_traj.data.omop import read_omop
from delphi_traj.data.refusals import CohortError
from lives import RECURRENT, VOCAB, cohorts, examples

pytestmark = pytest.mark.filterwarnings('ignore::delphi_traj.data.events.FollowUpWarning')
TEN = Path(__file__).parents[1] / 'data/ten_people'


def ten_people():
    "The hand-written cohort, from its tables."
    return read_frame(
        pd.read_csv(TEN / 'events.csv'),
        pd.read_csv(TEN / 'subjects.csv'),
        read_delphi_labels(TEN / 'labels.csv'),
    )


@pytest.fixture
def fresh(tmp_path):
    "A new folder name at each call."
    names = iter(range(10**6))
    return lambda: tmp_path / f'{next(names)}'


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "A new folder name at each call, for Hypothesis."
    root, names = tmp_path_factory.mktemp('meds'), iter(range(10**6))
    return lambda: root / f'{next(names)}'


def folder_of(path, rows, shards=1, unit='us'):
    "A MEDS folder with rows (subject, time or None, code), subjects dealt to `shards` files."
    for k in range(shards):
        mine = [r for r in rows if r[0] % shards == k]
        if not mine:
            continue
        subject, time, code = zip(*mine, strict=True)
        time = pa.array(
            np.array(
                [np.datetime64('NaT') if t is None else np.datetime64(t) for t in time],
                f'datetime64[{unit}]',
            )
        )
        put(
            path / f'data/train/{k}.parquet',
            dict(
                subject_id=pa.array(subject, pa.int64()),
                time=time,
                code=pa.array(code, pa.string()),
            ),
        )
    return path


def put(path, columns):
    "A parquet file of these columns."
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


# what the writer writes


def test_ten_people_are_the_same_in_every_format():
    ten = ten_people()
    assert read_meds(TEN / 'meds') == ten
    assert read_delphi(TEN / 'cohort.bin', subjects=pd.read_csv(TEN / 'subjects.csv')) == ten
    splits = {name: read_meds(TEN / 'meds', split=name) for name in ('train', 'tuning', 'held_out')}
    assert (
        splits['train'] == ten[:6]
        and splits['tuning'] == ten[6:8]
        and splits['held_out'] == ten[8:]
    )


def test_the_committed_files_are_what_the_writer_writes(fresh):
    splits = {'train': range(1, 7), 'tuning': (7, 8), 'held_out': (9, 10)}
    again = write_meds(ten_people(), fresh(), splits=splits, name='ten people')
    files = sorted(p.relative_to(again) for p in again.rglob('*') if p.is_file())
    assert files == sorted(
        p.relative_to(TEN / 'meds') for p in (TEN / 'meds').rglob('*') if p.is_file()
    )
    for f in files:
        if f.suffix == '.parquet':
            assert pq.read_table(again / f).equals(pq.read_table(TEN / 'meds' / f))
    said, now = (
        json.loads((root / 'metadata/dataset.json').read_text()) for root in (TEN / 'meds', again)
    )
    assert said | {'etl_version': now['etl_version']} == now


def test_the_same_cohort_gives_the_same_bytes(fresh, few_people):
    one, two = (write_meds(few_people, fresh()) for _ in range(2))
    for f in one.rglob('*.*'):
        assert f.read_bytes() == (two / f.relative_to(one)).read_bytes()


@pytest.mark.parametrize('splits', [None, {'train': 0.5, 'tuning': 0.5}])
def test_what_is_written_is_meds(fresh, few_people, splits):
    root = write_meds(few_people, fresh(), splits=splits, people_per_file=7)
    tables = [pq.read_table(f) for f in sorted((root / 'data').rglob('*.parquet'))]
    assert len(tables) >= 4 and all(
        t.column_names == ['subject_id', 'time', 'code', 'numeric_value'] for t in tables
    )
    for t in tables:
        DataSchema.validate(t)
        assert t.schema.types == [pa.int64(), pa.timestamp('us'), pa.string(), pa.float32()]
        frame = t.to_pandas()
        assert (
            frame.subject_id.is_monotonic_increasing
            and frame.time.isna().sum() == frame.code.str.startswith('SEX//').sum()
        )
        assert (
            frame.groupby('subject_id')
            .time.apply(lambda x: x.fillna(pd.Timestamp.min).is_monotonic_increasing)
            .all()
        )
        assert (
            frame.groupby('subject_id')
            .code.apply(lambda c: 'MEDS_DEATH' not in set(c.iloc[:-1]))
            .all()
        )
    seen = [set(t['subject_id'].to_pylist()) for t in tables]
    assert sum(map(len, seen)) == len(set().union(*seen)) == len(few_people)
    codes = pq.read_table(root / 'metadata/codes.parquet')
    CodeMetadataSchema.validate(codes)
    assert set().union(*(t['code'].to_pylist() for t in tables)) <= set(codes['code'].to_pylist())
    DatasetMetadataSchema.validate(json.loads((root / 'metadata/dataset.json').read_text()))
    listed = root / 'metadata/subject_splits.parquet'
    assert listed.exists() == (splits is not None)
    if splits:
        SubjectSplitSchema.validate(pq.read_table(listed))
    assert read_meds(root) == few_people


@given(
    cohort=cohorts(VOCAB) | cohorts(RECURRENT),
    born=st.dates(date(1700, 1, 1), date(2100, 1, 1)),
    fraction=st.sampled_from([0.0, 0.4, 1.0]),
)
@examples(15)
def test_a_cohort_comes_back(place, cohort, born, fraction):
    folder = write_meds(
        cohort,
        place(),
        splits={'train': fraction, 'held_out': 1 - fraction},
        birth_date=born.isoformat(),
    )
    back = read_meds(folder)
    assert back == cohort and rows_accounted_for(back) == back.report['rows read']
    assert (
        back.subjects.dtypes.equals(cohort.subjects.dtypes)
        and back.token.dtype == back.age.dtype == np.int32
    )
    shutil.rmtree(folder)


@given(cohort=cohorts(VOCAB))
@examples(6)
def test_a_known_sex_without_its_token_stays_so(place, cohort):
    no_token = cohort.token >= 4
    person = cohort.subjects.subject_id.to_numpy()[cohort.person]
    bare = Cohort.from_rows(
        VOCAB,
        person[no_token],
        cohort.age[no_token],
        cohort.token[no_token],
        cohort.subjects.drop(columns='died'),
        sex_tokens=False,
    )
    assert read_meds(write_meds(bare, place())) == bare


def test_death_may_have_any_name_and_be_missing(fresh):
    window = pd.DataFrame({'subject_id': [-5], 'sex': ['male'], 'start': [0], 'end': [100]})
    for vocab in (make_vocab(['A'], death='Exitus'), make_vocab(['A'], death=None)):
        for rows in ([], [(-5, 100, 4)], [(-5, 100, 4), (-5, 100, 5)][: len(vocab) - 4]):
            subject, age, token = np.array(rows, dtype=int).reshape(-1, 3).T
            cohort = Cohort.from_rows(vocab, subject, age, token, window)
            assert read_meds(write_meds(cohort, fresh())) == cohort


@pytest.mark.parametrize(
    'name',
    [
        'MEDS_BIRTH',
        'MEDS_BIRTH//1',
        'MEDS_DEATH',
        'OBSERVATION_START',
        'OBSERVATION_END//x',
        'SEX//female',
        'GENDER//M',
    ],
)
def test_names_that_mean_something_else_are_refused(fresh, name):
    cohort = Cohort.from_rows(make_vocab([name]), [1], [5], [4])
    target = fresh()
    with pytest.raises(CohortError, match='mean something else in MEDS'):
        write_meds(cohort, target)
    assert not target.exists()


def test_a_folder_is_written_whole_or_not_at_all(fresh, few_people, monkeypatch):
    target, real, calls = fresh(), meds_out._put, []

    def fails_at_the_second(path, table):
        calls.append(path)
        if len(calls) == 2:
            raise OSError('disk full')
        real(path, table)

    monkeypatch.setattr(meds_out, '_put', fails_at_the_second)
    with pytest.raises(OSError, match='disk full'):
        write_meds(few_people, target)
    assert len(calls) == 2 and not list(target.parent.iterdir())
    monkeypatch.setattr(meds_out, '_put', real)
    target.mkdir()
    write_meds(few_people, target)  # an empty folder is as good as none
    with pytest.raises(CohortError, match='already'):
        write_meds(few_people, target)
    assert read_meds(target) == few_people


@pytest.mark.parametrize(
    'splits, words',
    [
        ({'train': [1, 2]}, 'is in no split'),
        ({'train': range(1, 11), 'x': [3]}, 'subject 3 is in two splits'),
        ({'train': range(1, 12)}, 'subject 11 is in a split but not in the cohort'),
        ({'a/b': 1.0}, 'names that can be folders'),
    ],
)
def test_splits_hold_everybody_once(fresh, splits, words):
    with pytest.raises(CohortError, match=words):
        write_meds(ten_people(), fresh(), splits=splits)


# the reader against plain loops

CODES = ['DOB', 'DOB//x', 'DOD', 'DOD//cancer', 'SEX//F', 'SEX//M', 'Ash', 'Beech', 'LAB//1', 'DO']
START = datetime(1969, 12, 29)
# about three days on each side of 1970, some static
a_time = st.integers(-4, 6 * 8).map(lambda i: START + timedelta(hours=3 * i) if i >= 0 else None)
# mostly events, or most tables would be refused
a_row = st.tuples(st.integers(1, 3), a_time, st.sampled_from(CODES + 3 * CODES[6:]))


def expected(rows):
    """The cohort that `read_meds(..., outside='drop', no_birth='drop', keep=('A', 'B', 'D'))` must
    give, by loops: None where it must refuse."""
    people = {}
    if not any(c in ('DOB', 'DOB//x') for _, _, c in rows) or not any(
        c in ('DOD', 'DOD//cancer') for _, _, c in rows
    ):
        return None
    for subject in sorted({r[0] for r in rows}):
        mine = [(t and t.date(), c) for s, t, c in rows if s == subject]
        birth = {t for t, c in mine if c.startswith('DOB')}
        if None in birth or len(birth) > 1:
            return None
        if not birth:
            continue
        born = birth.pop()
        if (
            any(t is None and c.startswith('DOD') for t, c in mine)
            or len({c for _, c in mine if c.startswith('SEX')}) > 1
        ):
            return None
        sex = next(
            ({'SEX//F': 'female', 'SEX//M': 'male'}[c] for _, c in mine if c.startswith('SEX')),
            'unknown',
        )
        seen = [t for t, c in mine if t is not None and t >= born and not c.startswith('DOB')] or [
            born
        ]
        death = min((t for t, c in mine if c.startswith('DOD')), default=date.max)
        start, last = min(seen), max(seen)
        dead = born <= death <= last
        end = min(last, death) if dead else last
        if start > end:
            continue
        events = [
            (t, 'Death' if c.startswith('DOD') else c)
            for t, c in mine
            if t is not None and c in ('DOD', 'DOD//cancer', 'Ash', 'Beech', 'DO')
        ]
        events = [(t, c) for t, c in events if born <= t <= min(last, death)]
        first = {}
        for t, c in sorted(events):
            first.setdefault(c, (t - born).days)
        people[subject] = (sex, (start - born).days, (end - born).days, dead, first)
    return people or None


def lives_of(cohort):
    "A cohort in the shape of `expected`."
    out, s = {}, cohort.subjects
    for i, p in enumerate(s.itertuples()):
        mine = slice(cohort.offsets[i], cohort.offsets[i + 1])
        first = {
            cohort.vocab.names[t]: int(a)
            for t, a in zip(cohort.token[mine], cohort.age[mine], strict=True)
            if t >= 4
        }
        out[p.subject_id] = (p.sex, p.start, p.end, p.died, first)
    return out


@given(
    rows=st.lists(a_row, min_size=1, max_size=8),
    births=st.sets(st.integers(1, 3)),
    shards=st.integers(1, 2),
)
@examples(60)
def test_the_reader_finds_what_plain_loops_find(place, rows, births, shards):
    rows = (
        rows
        + [(s, START + timedelta(days=1, hours=5 * s), 'DOB') for s in births]
        + [(1, START + timedelta(days=5), 'DOD')]
    )
    folder, wanted = folder_of(place(), rows, shards), expected(rows)

    def read():
        return read_meds(
            folder, birth='DOB', death='DOD', keep=('A', 'B', 'D'), outside='drop', no_birth='drop'
        )

    if wanted is None:
        with pytest.raises(CohortError):
            read()
        return
    cohort = read()
    assert lives_of(cohort) == wanted
    assert rows_accounted_for(cohort) == cohort.report['rows read'] == len(rows)


CLINIC = [
    (1, None, 'GENDER//F'),
    (1, '1950-03-01', 'DOB'),
    (1, '1990-05-02T08:00', 'DE104'),
    (1, '1990-05-02T09:00', 'DI10'),
    (1, '1999-01-01', 'LAB//HBA1C'),
    (1, '2001-07-01', 'DOD'),
    (2, '1961-08-09T12:00', 'DOB'),
    (2, '2004-10-10T10:10', 'DI219'),
    (2, '2004-10-11', 'DE117'),
    (2, '2011-12-13', 'LAB//HBA1C'),
]
NAMED = dict(birth='DOB', death='DOD', end='last')


@given(
    order=st.permutations(CLINIC),
    shards=st.integers(1, 3),
    hours=st.lists(st.integers(0, 23), min_size=10, max_size=10),
)
@examples(12)
def test_order_shards_and_time_of_day_change_nothing(place, order, shards, hours):
    later = [
        (s, t and np.datetime64(t, 'D') + np.timedelta64(h, 'h'), c)
        for (s, t, c), h in zip(order, hours, strict=True)
    ]
    assert read_meds(folder_of(place(), later, shards), **NAMED) == read_meds(
        folder_of(place(), CLINIC), **NAMED
    )


@pytest.mark.parametrize(
    'more, words',
    [
        (
            [(2, '1961-08-10', 'DOB')],
            r'data/train/0.parquet, row 10 \(subject 2\): found a second day of birth, 1961-08-10 '
            r'after 1961-08-09',
        ),
        ([(7, '1961-08-10', 'DI10')], r"row 10 \(subject 7\): found no birth \('DOB'\)"),
        ([(7, None, 'DOB')], r"row 10 \(subject 7\): found 'DOB' without a time"),
        ([(2, None, 'DOD')], r"row 10 \(subject 2\): found 'DOD' without a time"),
        (
            [(1, None, 'GENDER//M')],
            r"row 10 \(subject 1\): found 'GENDER//M' for a person who is female already",
        ),
        ([(1, '2001-07-02', 'DI10')], r"row 10 \(subject 1\): found 'DI10' 1 day\(s\) after death"),
        ([(1, '2001-07-02', 'DOD')], r"row 10 \(subject 1\): found 'DOD' 1 day\(s\) after death"),
        (
            [(2, '1961-08-08T23:59', 'DI10')],
            r"row 10 \(subject 2\): found 'DI10' 1 day\(s\) before birth",
        ),
        ([(1, '2020-01-01', 'LAB//X')], None),
    ],
)
def test_faults_are_refused_with_their_row(fresh, more, words):
    folder = folder_of(fresh(), CLINIC + more)
    if words is None:
        assert read_meds(folder, keep='D', **NAMED).subjects.end[0] == 18750
        return  # death ends it, whatever comes later
    with pytest.raises(CohortError, match=words):
        read_meds(folder, **NAMED)


def test_faults_may_be_dropped_and_are_counted(fresh):
    more = [
        (1, '2001-07-02', 'DI10'),
        (2, '1961-08-08', 'DI10'),
        (7, '1990-01-01', 'DI10'),
        (7, '1990-01-01', 'DI12'),
    ]
    clean = read_meds(folder_of(fresh(), CLINIC), **NAMED)
    messy = read_meds(folder_of(fresh(), CLINIC + more), outside='drop', no_birth='drop', **NAMED)
    assert messy == clean
    counts = {
        k: messy.report[k]
        for k in (
            'rows read',
            'rows after death dropped',
            'rows before birth dropped',
            'people without a birth dropped',
            'rows of people without a birth dropped',
        )
    }
    assert list(counts.values()) == [14, 1, 1, 1, 2] and rows_accounted_for(messy) == 14


def test_a_wrong_code_of_birth_or_death_is_answered_with_candidates(fresh):
    folder = folder_of(fresh(), CLINIC)
    with pytest.raises(
        CohortError, match=r"no births matched the code 'MEDS_BIRTH'.*everybody has once: \['DOB'"
    ):
        read_meds(folder)
    with pytest.raises(CohortError, match=r"no births matched the code 'DO'.*nearest: \['DO[BD]'"):
        read_meds(folder, birth='DO')
    with pytest.raises(
        CohortError, match=r"no deaths matched the code 'MEDS_DEATH'.*nobody has twice.*'DOD'"
    ):
        read_meds(folder, birth='DOB')
    assert not read_meds(folder, birth='DOB', death=None, end='last').subjects.died.any()


def columns(**changed):
    "Columns of a file with one person."
    time = pa.array(np.array(['1950-01-01', '1990-01-01'], 'datetime64[us]'))
    given = (
        dict(subject_id=pa.array([1, 1]), time=time, code=pa.array(['MEDS_BIRTH', 'A'])) | changed
    )
    return {k: v for k, v in given.items() if v is not None}


DATES = np.array(['1950-01-01', '1990-01-01'])


@pytest.mark.parametrize(
    'changed, words',
    [
        (dict(time=None), r"expected also \['time'\]"),
        (dict(code=None), r"expected also \['code'\]"),
        (
            dict(time=pa.array(DATES.tolist())),
            "found column 'time' of type string; expected timestamp",
        ),
        (
            dict(time=pa.array(DATES.astype('datetime64[us]')).cast(pa.timestamp('us', 'UTC'))),
            'tz=UTC',
        ),
        (
            dict(subject_id=pa.array([1.0, 1.0])),
            "found column 'subject_id' of type double; expected int64",
        ),
        (dict(subject_id=pa.array(['1', '1'])), "found column 'subject_id' of type string"),
        (dict(subject_id=pa.array([1, 2**64 - 1], pa.uint64())), 'values that do not fit'),
        (dict(subject_id=pa.array([1, None])), r'row 1 \(subject None\): found no subject_id'),
        (dict(code=pa.array([None, 'A'])), r'row 0 \(subject 1\): found no code'),
        (dict(code=pa.array([1, 2])), "found column 'code' of type int64; expected string"),
    ],
)
def test_wrong_columns_are_refused(fresh, changed, words):
    folder = fresh()
    put(folder / 'data/0.parquet', columns(**changed))
    with pytest.raises(CohortError, match=words):
        read_meds(folder, death=None)


@pytest.mark.parametrize(
    'changed',
    [
        dict(time=pa.array(DATES.astype('datetime64[ns]'))),
        dict(time=pa.array(DATES.astype('datetime64[s]'))),
        dict(time=pa.array(DATES.astype('datetime64[D]'))),
        dict(subject_id=pa.array([1, 1], pa.int32())),
        dict(subject_id=pa.array([1, 1], pa.uint64())),
        dict(code=pa.array(['MEDS_BIRTH', 'A'], pa.large_string())),
        dict(code=pa.array(['MEDS_BIRTH', 'A']).dictionary_encode()),
        dict(numeric_value=pa.array([1.0, 2.0])),
        dict(more=pa.array(['x', 'y'])),
    ],
)
def test_types_that_lose_nothing_are_cast_and_said(fresh, changed):
    plain, other = fresh(), fresh()
    put(plain / 'data/0.parquet', columns())
    put(other / 'data/0.parquet', columns(**changed))
    a, b = (read_meds(f, death=None) for f in (plain, other))
    assert a == b and a.report['columns of other types'] == []
    assert [c.split()[0] for c in b.report['columns of other types']] == [
        c for c in changed if c != 'more'
    ]


def test_nanoseconds_are_cut_not_rounded():
    just_before = np.array(
        ['1969-12-31T23:59:59.999999999', '1970-01-01T00:00:00.000000001'], 'datetime64[ns]'
    )
    table = meds._microseconds(pa.table({'time': pa.array(just_before)}))
    assert days_of(table['time']).tolist() == [-1, 0]


def test_folders_that_are_no_meds(fresh):
    empty = fresh()
    empty.mkdir()
    with pytest.raises(CohortError, match=r'found no file data/\*\*/\*.parquet'):
        read_meds(empty)
    put(empty / 'data/0.parquet', {k: v[:0] for k, v in columns().items()})
    with pytest.raises(CohortError, match='without rows'):
        read_meds(empty)
    (empty / 'data/1.parquet').write_bytes(b'PAR1 not really')
    with pytest.raises(CohortError, match='1.parquet: found no readable parquet file'):
        read_meds(empty)


def test_a_subject_in_two_files_is_refused(fresh):
    folder = folder_of(fresh(), CLINIC)
    put(folder / 'data/tuning/0.parquet', columns())
    with pytest.raises(
        CohortError,
        match=r'data/tuning/0.parquet, row 0 \(subject 1\): found a subject who has rows in '
        r'data/train/0.parquet too',
    ):
        read_meds(folder, **NAMED)


def test_metadata_are_checked(fresh):
    folder = write_meds(ten_people(), fresh())
    (folder / 'metadata/dataset.json').write_text('{"dataset_version": 3.1}')
    with pytest.raises(CohortError, match='dataset.json'):
        read_meds(folder)
    (folder / 'metadata/dataset.json').write_text('{')
    with pytest.raises(CohortError, match='dataset.json'):
        read_meds(folder)
    (folder / 'metadata/dataset.json').unlink()
    put(
        folder / 'metadata/subject_splits.parquet',
        dict(subject_id=[3, 4, 3], split=['train', 'train', 'tuning']),
    )
    with pytest.raises(
        CohortError, match=r"row 2 \(subject 3\): found split 'tuning' after 'train'"
    ):
        read_meds(folder, end='last', split='train')
    put(
        folder / 'metadata/subject_splits.parquet',
        dict(subject_id=[3, 4], split=['train', 'tuning']),
    )
    one = read_meds(folder, start='OBSERVATION_START', end='OBSERVATION_END', split='train')
    assert (
        one.subjects.subject_id.tolist() == [3]
        and rows_accounted_for(one) == one.report['rows read']
    )


# windows


@pytest.mark.parametrize(
    'end, days',
    [
        ('last', (18750, 18388)),
        ('LAB', (17838, 18388)),
        ('2020-01-01', (18750, 21329)),
        (datetime(2020, 1, 1), (18750, 21329)),
        ({1: '2001-07-01', 2: '2012-01-01'}, (18750, 18407)),
        (pd.Series({2: '2012-01-01'}), (18750, 18407)),
    ],
)
def test_ends_of_follow_up(fresh, end, days):
    cohort = read_meds(folder_of(fresh(), CLINIC), **NAMED | dict(end=end, outside='drop'))
    assert tuple(cohort.subjects.end) == days
    # a death after the end is not seen
    assert cohort.subjects.died.tolist() == [not (isinstance(end, str) and end == 'LAB'), False]


def test_starts_of_follow_up(fresh):
    folder = folder_of(fresh(), CLINIC)

    def start(start):
        return read_meds(folder, start=start, **NAMED).subjects.start.tolist()

    assert (
        start(None) == [14672, 15768]
        and start('birth') == [0, 0]
        and start('LAB') == [17838, 18388]
        and start('1960-01-01') == [3593, 0]
    )
    with pytest.raises(CohortError, match="start='VISIT': found no row"):
        start('VISIT')


def test_the_last_row_of_the_code_is_the_end_and_the_first_the_start(fresh):
    folder = folder_of(fresh(), CLINIC + [(1, '2000-01-01', 'LAB//X'), (2, '2005-01-01', 'LAB//X')])
    cohort = read_meds(folder, birth='DOB', death=None, start='LAB', end='LAB', outside='drop')
    assert cohort.subjects.start.tolist() == [17838, 15851] and cohort.subjects.end.tolist() == [
        18203,
        18388,
    ]


def test_a_row_is_left_out_under_one_reason(fresh):
    folder = folder_of(fresh(), CLINIC + [(1, '2001-07-02', 'DI10')])
    cohort = read_meds(
        folder,
        **NAMED
        | dict(end='2001-07-01', outside='drop', codes=lambda c: c if c.startswith('D') else None),
    )
    assert (
        cohort.report['rows after death dropped'],
        cohort.report['rows after the end dropped'],
    ) == (1, 2)  # two rows of person 2
    assert rows_accounted_for(cohort) == cohort.report['rows read'] == 11


def test_people_never_under_observation(fresh):
    folder = folder_of(fresh(), CLINIC)
    with pytest.raises(CohortError):
        read_meds(folder, **NAMED | dict(end='2003-01-01'))
    cut = read_meds(folder, **NAMED | dict(end='2003-01-01', outside='drop'))
    assert (
        cut.subjects.subject_id.tolist() == [1]
        and cut.report['people never under observation dropped'] == 1
    )
    assert rows_accounted_for(cut) == cut.report['rows read'] == 10


def test_a_guessed_end_is_warned_of_with_its_number(fresh):
    folder = folder_of(fresh(), CLINIC)
    guessed = NAMED | dict(end=None)
    with pytest.warns(
        FollowUpWarning,
        match='no start of observation for 2 people.*no end of observation for 1 people',
    ):
        read_meds(folder, **guessed)  # the other one died, and death is an end
    with pytest.warns(FollowUpWarning, match='no end of observation for 1 people'):
        read_meds(folder, **guessed | dict(end={1: '2001-07-01'}))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        read_meds(folder, **NAMED | dict(start='birth'))
        read_meds(TEN / 'meds')


# codes


def test_translations(fresh):
    folder = folder_of(fresh(), CLINIC)
    cut = read_meds(folder, codes=lambda c: c[1:4] if c.startswith('D') else None, **NAMED)
    assert (
        cut.vocab.names[4:] == ('E10', 'E11', 'I10', 'I21', 'Death')
        and cut.report['rows without a translation dropped'] == 2
    )
    table = read_meds(folder, codes={'DE104': 'Diabetes', 'DE117': 'Diabetes'}, **NAMED)
    assert table.vocab.names[4:] == ('Diabetes', 'Death') and table.frame().code.tolist() == [
        'Female',
        'Diabetes',
        'Death',
        'Diabetes',
    ]
    with pytest.raises(
        CohortError,
        match=r"row 3 \(subject 1\): found the unknown code 'DI10' \(nearest: \['DI10X'",
    ):
        read_meds(folder, make_vocab(['DI10X', 'DE104']), **NAMED)
    some = read_meds(folder, make_vocab(['DI10', 'Never']), unknown='drop', **NAMED)
    assert (
        some.report['rows with unknown codes dropped'] == 5
        and rows_accounted_for(some) == 10
        and len(some.vocab) == 7
    )


def test_our_own_folder_with_another_vocabulary(fresh):
    ten = ten_people()
    vocab = make_vocab(['Asthma', 'Stroke'], death='Exitus')
    assert read_meds(TEN / 'meds', ten.vocab) == ten
    # drops the sex tokens, which come back from the table
    cut = read_meds(TEN / 'meds', codes=lambda c: c if c in ('Asthma', 'Stroke') else None)
    assert (
        cut.vocab.names[4:] == ('Asthma', 'Stroke', 'Death')
        and cut.report['sex tokens added'] == 9
        and rows_accounted_for(cut) == cut.report['rows read']
    )
    got = read_meds(TEN / 'meds', vocab, unknown='drop')
    assert (
        got.vocab == vocab
        and got.subjects.died.equals(ten.subjects.died)
        and set(got.frame().code) == {'Female', 'Male', 'Asthma', 'Stroke', 'Exitus'}
    )


@pytest.mark.parametrize('wrong', [dict(unknown='skip'), dict(outside='x'), dict(no_birth=None)])
def test_unknown_modes(wrong):
    with pytest.raises(ValueError, match="expected 'error' or 'drop'"):
        read_meds(TEN / 'meds', **wrong)


# OMOP

PERSON = pd.DataFrame(
    {
        'person_id': [1, 2, 3],
        'gender_concept_id': [8532, 8507, 8551],
        'year_of_birth': [1953, 1960, 1971],
        'month_of_birth': [4, 1, 6],
        'day_of_birth': [2, 31, 1],
    }
)
CONDITION = pd.DataFrame(
    {
        'person_id': [1, 1, 2, 2],
        'condition_concept_id': [7, 8, 7, 0],
        'condition_start_date': ['1981-04-03', '1999-06-01', '2001-02-03', '2002-01-01'],
        'condition_source_value': ['J45.9', 'I10', 'J45.1', None],
    }
)
DEATH = pd.DataFrame({'person_id': [1], 'death_date': ['2020-01-01']})
PERIOD = pd.DataFrame(
    {
        'person_id': [1, 2, 2, 3],
        'observation_period_start_date': ['1980-01-01', '1995-01-01', '2005-01-01', '1980-01-01'],
        'observation_period_end_date': ['2020-01-01', '2000-01-01', '2010-01-01', '1990-01-01'],
    }
)
CONCEPT = pd.DataFrame(
    {
        'concept_id': [7, 8],
        'concept_name': ['Asthma', 'Hypertension'],
        'concept_code': ['J45', 'I10'],
    }
)


@pytest.fixture
def omop(fresh):
    "Reads the small tables above, some of them changed or left out, from CSV or parquet."

    def read(form='csv', options=None, **changed):
        folder = fresh()
        folder.mkdir()
        for name, table in (
            dict(
                person=PERSON,
                condition_occurrence=CONDITION,
                death=DEATH,
                observation_period=PERIOD,
                concept=CONCEPT,
            )
            | changed
        ).items():
            if table is None:
                continue
            if form == 'csv':
                table.rename(columns=str.upper).to_csv(folder / f'{name}.csv', index=False)
            else:
                table.to_parquet(folder / f'{name}.parquet')
        return read_omop(folder, **(options or {}))

    return read


@pytest.mark.parametrize('form', ['csv', 'parquet'])
def test_omop(omop, form):
    cohort = omop(form)

    def days(a, b):
        return (pd.Timestamp(a) - pd.Timestamp(b)).days

    assert lives_of(cohort) == {
        1: (
            'female',
            days('1980-01-01', '1953-04-02'),
            days('2020-01-01', '1953-04-02'),
            True,
            {
                'Asthma': days('1981-04-03', '1953-04-02'),
                'Hypertension': days('1999-06-01', '1953-04-02'),
                'Death': days('2020-01-01', '1953-04-02'),
            },
        ),
        2: (
            'male',
            days('1995-01-01', '1960-01-31'),
            days('2010-01-01', '1960-01-31'),
            False,
            {'Asthma': days('2001-02-03', '1960-01-31')},
        ),
        3: (
            'unknown',
            days('1980-01-01', '1971-06-01'),
            days('1990-01-01', '1971-06-01'),
            False,
            {},
        ),
    }
    assert (
        cohort.report['rows without a concept dropped'] == 1
        and cohort.report['people with gaps between periods'] == 1
    )
    assert rows_accounted_for(cohort) == cohort.report['rows read'] == 5


def test_omop_codes(omop):
    def names(**options):
        return omop(options=options).vocab.names[4:]

    assert names(name='concept_code') == ('I10', 'J45', 'Death') and names(
        column='condition_source_value'
    ) == ('I10', 'J45.1', 'J45.9', 'Death')
    assert names(column='condition_source_value', codes=lambda c: c[:3]) == ('I10', 'J45', 'Death')
    assert (
        omop(concept=None).vocab.names[4:] == ('7', '8', 'Death')
        and omop(death=None, observation_period=None).vocab.death is None
    )


@pytest.mark.parametrize(
    'changed, words',
    [
        (
            dict(condition_occurrence=CONDITION.replace('1981-04-03', '1953-04-01')),
            r"condition_occurrence, row 0 \(subject 1\): found 'Asthma' 1 day\(s\) before birth",
        ),
        (
            dict(condition_occurrence=CONDITION.replace('1999-06-01', '2020-01-02')),
            r"condition_occurrence, row 1 \(subject 1\): found 'Hypertension' 1 day\(s\) after "
            r"death",
        ),
        (
            dict(condition_occurrence=CONDITION.replace('2001-02-03', '2011-02-03')),
            r"row 2 \(subject 2\): found 'Asthma' 398 day\(s\) after the end",
        ),
        (
            dict(condition_occurrence=CONDITION.replace('2001-02-03', 'soon')),
            r"row 2 \(subject 2\): found condition_start_date 'soon'; expected a date",
        ),
        (
            dict(condition_occurrence=CONDITION.replace({'person_id': {2: 9}})),
            r'row 2 \(subject 9\): found a person who is not in the table person',
        ),
        (
            dict(condition_occurrence=CONDITION.assign(person_id=[1, 1, None, 2])),
            r'condition_occurrence, row 2: found person_id nan; expected a whole number',
        ),
        (dict(condition_occurrence=None), 'found no condition_occurrence.parquet or .csv'),
        (dict(person=None), 'found no person.parquet or .csv'),
        (
            dict(condition_occurrence=CONDITION.drop(columns='condition_concept_id')),
            r"expected also \['condition_concept_id'\]",
        ),
        (dict(person=PERSON.drop(columns='year_of_birth')), r"expected also \['year_of_birth'\]"),
        (
            dict(person=pd.concat([PERSON, PERSON[:1]], ignore_index=True)),
            r'person, row 3 \(subject 1\): found a second row',
        ),
        (
            dict(person=PERSON.assign(year_of_birth=[1953, None, 1971])),
            r'person, row 1 \(subject 2\): found no date of birth',
        ),
        (
            dict(person=PERSON.assign(month_of_birth=[4, 2, 6])),
            r'person, row 1 \(subject 2\): found no date of birth',
        ),  # 31 February
        (
            dict(death=DEATH.assign(death_date='2020-01-02')),
            r"death, row 0 \(subject 1\): found 'MEDS_DEATH' 1 day\(s\) after the end of follow-up",
        ),
    ],
)
def test_omop_faults(omop, changed, words):
    with pytest.raises(CohortError, match=words):
        omop(**changed)


@given(
    year=st.integers(1900, 2000),
    month=st.none() | st.integers(1, 12),
    day=st.none() | st.integers(1, 28),
    first=st.none() | st.integers(-400, 400),
)
@examples(50)
def test_births_of_which_a_part_is_withheld(year, month, day, first):
    person = pd.DataFrame(
        {'year_of_birth': [year], 'month_of_birth': [month], 'day_of_birth': [day]}, dtype=float
    )
    seen = None if first is None else date(year, 7, 1) + timedelta(days=first)

    def number(d):
        return (d - date(1970, 1, 1)).days

    born, placed, exact = omop_tables._omop_births(
        person, pd.Series([np.nan if seen is None else number(seen)])
    )
    if month and day:
        assert (born[0], placed, exact) == (number(date(year, month, day)), 0, 0)
        return
    low, middle = (
        (date(year, month, 1), date(year, month, 15))
        if month
        else (date(year, 1, 1), date(year, 7, 1))
    )
    wanted = middle if seen is None or seen > middle else max(seen, low)
    assert (born[0], placed) == (number(wanted), 1)


# any format


def test_formats_are_recognised_and_converted(fresh, few_people):
    ten = ten_people()
    folder = fresh()
    for source, target, options in (
        (TEN / 'meds', folder / 'ten.bin', {}),
        (folder / 'ten.bin', folder / 'csv', {'format': 'csv'}),
        (folder / 'csv', folder / 'meds', {}),
    ):
        cohort, written = convert(source, target, **options)
        assert cohort == ten and read_cohort(target) == ten and all(p.exists() for p in written)
    assert [cohort_format(folder / n) for n in ('ten.bin', 'csv', 'meds')] == [
        'delphi',
        'csv',
        'meds',
    ]
    rows = [
        sorted(map(tuple, np.fromfile(f, '<u4').reshape(-1, 3).tolist()))
        for f in (folder / 'ten.bin', TEN / 'cohort.bin')
    ]
    assert (
        rows[0] == rows[1]
        and (folder / 'labels.csv').read_bytes() == (TEN / 'labels.csv').read_bytes()
    )  # the order within a day is ours
    with pytest.raises(CohortError, match='found a file already'):
        convert(TEN / 'meds', folder / 'ten.bin')
    assert read_cohort(TEN / 'cohort.bin') == load_cohort(TEN / 'cohort.bin')
    write_cohort(few_people, folder / 'few')
    with pytest.raises(CohortError, match='cannot stand in a .bin file'):
        convert(folder / 'few', folder / 'few.bin')
    assert not (folder / 'few.bin').exists()


def test_what_a_format_cannot_hold_is_said(fresh):
    ten, folder = ten_people(), fresh()
    own = ten.token >= 4
    bare = Cohort.from_rows(
        ten.vocab,
        ten.subjects.subject_id.to_numpy()[ten.person[own]],
        ten.age[own],
        ten.token[own],
        ten.subjects,
        sex_tokens=False,
    )
    write_cohort(bare, folder / 'bare')
    assert convert(folder / 'bare', folder / 'again')[0] == bare
    with pytest.raises(CohortError, match='reads back as another cohort'):
        convert(folder / 'bare', folder / 'csv', format='csv')  # which adds sex tokens


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda new: read_cohort(new), 'found neither a .bin file nor a folder'),
        (lambda new: convert(TEN / 'meds', new, format='xml'), "expected 'meds' or 'csv'"),
        (lambda new: convert(TEN / 'meds', TEN / 'meds'), 'already'),
        (lambda new: convert(TEN / 'meds', TEN, format='csv'), 'already'),
        (lambda new: read_cohort(TEN / 'cohort.bin', end='last'), 'belong to MEDS and OMOP'),
        (
            lambda new: write_cohort(ten_people()[[2]], new.with_suffix('.bin')),
            'found nobody who died',
        ),
    ],
)
def test_conversions_that_are_refused(fresh, call, words):
    with pytest.raises(ValueError, match=words):
        call(fresh())


# real folders


def icd(code):
    "The ICD category of a Danish code: DE104 -> E10; None for others."
    return code[1:4] if re.match(r'D[A-Z]\d\d', code) else None


def test_meds_bonsai(data_folder):
    folder = data_folder('MEDS_BONSAI')
    with pytest.raises(CohortError, match=r"no births matched the code 'MEDS_BIRTH'.*'DOB'"):
        read_meds(folder)
    with pytest.raises(CohortError, match=r"no deaths matched the code 'MEDS_DEATH'.*'DOD'"):
        read_meds(folder, birth='DOB')
    named = dict(birth='DOB', death='DOD', codes=icd)
    with pytest.raises(
        CohortError,
        match=r'data/held_out/0.parquet, row \d+ \(subject \d+\): found .* day\(s\) after '
        r'death.*594 such row',
    ):
        read_meds(folder, **named)
    with pytest.warns(FollowUpWarning, match='1,500 people'):
        cohort = read_meds(folder, outside='drop', **named)
    assert (len(cohort), len(cohort.token), cohort.subjects.died.sum()) == (1500, 2902, 305)
    assert cohort.vocab.names[4:] == (
        'E10',
        'E11',
        'O60',
        'Death',
    ) and cohort.subjects.sex.value_counts().to_dict() == {'male': 787, 'female': 713, 'unknown': 0}
    counts = {
        'rows read': 121783,
        'rows after death dropped': 594,
        'ends moved to death': 97,
        'rows without a translation dropped': 101914,
        'repeated codes dropped': 14873,
    }
    assert {k: cohort.report[k] for k in counts} == counts and rows_accounted_for(cohort) == 121783
    assert cohort.report['columns of other types'] == [
        'numeric_value is double',
        'time is timestamp[ns]',
    ]
    parts = [
        read_meds(folder, outside='drop', split=s, **named) for s in ('train', 'tuning', 'held_out')
    ]
    assert [len(p) for p in parts] == [500, 500, 500] and sum(len(p.token) for p in parts) == 2902


def test_meds_bonsai_comes_back(data_folder, fresh):
    cohort = read_meds(
        data_folder('MEDS_BONSAI'),
        birth='DOB',
        death='DOD',
        outside='drop',
        keep=('DE', 'DO6', 'DDZ'),
        end='last',
        first_occurrence=False,
    )
    assert read_meds(write_meds(cohort, fresh())) == cohort and len(cohort.token) > 10_000


def test_omop_synthea(data_folder, fresh):
    cohort = read_cohort(data_folder('OMOP_SYNTHEA27'))
    # 470 conditions and 3 deaths
    assert (len(cohort), cohort.report['rows read'], cohort.subjects.died.sum()) == (28, 473, 3)
    assert (
        cohort.report['repeated codes dropped'] == 208
        and len(cohort.token) == 293
        and cohort.report['sex tokens added'] == 28
    )
    assert cohort.vocab.kinds.count('disease') == 70 and rows_accounted_for(cohort) == 473
    all_rows = read_omop(data_folder('OMOP_SYNTHEA27'), first_occurrence=False)
    assert len(all_rows.token) == 473 + 28 - all_rows.report['repeated codes dropped']
    assert convert(data_folder('OMOP_SYNTHEA27'), fresh())[0] == cohort
