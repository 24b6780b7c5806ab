"""Readers and writers: any bytes give a cohort that can be trusted or a CohortError, and nothing is
lost on the way back."""

import struct
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from delphi_traj.data.codes import Vocab, make_vocab
from delphi_traj.data.events import MAX_AGE, Cohort, FollowUpWarning, join, subject_hash
from delphi_traj.data.files import load_cohort, read_delphi, read_frame, write_delphi
from delphi_traj.data.refusals import CohortError
from lives import RECURRENT, VOCAB, a_life, cohorts, examples, table_of

pytestmark = pytest.mark.filterwarnings('ignore::delphi_traj.data.events.FollowUpWarning')

LABELS = [
    'Padding',
    'No event',
    'Female',
    'Male',
    *(f'Habit {i}' for i in range(9)),
    'Ash',
    'Beech',
    'Cedar',
    'Death',
]
DEATH = len(LABELS) - 2  # its id in the file, one below the model's


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "A folder with labels.csv, and a function that writes bytes there and reads them as a cohort."
    folder = tmp_path_factory.mktemp('delphi')
    (folder / 'labels.csv').write_text('\n'.join(LABELS) + '\n')

    def read(data):
        (folder / 'people.bin').write_bytes(data)
        return read_delphi(folder / 'people.bin')

    read.path = folder / 'people.bin'
    return read


def packed(rows):
    "Rows (subject, age, file id) as the bytes of a Delphi file."
    return b''.join(struct.pack('<3I', *row) for row in rows)


def expected_rows(data):
    """What the reader must find, by plain loops: sorted (subject, age, model id), or None where it
    must refuse."""
    if not data or len(data) % 12:
        return None
    rows = [(s, a, k + 1) for s, a, k in struct.iter_unpack('<3I', data)]
    blocks = [s for i, (s, _, _) in enumerate(rows) if not i or rows[i - 1][0] != s]
    if len(blocks) != len(set(blocks)):
        return None
    out, dead = [], 0
    for subject in blocks:
        life = [(a, k) for s, a, k in rows if s == subject]
        if life != sorted(life, key=lambda row: row[0]):
            return None
        if any(not 2 <= k < len(LABELS) or a > MAX_AGE for a, k in life):
            return None
        if {k for _, k in life} >= {2, 3}:
            return None
        died = [a for a, k in life if k == DEATH + 1]
        if died and life[-1][0] > died[0]:
            return None
        dead += bool(died)
        firsts = {}
        for a, k in life:
            firsts.setdefault(k, a)
        out += sorted(
            ((subject, a, k) for k, a in firsts.items()),
            key=lambda r: (r[1], r[2] == DEATH + 1, r[2]),
        )
    return sorted(out, key=lambda r: r[0]) if dead else None


def rows_of(cohort):
    "All events of a cohort as (subject, age, model id)."
    return list(
        zip(
            cohort.subjects.subject_id.to_numpy()[cohort.person].tolist(),
            cohort.age.tolist(),
            cohort.token.tolist(),
            strict=True,
        )
    )


def agrees(place, data):
    """True where reader and reference refuse alike, or find the same rows; any other exception
    passes through."""
    wanted = expected_rows(data)
    try:
        cohort = place(data)
    except CohortError as refusal:
        return wanted is None and place.path.name in str(refusal)
    report = cohort.report
    return (
        rows_of(cohort) == wanted
        and report['rows read'] == len(data) // 12 == len(wanted) + report['repeated codes dropped']
    )


# few subjects, days and codes: much collides
a_row = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, DEATH))


@st.composite
def valid_rows(draw):
    """Rows of a file that the reader takes: subjects in ascending blocks, ages that do not fall,
    any order within a day."""
    rows = draw(st.lists(a_row, min_size=1, max_size=12)) + [(draw(st.integers(0, 3)), 5, DEATH)]
    rows = sorted(dict.fromkeys(rows), key=lambda row: row[:2])
    assume(expected_rows(packed(rows)) is not None)
    return rows


@given(data=st.binary(max_size=120))
@examples(100)
def test_any_bytes(place, data):
    "Random bytes are refused with CohortError."
    assert agrees(place, data)


@given(rows=st.lists(a_row, max_size=8))
@examples(300)
def test_any_small_rows(place, rows):
    """Rows of small numbers, sorted or not, are read as the reference reads them, or refused as it
    refuses them."""
    assert agrees(place, packed(rows)) and agrees(place, packed(sorted(rows)))


@given(rows=valid_rows(), data=st.data())
@examples(200)
def test_damaged_files(place, rows, data):
    """A byte changed, a piece cut out or a piece repeated in a valid file: the result is what the
    new bytes say, or CohortError."""
    whole = packed(rows)
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin, min(begin + 24, len(whole))))
    flipped = bytearray(whole)
    flipped[begin] ^= data.draw(st.integers(1, 255))
    for damaged in (
        bytes(flipped),
        whole[:begin] + whole[end:],
        whole[:end] + whole[begin:],
        whole[:end],
    ):
        assert agrees(place, damaged)


@given(rows=valid_rows())
@examples(100)
def test_round_trip(place, rows):
    "Reading and writing gives back the same bytes, whatever the order within a day."
    cohort = place(packed(rows))
    assume(not cohort.report['repeated codes dropped'])
    assert write_delphi(cohort, place.path.with_name('back.bin')).read_bytes() == packed(rows)


def test_round_trip_of_unsorted_subjects(place):
    "A file whose blocks of subjects are not in ascending order also comes back as it was."
    whole = packed([(5, 10, 13), (5, 20, DEATH), (3, 11, 14)])
    assert write_delphi(place(whole), place.path.with_name('back.bin')).read_bytes() == whole


def test_reading_has_no_python_loop(place):
    "Reading 20 times the people executes exactly as many lines of its two modules."

    def lines(n):
        count = 0

        def local(frame, event, arg):
            nonlocal count
            count += event == 'line'
            return local

        def start(frame, event, arg):
            return local if frame.f_code.co_filename.endswith(('events.py', 'files.py')) else None

        data = packed([(i, 100 + j, [2, 12 + j, DEATH][j]) for i in range(n) for j in range(3)])
        before = sys.gettrace()
        sys.settrace(start)
        try:
            assert len(place(data)) == n
        finally:
            sys.settrace(before)
        return count

    assert lines(10) == lines(200) > 20


REFUSED = {
    'odd byte count': (packed([(1, 5, 13)]) + b'x', ['13 bytes', 'multiple of 12']),
    'empty file': (b'', ['empty file', 'uint32']),
    'two blocks': (
        packed([(1, 5, 13), (2, 5, 13), (1, 6, 14)]),
        ['row 2', 'subject 1', 'second block', 'one block'],
    ),
    'ages out of order': (
        packed([(1, 5, 13), (7, 9, 13), (7, 8, 14)]),
        ['row 2', 'subject 7', 'age 8 after 9', 'do not fall'],
    ),
    'negative age as unsigned': (
        packed([(1, 5, 13), (1, 2**32 - 3, 14)]),
        ['row 1', 'subject 1', '4294967293', 'unsigned'],
    ),
    'id outside the vocabulary': (
        packed([(1, 5, 13), (4, 5, DEATH + 1)]),
        ['row 1', 'subject 4', 'id 17', '0 to 16'],
    ),
    'technical token': (
        packed([(4, 5, 0)]),
        ['row 0', 'subject 4', "'No event'", 'codes of people'],
    ),
    'two sexes': (packed([(9, 0, 1), (9, 0, 2)]), ['row 1', 'subject 9', 'Male', 'one sex']),
    'events after death': (
        packed([(9, 7, DEATH), (9, 8, 13)]),
        ['row 1', 'subject 9', "'Beech'", '8 days', 'after death'],
    ),
    'no deaths matched': (packed([(9, 7, 13)]), ['no deaths', "15 ('Death')", 'labels file']),
}


@pytest.mark.parametrize('kind', REFUSED)
def test_refusals(place, kind):
    """Each kind of bad file is refused, with file, row, subject, what was found and what was
    expected."""
    data, said = REFUSED[kind]
    with pytest.raises(CohortError) as refusal:
        place(data)
    for part in ['people.bin', *said]:
        assert part in str(refusal.value)


def frame(**columns):
    "Two rows of one person, with some columns exchanged."
    return pd.DataFrame(
        {'subject_id': [1, 1], 'age': [100, 200], 'code': ['Ash', 'Death']} | columns
    )


def window(**columns):
    "A subject table for `frame`, with some columns exchanged."
    return pd.DataFrame({'subject_id': [1], 'start': [50], 'end': [200]} | columns)


REFUSED_FRAMES = {
    'negative age': (frame(age=[-4, 200]), None, ['row 0', 'subject 1', '-4', 'since birth']),
    'broken age': (frame(age=[0.5, 200]), None, ['row 0', 'subject 1', '0.5', 'whole number']),
    'missing age': (frame(age=[np.nan, 200]), None, ['row 0', 'subject 1', 'nan', 'whole number']),
    'unknown code': (
        frame(code=['Ashh', 'Death']),
        None,
        ['row 0', "'Ashh'", 'Ash', "unknown='drop'"],
    ),
    'missing column': (frame().drop(columns='age'), None, ["['subject_id', 'code']", "['age']"]),
    'no rows': (frame()[:0], None, ['no rows', 'at least one']),
    'no death': (frame(code=['Ash', 'Elm']), None, ['no deaths', "'Death'"]),
    'sex against token': (
        frame(code=['Male', 'Death']),
        window(sex=['female']),
        ['subject 1', "'female'", 'male token', 'one sex'],
    ),
    'unknown sex': (frame(), window(sex=['woman']), ['subject 1', "'woman'", 'female']),
    'start after end': (frame(), window(start=[300]), ['subject 1', '300', '200', 'start <= end']),
    'event after end': (
        frame(code=['Ash', 'Elm']),
        window(end=[150]),
        ['subject 1', '200', '150', 'no event after end'],
    ),
    'follow-up after death': (
        frame(),
        window(end=[250]),
        ['subject 1', '200', '250', 'end at death'],
    ),
    'negative start': (frame(), window(start=[-1]), ['subject 1', 'start', '-1']),
    'two rows with sex': (
        frame(),
        pd.concat([window(sex=['male'])] * 2),
        ['subject 1', 'second row', 'one row per subject'],
    ),
}


@pytest.mark.parametrize('kind', REFUSED_FRAMES)
def test_refusals_of_tables(kind):
    "Each kind of bad table is refused, with subject, what was found and what was expected."
    events, subjects, said = REFUSED_FRAMES[kind]
    with pytest.raises(CohortError) as refusal:
        read_frame(events, subjects, VOCAB)
    for part in ['events', *said] if kind != 'no death' else said:
        assert part in str(refusal.value)


UNTRUSTED = {
    'missing subject': (frame(subject_id=[1.0, np.nan]), None),
    'broken subject': (frame(subject_id=[1.0, 1.5]), None),
    'subject beyond int64': (frame(subject_id=np.array([2**63, 1], dtype=np.uint64)), None),
    'subject of letters': (frame(subject_id=['a', 'a']), None),
    'age of letters': (frame(age=['old', 'older']), None),
    'two rows without sex': (frame(), pd.concat([window()] * 2)),
    'table without subject': (frame(), window().drop(columns='subject_id')),
    'table with missing subject': (frame(), window(subject_id=[np.nan])),
    'nobody at all': (frame()[:0], window()[:0]),
}


@pytest.mark.parametrize('kind', UNTRUSTED)
@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_no_silent_subject(kind):
    """Subjects and ages that are no whole numbers, and subject tables without unique subjects, are
    refused with CohortError."""
    with pytest.raises(CohortError):
        read_frame(*UNTRUSTED[kind], VOCAB)


def test_codes_that_are_numbers():
    "Codes given as numbers are codes too when the vocabulary is taken from the table."
    assert len(read_frame(frame(code=[250, 'Death']))) == 1


def test_follow_up_is_warned_about():
    "An end of follow-up taken from the last event is a warning; a given one is none."
    with pytest.warns(FollowUpWarning, match='1 people'):
        read_frame(frame(), None, VOCAB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('warnings.warn', lambda *a, **k: pytest.fail(str(a)))
        read_frame(frame(), window(), VOCAB)


def test_the_warning_names_the_line_that_reads():
    "A guessed bound is told to the one who called the reader, not to a line inside the package."
    with pytest.warns(FollowUpWarning) as heard:
        read_frame(frame())
    assert heard[0].filename == __file__


def test_the_largest_subject_id():
    "The last number that int64 holds is a subject like any other."
    last = 2**63 - 1
    cohort = Cohort.from_rows(VOCAB, [3, last], [5, 6], [4, 5], sex_tokens=False)
    assert cohort.offsets.tolist() == [0, 1, 2]
    assert rows_of(cohort) == [(3, 5, 4), (last, 6, 5)]


def test_dropped_rows_are_counted():
    "Unknown codes that may be dropped, and repeated codes, are counted in the report."
    events = frame(
        subject_id=[1] * 5,
        age=[1000, 2000, 3000, 4000, 5000],
        code=['Ash', 'Ash', 'Yew', 'Ash', 'Death'],
    )
    report = read_frame(events, None, VOCAB, unknown='drop').report
    assert (report['unknown codes dropped'], report['repeated codes dropped']) == (1, 2)


@given(rows=valid_rows())
@examples(60)
def test_frame_equals_bin(place, rows):
    "The table of a cohort, read back, is the cohort."
    cohort = place(packed(rows))
    assert (
        read_frame(
            cohort.frame(),
            cohort.subjects[['subject_id', 'start', 'end']],
            cohort.vocab,
            age_unit='days',
        )
        == cohort
    )


@pytest.mark.parametrize('vocab', [VOCAB, RECURRENT], ids=['first occurrence', 'recurrent'])
@given(data=st.data())
@examples(60)
def test_shuffled_tables(vocab, data):
    "Rows in any order, repeated ones among them, give the same cohort."
    rows, table = table_of(data.draw(st.lists(a_life(vocab), min_size=1, max_size=4)))
    assume(len(rows) and rows[:, 2].max() == vocab.death)
    rows = rows[
        np.r_[
            np.arange(len(rows)), data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=3))
        ].astype(int)
    ]
    events = pd.DataFrame(
        {'subject_id': rows[:, 0], 'age': rows[:, 1], 'code': np.array(vocab.names)[rows[:, 2]]}
    )
    order = data.draw(st.permutations(range(len(events))))
    first, second = (
        read_frame(e, t, vocab, age_unit='days')
        for e, t in ((events, table), (events.iloc[order], table.sample(frac=1, random_state=1)))
    )
    assert first == second and first.report == second.report


@given(cohort=cohorts())
@examples(40)
def test_folder_round_trip(place, cohort):
    "A cohort written as a folder of tables comes back equal, unless nobody died, which is refused."
    folder = cohort.write_frame(place.path.parent / 'folder')
    if cohort.subjects.died.any():
        assert load_cohort(folder, age_unit='days') == cohort
    elif len(cohort.token):
        with pytest.raises(CohortError, match='no deaths matched'):
            load_cohort(folder, age_unit='days')


NAMES = {'comma': 'Ash, common', 'quote': 'Ash "A"', 'space': 'Ash tree'}
LOST = {'missing': 'NA', 'null': 'null', 'digits': '250'}


@pytest.mark.parametrize('name', [*NAMES.values(), *LOST.values()], ids=[*NAMES, *LOST])
def test_folder_keeps_names(tmp_path, name):
    "Any code name comes back from a folder of tables."
    vocab = make_vocab([name], death=None)
    cohort = Cohort.from_rows(vocab, [1], [10], [vocab.id(name)], window())
    assert load_cohort(cohort.write_frame(tmp_path), age_unit='days') == cohort


@pytest.mark.parametrize('name', ['', ' ', ' Ash', 'Ash\t'])
def test_names_are_plain(name):
    "No eye tells a name with a blank before it from the one without."
    with pytest.raises(CohortError, match='blanks around'):
        make_vocab([name])


@pytest.mark.parametrize('name', ['Ash\nwood', 'Ash\rwood'])
def test_names_are_one_line(name):
    "A name with a line break could not be read back from a file of names, so it is refused."
    with pytest.raises(CohortError, match='line break'):
        make_vocab([name])


def test_bin_keeps_healthy_people(place):
    "People of the subject table who have no row in the file are kept, or their number is reported."
    place(packed([(1, 5, 13), (1, 6, DEATH)]))
    subjects = pd.DataFrame({'subject_id': range(1, 10), 'start': 0, 'end': [6] + [900] * 8})
    cohort = read_delphi(place.path, subjects=subjects)
    assert len(cohort) == 9 or 8 in cohort.report.values()


def test_row_number_after_dropping():
    "The row that an error names is that of the table, also after unknown codes were dropped."
    events = frame(age=[10, -5], code=['Yew', 'Elm'])
    with pytest.raises(CohortError, match='row 1 '):
        read_frame(events, None, VOCAB, unknown='drop', age_unit='days')


@given(cohort=cohorts(people=(1, 5)), data=st.data())
@examples(60)
def test_join_undoes_selection(cohort, data):
    """Two parts of a cohort, joined, are the cohort; a part joined with itself is itself, with
    everybody counted as shared."""
    part = np.array(data.draw(st.lists(st.booleans(), min_size=len(cohort), max_size=len(cohort))))
    assume(part.any() and not part.all())
    assert join([cohort[part], cohort[~part]]) == cohort
    twice = join([cohort, cohort[part]], shared='join')
    assert twice == cohort and twice.report['shared people, join'] == part.sum()
    assert join([cohort, cohort[part]], shared='drop') == cohort[~part]
    with pytest.raises(CohortError, match='two cohorts'):
        join([cohort, cohort[part]])


@given(cohort=cohorts(people=(1, 6)), seed=st.integers(0, 50))
@examples(30)
def test_split_is_a_partition(cohort, seed):
    "Every person is in one part, with all events, the same one whoever else is in the cohort."
    parts = cohort.split(seed=seed)
    assert (
        sorted(sum((p.subjects.subject_id.tolist() for p in parts.values()), []))
        == cohort.subjects.subject_id.tolist()
    )
    assert sum(len(p.token) for p in parts.values()) == len(cohort.token)
    for name, part in parts.items():
        for i in range(len(part)):
            person = cohort[cohort.subjects.subject_id.to_numpy() == part.subjects.subject_id[i]]
            assert part[i] == person and person.split(seed=seed)[name] == person


def test_split_fractions(simulated):
    "The parts of 5,000 people have about the sizes asked for; another seed gives other parts."
    sizes = {name: len(part) / len(simulated) for name, part in simulated.split().items()}
    for name, wanted in {'train': 0.8, 'tuning': 0.1, 'held_out': 0.1}.items():
        assert abs(sizes[name] - wanted) < 4 * (0.25 / 5_000) ** 0.5
    assert simulated.split(seed=0)['tuning'] != simulated.split(seed=1)['tuning']


def test_hash_is_fixed():
    """The hash of a subject is the same on every machine and for ever; these are SplitMix64's first
    numbers for seed 0."""
    splitmix = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [subject_hash([0], s)[0] for s in range(3)] == [(z >> 11) * 2.0**-53 for z in splitmix]


VOCABULARIES = {
    'two lengths': (['Padding', 'Ash'], ['padding']),
    'no padding': (['Ash'], ['disease']),
    'a name twice': (['Padding', 'Ash', 'Ash'], ['padding', 'disease', 'disease']),
    'unknown kind': (['Padding', 'Ash'], ['padding', 'tree']),
    'two deaths': (['Padding', 'D', 'E'], ['padding', 'death', 'death']),
}


@pytest.mark.parametrize('kind', VOCABULARIES)
def test_vocabularies_refused(kind):
    "A vocabulary that cannot be used is refused."
    with pytest.raises(CohortError):
        Vocab(*VOCABULARIES[kind])


def test_unknown_name_gets_the_nearest():
    "An unknown code name is an error that lists the nearest names."
    with pytest.raises(CohortError, match="unknown code 'Beach'; nearest: .*Beech"):
        VOCAB.id('Beach')


def test_where_vocabularies_part():
    "Two lists of codes are compared in words, also where one of them is the shorter."
    ash, both = make_vocab(['Ash'], death=None), make_vocab(['Ash', 'Beech'], death=None)
    assert ash.difference(both) == both.difference(ash) == 'the shorter list begins the longer one'
    other = make_vocab(['Oak', 'Beech'])
    assert both.difference(other) == "they part at id 4: 'Ash' against 'Oak'"
    with pytest.raises(CohortError, match='the shorter list begins the longer one'):
        ash.require(both)
    assert both.difference(both) == ''


def test_vocab_fingerprint(tmp_path):
    """A vocabulary comes back from its file, and its fingerprint changes with any name, the order
    or the occurrence rule."""
    assert Vocab.load(VOCAB.save(tmp_path / 'vocab.csv')) == VOCAB
    others = [
        make_vocab(['Ash', 'Beech']),
        make_vocab(['Beech', 'Ash']),
        make_vocab(['Ash', 'Beech'], first_occurrence=False),
        make_vocab(['Beech'], lifestyle=['Ash']),
        make_vocab(['Ash', 'Beec']),
    ]
    assert len({v.fingerprint for v in others}) == len(others)


def test_real_files(data_folder, tmp_path):
    """Both files of Delphi's simulated set: counts, the one person without sex, byte-exact round
    trip."""
    folder = data_folder('DELPHI_UKB_SIM')
    train, val = read_delphi(folder / 'train.bin'), read_delphi(folder / 'val.bin')
    assert (len(train), train.report['rows read'], len(val)) == (7_143, 181_293, 7_144)
    assert train.subjects.subject_id[train.subjects.sex == 'unknown'].tolist() == [402867]
    for cohort, name in ((train, 'train.bin'), (val, 'val.bin')):
        assert write_delphi(cohort, tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_real_files_share_a_person(data_folder):
    """Person 427985 is in both files: refused unless asked for, then counted; nobody is in two
    parts of the joined split."""
    folder = data_folder('DELPHI_UKB_SIM')
    train, val = read_delphi(folder / 'train.bin'), read_delphi(folder / 'val.bin')
    assert np.intersect1d(train.subjects.subject_id, val.subjects.subject_id).tolist() == [427985]
    with pytest.raises(CohortError, match='427985'):
        join([train, val])
    both = join([train, val], shared='join')
    assert len(both) == 14_286 and both.report['shared people, join'] == 1
    parts = list(both.split().values())
    assert (
        len(np.unique(np.concatenate([p.subjects.subject_id for p in parts])))
        == sum(map(len, parts))
        == 14_286
    )
