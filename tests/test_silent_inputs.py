"""Inputs from which a reader could make other people without a word: each is refused, or counted,
or asked about."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delphi_traj.data.calendar import rows_accounted_for
from delphi_traj.data.codes import Vocab, make_vocab
from delphi_traj.data.events import FollowUpWarning
from delphi_traj.data.files import load_cohort, read_delphi, read_frame
from delphi_traj.data.formats import read_cohort
from delphi_traj.data.meds import read_meds
from delphi_traj.data.omop import read_omop
from delphi_traj.data.refusals import CohortError
from delphi_traj.models.heads import marginal_log_rates
from lives import examples


def events(*rows):
    return pd.DataFrame(rows, columns=['subject_id', 'age', 'code'])


def windows(*rows):
    return pd.DataFrame(rows, columns=['subject_id', 'sex', 'start', 'end'])


TWO = windows((1, 'male', 18_000, 19_000), (2, 'female', 18_000, 19_000))
THREE = events((1, 18_500, 'A'), (2, 18_800, 'A'), (2, 19_000, 'Death'))


def quietly(read, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', FollowUpWarning)
        return read(*args, **options)


# a start or an end that was not given


def test_a_missing_start_is_the_first_record_whether_or_not_a_sex_is_given():
    "A sex is put at age 0 by us; it is no record, and must not begin the observation."
    for table in (
        TWO.drop(columns='start'),
        TWO.drop(columns=['start', 'sex']),
        TWO.assign(start=None),
    ):
        with pytest.warns(
            FollowUpWarning,
            match='no start of observation for 2 people, taken from their first record',
        ):
            cohort = read_frame(THREE, table)
        assert cohort.subjects.start.tolist() == [18_500, 18_800]
        assert cohort.report['starts taken from the first record'] == 2
        assert 'ends taken from the last record' not in cohort.report


def test_bounds_are_counted_one_by_one():
    table = TWO.assign(start=[18_000, None], end=[None, 19_000])
    with pytest.warns(FollowUpWarning, match='no start .* 1 people.*no end .* 1 people'):
        cohort = read_frame(THREE, table)
    assert (cohort.subjects.start.tolist(), cohort.subjects.end.tolist()) == (
        [18_000, 18_800],
        [18_500, 19_000],
    )
    assert (
        cohort.report['starts taken from the first record']
        == cohort.report['ends taken from the last record']
        == 1
    )


def test_given_bounds_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        cohort = read_frame(THREE, TWO)
    assert not any('taken from' in what for what in cohort.report)


def test_death_is_an_end():
    cohort = quietly(read_frame, THREE, TWO.drop(columns='end'))
    assert cohort.report['ends taken from the last record'] == 1  # of the man, who did not die


def test_who_has_neither_record_nor_start_was_observed_for_no_day():
    table = pd.concat([TWO, windows((3, 'male', None, 18_700))])
    cohort = quietly(read_frame, THREE, table)
    assert cohort.subjects.set_index('subject_id').loc[3, ['start', 'end']].tolist() == [
        18_700,
        18_700,
    ]


def test_rates_without_a_start_are_near_the_truth_and_not_seven_times_too_low():
    "Watched from 40 to 60 for ten years at .05 a year: from birth the rate would be .007."
    rng, n = np.random.default_rng(0), 3_000
    start = rng.integers(40 * 365, 60 * 365, n)
    came = start + np.ceil(rng.exponential(20 * 365.25, (5, n))).astype(int)
    hit = came < start + 3652
    who, which = np.broadcast_to(np.arange(n), came.shape)[hit], np.nonzero(hit)[0]
    table = pd.DataFrame(
        {'subject_id': who, 'age': came[hit], 'code': [f'code {c}' for c in which]}
    )
    people = pd.DataFrame({'subject_id': np.arange(n), 'sex': 'female', 'end': start + 3652})

    def rate(p):
        return np.exp(marginal_log_rates(quietly(read_frame, table, p, death=None))[4:9]).mean()

    assert abs(rate(people.assign(start=start)) / 0.05 - 1) < 0.05
    assert rate(people) > 0.03 and rate(people.assign(start=0)) < 0.01


@pytest.mark.parametrize('first', [0, 12_000])
def test_a_bin_file_starts_where_it_says(tmp_path, first):
    """A sex row at age 0 is a record of the file itself; without one, the first code is the first
    record."""
    labels = [
        'Padding',
        'No event',
        'Female',
        'Male',
        *[f'level {i}' for i in range(9)],
        'A',
        'Death',
    ]
    (tmp_path / 'labels.csv').write_text('\n'.join(labels) + '\n')
    rows = [(1, 0, 1)] * (first == 0) + [(1, 12_000, 12), (1, 13_000, 13)]
    np.array(rows, dtype='<u4').tofile(tmp_path / 'people.bin')
    with pytest.warns(FollowUpWarning, match='no start of observation for 1 people'):
        cohort = read_delphi(tmp_path / 'people.bin')
    assert cohort.subjects.start.tolist() == [first]


# codes


@pytest.mark.parametrize('code', ['', ' ', '\t', None, np.nan])
def test_an_empty_code_is_refused_with_its_row(code):
    with pytest.raises(CohortError, match=r'row 1 \(subject 2\): found no code'):
        read_frame(events((1, 18_500, 'A'), (2, 18_800, code), (2, 19_000, 'Death')), TWO)


def test_blanks_around_a_code_are_trimmed_and_counted():
    rows = events((1, 18_500, ' A'), (2, 18_800, 'A'), (2, 18_900, 'B  '), (2, 19_000, 'Death'))
    cohort = read_frame(rows, TWO)
    assert cohort.vocab.names[4:] == ('A', 'B', 'Death')
    assert cohort.report['codes with blanks around them, trimmed'] == 2


def test_a_blank_cell_of_a_file_is_no_code(tmp_path):
    (tmp_path / 'events.csv').write_text('subject_id,age,code\n1,18500, I10\n1,18600,\n')
    with pytest.raises(CohortError, match='row 1 .subject 1.: found no code'):
        quietly(load_cohort, tmp_path)


# units of age


def test_ages_in_years_are_asked_about():
    rows = events((1, 55, 'A'), (2, 60, 'Death'))
    table = windows((1, 'male', 40, 70), (2, 'female', 50, 60))
    with pytest.raises(
        CohortError, match="no age above 70; expected days since birth. Are these years"
    ):
        read_frame(rows, table)
    years = read_frame(rows, table, age_unit='years')
    assert years.age.max() == int(60 * 365.25) and years.subjects.end.tolist() == [
        int(70 * 365.25),
        int(60 * 365.25),
    ]
    infants = read_frame(rows, table, age_unit='days')
    assert infants.age.max() == 60
    with pytest.raises(ValueError, match="age_unit='weeks'; expected"):
        read_frame(rows, table, age_unit='weeks')


def test_years_keep_what_is_no_number_for_its_own_error():
    rows = events((1, '55.5', 'A'), (2, 'sixty', 'Death'))
    with pytest.raises(CohortError, match="row 1 .subject 2.: found age 'sixty'"):
        read_frame(rows, age_unit='years')


def test_one_old_person_makes_days_believable():
    assert (
        len(
            read_frame(
                events((1, 55, 'A'), (2, 19_000, 'Death')),
                windows((1, 'male', 40, 70), (2, 'female', 50, 19_000)),
            )
        )
        == 2
    )


@given(age=st.lists(st.integers(151, 40_000), min_size=1, max_size=5))
@examples(40)
def test_days_are_never_refused_once_somebody_is_older(age):
    rows = events(*[(1, a, f'c{i}') for i, a in enumerate(age)])
    assert quietly(read_frame, rows, death=None).age.max() == max(age)


# calendars


def meds_folder(path, *rows):
    subject, time, code = zip(*rows, strict=True)
    time = pa.array(np.array(time, dtype='datetime64[us]'))
    table = pa.table(
        {
            'subject_id': pa.array(subject, pa.int64()),
            'time': time,
            'code': pa.array(code, pa.string()),
        }
    )
    (path / 'data').mkdir(parents=True)
    pq.write_table(table, path / 'data/0.parquet')
    return path


LIVES = [
    (1, '1960-02-01', 'MEDS_BIRTH'),
    (1, '2001-02-03', 'I10'),
    (1, '2010-02-03', 'MEDS_DEATH'),
    (2, '1960-02-01', 'MEDS_BIRTH'),
    (2, '2003-02-03', 'J45'),
]


@pytest.mark.parametrize(
    'day, code', [('2099-12-31', 'Z00'), ('2037-07-07', 'MEDS_DEATH'), ('2262-01-01', 'I10')]
)
def test_a_date_to_come_is_refused_or_counted(tmp_path, day, code):
    folder = meds_folder(tmp_path, *LIVES, (2, day, code))
    with pytest.raises(
        CohortError, match=rf"row 5 \(subject 2\): found '{code}' on {day}, which is still to come"
    ):
        quietly(read_meds, folder)
    cohort = quietly(read_meds, folder, outside='drop')
    assert cohort.report['rows dated after today dropped'] == 1
    assert rows_accounted_for(cohort) == cohort.report['rows read'] == 6
    assert cohort.subjects.end.max() < 55 * 365


def test_today_is_no_date_to_come(tmp_path):
    folder = meds_folder(tmp_path, *LIVES, (2, str(np.datetime64('today')), 'Z00'))
    assert quietly(read_meds, folder).report['rows dated after today dropped'] == 0


def test_a_birth_to_come_leaves_a_person_without_birth(tmp_path):
    folder = meds_folder(
        tmp_path, *LIVES, (3, '2098-01-01', 'MEDS_BIRTH'), (3, '2004-01-01', 'I10')
    )
    with pytest.raises(CohortError, match='still to come'):
        quietly(read_meds, folder)
    with pytest.raises(CohortError, match='no birth'):
        quietly(read_meds, folder, outside='drop')
    assert len(quietly(read_meds, folder, outside='drop', no_birth='drop')) == 2


def test_meds_codes_are_trimmed_or_refused(tmp_path):
    folder = meds_folder(tmp_path / 'a', *LIVES, (2, '2004-02-03', ' I10'))
    cohort = quietly(read_meds, folder)
    assert cohort.vocab.names[4:] == ('I10', 'J45', 'Death')
    assert (
        cohort.report['codes with blanks around them, trimmed'] == 1
        and rows_accounted_for(cohort) == 6
    )
    folder = meds_folder(tmp_path / 'b', *LIVES, (2, '2004-02-03', ''))
    with pytest.raises(CohortError, match=r"row 5 \(subject 2\): found the empty code ''"):
        quietly(read_meds, folder)


def omop_folder(path, person, period=None, death=None):
    path.mkdir(parents=True, exist_ok=True)
    (path / 'person.csv').write_text(
        'person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,birth_datetime\n'
        + person
    )
    (path / 'condition_occurrence.csv').write_text(
        'person_id,condition_start_date,condition_concept_id\n1,2002-02-03,77\n2,2003-02-03,77\n'
    )
    (path / 'death.csv').write_text('person_id,death_date\n' + (death or '2,2010-01-01\n'))
    if period:
        (path / 'observation_period.csv').write_text(
            'person_id,observation_period_start_date,observation_period_end_date\n' + period
        )
    return path


SECOND = '2,8507,1950,3,4,\n'


@pytest.mark.parametrize(
    'first', ['1,8532,,,,\n', '1,8532,0,1,1,\n', '1,8532,,,,not known\n', '1,8532,,,,2098-01-01\n']
)
def test_omop_without_a_birth_is_refused_or_counted(tmp_path, first):
    "Born on the day of the first diagnosis is a guess that no one would notice."
    folder = omop_folder(tmp_path, first + SECOND)
    with pytest.raises(CohortError, match=r'person, row 0 \(subject 1\): found no date of birth'):
        quietly(read_omop, folder)
    cohort = quietly(read_omop, folder, no_birth='drop')
    assert (
        cohort.subjects.subject_id.tolist() == [2]
        and cohort.report['people without a birth dropped'] == 1
    )
    assert rows_accounted_for(cohort) == cohort.report['rows read'] == 3


def test_omop_takes_a_birth_from_birth_datetime(tmp_path):
    folder = omop_folder(tmp_path, '1,8532,,,,1960-05-05\n' + SECOND)
    cohort = quietly(read_omop, folder)
    days = (np.datetime64('2002-02-03') - np.datetime64('1960-05-05')).astype(int)
    assert cohort.age[cohort.person == 0].max() == days
    assert (
        cohort.report['births taken from birth_datetime'] == 1
        and cohort.report['births placed by year or month'] == 0
    )


def test_omop_periods_and_deaths_to_come(tmp_path):
    people = '1,8532,1960,5,5,\n' + SECOND
    folder = omop_folder(
        tmp_path / 'a', people, period='1,2000-01-01,2099-12-31\n2,2000-01-01,2010-01-01\n'
    )
    with pytest.raises(
        CohortError, match=r'observation_period, row 0 .subject 1.: found a period to 2099-12-31'
    ):
        read_omop(folder)
    with pytest.warns(FollowUpWarning, match='no end of observation for 1 people'):
        cohort = read_omop(folder, outside='drop')
    assert cohort.report['bounds of periods after today left out'] == 1
    assert cohort.subjects.end.max() < 60 * 365.25
    folder = omop_folder(tmp_path / 'b', people, death='2,2099-12-31\n')
    with pytest.raises(CohortError, match='still to come'):
        quietly(read_omop, folder)


def test_omop_without_periods_says_so(tmp_path):
    with pytest.warns(
        FollowUpWarning,
        match='no start of observation for 2 people.*no end of observation for 1 people',
    ):
        cohort = read_omop(omop_folder(tmp_path, '1,8532,1960,5,5,\n' + SECOND))
    assert cohort.report['starts taken from the first record'] == 2


def test_a_folder_converted_for_infants_reads_back(tmp_path):
    "What `convert` writes is in days, whatever the ages."
    from delphi_traj.data.formats import convert

    folder = meds_folder(
        tmp_path / 'm',
        (1, '2020-02-01', 'MEDS_BIRTH'),
        (1, '2020-02-09', 'P07'),
        (1, '2020-03-01', 'MEDS_DEATH'),
    )
    cohort, _ = quietly(convert, folder, tmp_path / 'csv', 'csv')
    assert cohort.age.max() == 29 and read_cohort(tmp_path / 'csv', age_unit='days') == cohort


def test_vocabularies_say_where_they_part():
    a, b = make_vocab(['A', 'B']), make_vocab(['A', 'C'])
    assert a.difference(b) == "they part at id 5: 'B' against 'C'" and a.difference(a) == ''
    assert (
        make_vocab(['A']).difference(make_vocab(['A'], death=None))
        == 'the shorter list begins the longer one'
    )
    other = Vocab(a.names, a.kinds[:4] + ('lifestyle',) + a.kinds[5:])
    assert other.difference(a) == "'A' is of kind lifestyle against disease"
    assert 'first_occurrence is False against True' in make_vocab(
        ['A', 'B'], first_occurrence=False
    ).difference(a)
    with pytest.raises(
        CohortError, match="they part at id 5: 'C' against 'B'. Read them with the vocabulary"
    ):
        a.require(b)
