"""The page of an evaluation: what stands on it, in which words, and that its numbers are those of
the tables."""

import json
import math
import re
import sys
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from delphi_traj.data.codes import make_vocab
from delphi_traj.data.drawn_days import CENTURY
from delphi_traj.data.events import days_of_years
from delphi_traj.data.files import read_frame
from delphi_traj.data.landmarks import known_at
from delphi_traj.data.simulator import make_world, simulate
from delphi_traj.evaluation import (
    assessment,
    discrimination,
    frozen_risks,
    incidence,
    projections,
    report,
)
from delphi_traj.evaluation.assessment import (
    Assessment,
    Settings,
    cautions_of,
    landmarks,
    rows_of,
    some_of,
    standing,
)
from delphi_traj.evaluation.baseline import AgeSexBaseline, lexis
from delphi_traj.evaluation.comparison import evaluate
from delphi_traj.evaluation.discrimination import read_chapters
from delphi_traj.evaluation.figures import (
    auc_figure,
    calibration_figure,
    embedding_figure,
    glyph,
    incidence_figure,
    study_figure,
)
from delphi_traj.evaluation.futures import sample_futures
from delphi_traj.evaluation.incidence import windows
from delphi_traj.evaluation.metrics import landmark_auc, landmark_outcome, log_hazard_at
from delphi_traj.evaluation.page import Part, columns_of, number, percent, report_html
from delphi_traj.evaluation.report import everything, in_words, plain, write_report
from delphi_traj.evaluation.risk import risk
from delphi_traj.models.event_trajectory import event_trajectory_shared_v2
from delphi_traj.models.heads import marginal_log_rates, set_base_rate
from delphi_traj.training.architectures import build_model, config_from
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint
from delphi_traj.training.people import seen_people
from lives import VOCAB, cohorts, examples, tiny_config, tiny_model
from pages import Page


def saved(path, config, cohort, seed=0):
    "A checkpoint whose parameters all matter, with rates near those of the cohort."
    model, generator = build_model(config, cohort.vocab), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    if config.objective != 'delphi':
        set_base_rate(model.head, marginal_log_rates(cohort))
    save_checkpoint(path, model, cohort.vocab)
    return load_checkpoint(path)


@pytest.fixture(scope='module')
def people():
    return simulate(120, 5)


@pytest.fixture(scope='module')
def stored(tmp_path_factory, people):
    return saved(
        tmp_path_factory.mktemp('report') / 'model', tiny_config(vocab=people.vocab), people
    )


@pytest.fixture(scope='module')
def found(stored, people):
    "An assessment with all its parts."
    settings = Settings(n_boot=50, min_cases=5, horizons=(2.0, 5.0), futures=60)
    baseline = AgeSexBaseline.fit(simulate(300, 9))
    return everything(
        Assessment(stored, people, settings, baseline, make_world(), note='A <note>.')
    )


# the page

ODD = [
    '<script>',
    '&amp;',
    '"><img src=x>',
    "'",
    '</td>',
    'https://x',
    '<!--',
    '{{ 1 }}',
    '{% for %}',
]
TEXT = st.text(st.characters(blacklist_categories=('Cs', 'Cc')), max_size=20) | st.sampled_from(ODD)
TAGS = set(
    'html head meta title style script body h1 h2 h3 p div table thead tbody tr th td'.split()
    + 'ul li dl dt dd nav a'.split()
)


@given(TEXT, TEXT, TEXT, TEXT)
@examples(40)
def test_whatever_comes_from_data_is_text(a, b, c, d):
    table = pd.DataFrame({a or 'x': [b], 'number': [1.5]})
    parts = [Part(b, 'x', a, c, table), Part('second', 'y', d, 'how', d or 'nothing')]
    page = Page(report_html(a, parts, [(b, c)], [d], [c]))
    assert set(page.tags) <= TAGS and not page.loads and page.tags.count('script') == 1
    assert page.links == ['#x', '#y', 'x.csv']
    text = ''.join(page.words)
    for word in (a, b, c, d):
        assert word in text


def test_a_browser_may_load_nothing():
    text = unescape(report_html('t', []))
    assert "default-src 'none'" in text and '://' not in text and '@import' not in text
    assert not re.search(r'url\(', text)


def test_pictures_are_inside():
    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([0, 1])
    page = Page(report_html('t', [Part('s', 'x', '"><script>', 'how', figure)]))
    assert len(page.loads) == 1 and page.loads[0].startswith('data:image/png;base64,')
    assert page.tags.count('script') == 1


@pytest.mark.parametrize(
    'rows, inside, scrolls',
    [(40, True, False), (41, True, True), (1000, True, True), (1001, False, False)],
)
def test_long_tables_scroll_and_the_longest_are_files(rows, inside, scrolls):
    text = report_html('t', [Part('s', 'x', 'X', '', pd.DataFrame({'a': range(rows)}))])
    page = Page(text)
    assert page.tags.count('td') == inside * rows and ('<div class="box long">' in text) == scrolls
    assert 'x.csv' in page.links and f'{rows:,} rows' in ''.join(page.words)


def test_a_page_without_files_points_to_none():
    part = Part('s', 'x', 'X', '', pd.DataFrame({'a': range(5)}), listed=False)
    page = Page(report_html('t', [part], files=False))
    assert page.links == ['#x'] and '5 rows, not shown here' in ''.join(page.words)


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**12), 10**12))
@examples(200)
def test_numbers_have_no_exponent_and_keep_three_digits(x):
    text = number(x)
    assert not re.search('[eE]|nan|inf', text)
    if not math.isfinite(x):
        assert text == ''
    elif isinstance(x, int):
        assert int(text.replace(',', '')) == x
    elif 1e-6 <= abs(x) < 1e12:
        assert float(text.replace(',', '')) == pytest.approx(x, rel=0.00501)


def test_columns_of_numbers_stand_on_the_right():
    table = pd.DataFrame(
        {
            'code': ['B20', '5-HT'],
            'n': [1, 2],
            'risk': ['1.2%', ''],
            'interval': ['0.1 to 2', '-1 to 3'],
            'years': ['5', '10'],
            'nothing': ['', ''],
            'mixed': ['7', 'none'],
        }
    )
    assert [c['name'] for c in columns_of(table) if c['kind'] == 'n'] == [
        'n',
        'risk',
        'interval',
        'years',
    ]
    assert columns_of(pd.DataFrame({'code': ['x' * 25]}))[0]['kind'] == 'w'


def test_json_is_strict():
    value = {
        'a': np.float32('nan'),
        1: [np.inf, np.int8(3), (2.0, None)],
        't': pd.DataFrame({'x': [1.0, np.nan]}),
        'w': np.array([1, 2]),
    }
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        'a': None,
        '1': [None, 3, [2.0, None]],
        't': [{'x': 1.0}, {'x': None}],
        'w': [1, 2],
    }


# what stands first


def test_the_page_says_first_that_people_are_simulated_and_what_to_beware_of(found, tmp_path):
    write_report(tmp_path / 'out', found, {}, 'title')
    page = Page((tmp_path / 'out' / 'report.html').read_text())
    words = [w for w in page.words if w.strip()]

    def place(begin):
        return next(i for i, w in enumerate(words) if w.startswith(begin))

    assert (
        place('The people are simulated')
        < place('A <note>.')
        < place('Beware')
        < place('Summary')
        < place('Contents')
    )
    assert place('Risks under Calibration are frozen') < place('Summary')
    written = json.loads((tmp_path / 'out' / 'evaluation.json').read_text())
    assert written['notes'][1] == 'A <note>.' and written['cautions'] == found.cautions
    assert all(x[0] == '#' or (tmp_path / 'out' / x).exists() for x in page.links)


def test_a_caution_is_added_by_whoever_knows_more(stored, people):
    a = Assessment(stored, people, Settings())
    a.cautions.append('Half of these people were trained on.')
    assert 'Half of these' in report_html('t', [], cautions=a.cautions)
    assert 'Half of these' not in ''.join(Assessment(stored, people, Settings()).cautions)


def test_rates_of_the_original_objective_are_no_rates(stored, people, tmp_path):
    delphi = saved(tmp_path / 'delphi', tiny_config(vocab=people.vocab, objective='delphi'), people)
    assert any('not absolute rates' in c for c in cautions_of(delphi, people, Settings()))
    assert not any('not absolute rates' in c for c in cautions_of(stored, people, Settings()))


@pytest.mark.filterwarnings('ignore::delphi_traj.data.events.FollowUpWarning')
def test_an_end_taken_from_the_last_record_is_said():
    rows = [
        (1, 18_000, 'Ash'),
        (1, 19_000, 'Beech'),
        (2, 18_500, 'Ash'),
        (3, 18_000, 'Beech'),
        (3, 20_000, 'Death'),
    ]
    events = pd.DataFrame(rows, columns=['subject_id', 'age', 'code'])
    table = pd.DataFrame({'subject_id': [1, 2, 3], 'start': 15_000})
    guessed = read_frame(events, table, vocab=VOCAB)
    given_ = read_frame(events, table.assign(end=[20_000, 20_000, 20_000]), vocab=VOCAB)

    class Of:
        model, people = tiny_model(), None

    said = [c for c in cautions_of(Of, guessed, Settings()) if 'last record' in c]
    assert len(said) == 1 and 'do not give the end of observation of 2 people' in said[0]
    guessed.report.clear()  # nobody remembers, but the windows tell
    said = [c for c in cautions_of(Of, guessed, Settings()) if 'last record' in c]
    assert len(said) == 1 and said[0].startswith('For 2 of 2 people who did not die')
    assert not any('last record' in c for c in cautions_of(Of, given_, Settings()))


def test_intervals_of_a_few_replicates_are_said(stored, people):
    def said(n):
        return [c for c in cautions_of(stored, people, Settings(n_boot=n)) if 'replicates' in c]

    assert said(3) and said(99) and not said(0) and not said(100) and 'rest on 3 ' in said(3)[0]


def test_what_is_not_known_is_said():
    table = pd.DataFrame(
        {
            'code': ['Death'],
            'sampled': 0.1,
            'frozen': 0.2,
            'observed': np.nan,
            'low': np.nan,
            'high': np.nan,
        }
    )
    words = report.futures_in_words(table)
    assert (
        'Death: 10.0% sampled, 20.0% frozen, not known observed.' in words
        and 'not known observed' in words
    )
    assert 'Death: too few cases' in report.futures_in_words(table.assign(code='Ash'))
    assert [report.span(y) for y in (1, 1.0, 0.5, 5.0)] == [
        '1 year',
        '1 year',
        '0.5 years',
        '5 years',
    ]


def test_the_summary_repeats_the_tables(found):
    words, of = dict(in_words(found)), {p.name: p.content for p in found.parts}
    for years in (2.0, 5.0):
        e = found.evaluations[years]
        assert f'{e.summary.macro_auc["model"]:.3f}' in words[f'Ranking, {years:g} years']
        ahead = (e.per_code.model > e.per_code['age and sex']).sum()
        assert f'{ahead} of {len(e.per_code)} codes' in words[f'Ranking, {years:g} years']
        groups = of[f'groups_{years:g}']
        every = groups[
            (groups.by == 'everybody') & (groups.measure == 'observed_over_expected')
        ].iloc[0]
        assert (
            f'{every.value:.2f} ({every.low:.2f} to {every.high:.2f})'
            in words[f'Frozen risks, {years:g} years']
        )
    futures = of['futures']
    assert percent(futures.sampled.mean()) + ' in sampled' in words['Sampled futures, 5 years']
    lost = found.evaluations[5.0].counts['censored_rows']
    assert f'for the other {lost}, observation ends before' in words['Who was judged']


@pytest.mark.parametrize(
    'interval, words',
    [
        ((1.1, 1.3), 'too low'),
        ((0.7, 0.9), 'too high'),
        ((0.9, 1.1), 'agrees with 1'),
        ((1.0, 1.2), 'agrees'),
    ],
)
def test_risks_are_called_wrong_only_where_the_interval_leaves_out_one(interval, words):
    assert words in report.verdict(np.mean(interval), *interval)
    assert (
        report.verdict(1.5, np.nan, np.nan) == '1.50'
        and report.verdict(np.nan, np.nan, np.nan) == 'not known'
    )


def test_frozen_risks_are_explained_wherever_they_stand(found):
    frozen = [p for p in found.parts if p.section == 'Calibration']
    assert len(frozen) == 10 and all(frozen_risks.FROZEN in p.how for p in frozen)
    assert 'frozen' in next(p.how for p in found.parts if p.name == 'futures')


# who is judged


@given(cohorts(people=(1, 5)), st.integers(0, 40_000))
@examples(40)
def test_everybody_stands_somewhere(cohort, day):
    where = standing(cohort, np.full(len(cohort), day))
    for i, (start, end, died) in enumerate(
        zip(*(cohort.subjects[c] for c in ('start', 'end', 'died')), strict=True)
    ):
        wanted = (
            'not yet observed'
            if day < start
            else 'dead'
            if died and day >= end
            else 'no longer observed'
            if day >= end
            else 'beyond age 100'
            if day > CENTURY
            else 'judged'
        )
        assert where[i] == wanted
    # the same people as in 43_metrics
    if (where == 'judged').any() and (where != 'beyond age 100').all():
        assert (landmark_outcome(cohort, day, 1.0).at_risk.any(1) <= (where == 'judged')).all()


@given(cohorts(people=(2, 5)))
@examples(20)
def test_the_closed_form_answers_whoever_is_judged(cohort):
    model = tiny_model()
    for _, day in landmarks(cohort, Settings()):
        judged = standing(cohort, day) == 'judged'
        answers = ~np.isnan(risk(model, cohort, day, 5.0).value).all(1)
        assert (
            answers[judged] | known_at(cohort[judged], day[judged]).subjects.died.to_numpy()
        ).all()
        assert not answers[~judged & (day > cohort.subjects.end)].any()


def test_rows_are_those_of_the_landmarks():
    people = simulate(50, 1)
    rows = rows_of(people, Settings(ages=(45, 60)))
    assert (rows.table[list(assessment.STANDINGS)].sum(1) == 50).all()
    assert rows.table.judged.tolist() == np.bincount(rows.group).tolist()
    assert set(rows.landmark) == {int(45 * 365.25), int(60 * 365.25)}
    with pytest.raises(ValueError, match='nobody under observation at age 1'):
        rows_of(people, Settings(ages=(1,)))


@given(st.integers(0, 60_000), st.floats(0.01, 150) | st.integers(1, 150))
@examples(200)
def test_whole_days_lie_within_a_horizon_as_days_do(day, years):
    assert (day <= days_of_years(years)) == (day <= years * 365.25)


# windows tile time


@given(cohorts(people=(1, 4)))
@examples(60)
def test_every_day_lies_in_one_window(cohort):
    person, landmark, last = windows(cohort)
    for i, (start, end) in enumerate(zip(cohort.subjects.start, cohort.subjects.end, strict=True)):
        own = person == i
        days = [
            d for a, b in zip(landmark[own], last[own], strict=True) for d in range(a + 1, b + 1)
        ]
        assert days == list(range(start + 1, end + 1))
    assert (last > landmark).all() and (last - landmark <= 366).all()
    assert (landmark // 365.25 == (last - 1) // 365.25).all()  # one year of age each


@given(cohorts(people=(1, 4)))
@examples(40)
def test_windows_count_the_events_and_years_of_lives(cohort):
    if (cohort.subjects.start >= cohort.subjects.end).all():
        return
    person, landmark, last = windows(cohort)
    codes = np.flatnonzero(cohort.vocab.of_kind('disease', 'death'))
    hazards = {'one': np.zeros((len(person), len(cohort.vocab)))}
    rates = incidence.rates_in(cohort[person], landmark, last, hazards, codes)
    events, years = (x.sum((0, 1)) for x in lexis(cohort))
    total = rates.groupby('code')[['events', 'years']].sum()
    for k in codes:
        mine = (
            total.loc[cohort.vocab.names[k]]
            if cohort.vocab.names[k] in total.index
            else dict(events=0, years=0)
        )
        assert mine['events'] == events[k] and mine['years'] == pytest.approx(years[k], abs=1e-6)
    assert np.allclose(rates.one, 1)  # the mean of a hazard of one


def test_no_event_is_lost_on_an_anniversary():
    rows = [
        (i, 18_000 + day, 'A')
        for i, day in enumerate((1, 365, 366, 1460, 1461, 1462, 2922, 3652), 1)
    ]
    events = pd.DataFrame(rows, columns=['subject_id', 'age', 'code'])
    table = pd.DataFrame({'subject_id': events.subject_id, 'start': 18_000, 'end': 21_652})
    vocab = make_vocab(['A', 'B'])
    cohort = read_frame(events, table, vocab=vocab, death=None)
    model = build_model(tiny_config(vocab=vocab), vocab)
    rates = incidence.rates_by_age(model, cohort, None, None, [vocab.id('A')])
    assert rates.events.sum() == len(rows)


def test_ages_in_whole_years_lose_no_event():
    """A register with ages in whole years; windows of 365.25 days from the start had lost one event
    in four."""
    rng, vocab = np.random.default_rng(0), make_vocab(['A', 'B'])
    start = np.full(600, 40)
    years = rng.integers(1, 12, 600)
    events = pd.DataFrame(
        {
            'subject_id': range(600),
            'age': np.floor((start + years) * 365.25).astype(int),
            'code': 'A',
        }
    )
    table = pd.DataFrame(
        {
            'subject_id': range(600),
            'start': np.floor(start * 365.25).astype(int),
            'end': np.floor((start + 12) * 365.25).astype(int),
        }
    )
    cohort = read_frame(events, table, vocab=vocab, death=None)
    person, landmark, last = windows(cohort)
    rates = incidence.rates_in(cohort[person], landmark, last, {}, [vocab.id('A')])
    assert rates.events.sum() == 600


def test_rates_rest_on_so_many_years(people, stored):
    code = [people.vocab.death]
    few, all_ = (
        incidence.rates_by_age(stored.model, people, None, None, code, most)
        for most in (300, 10_000)
    )
    assert (
        few.years.sum() <= 300
        and all_.events.sum() == people.subjects.died.sum() > few.events.sum()
    )
    # one person at least
    assert len(incidence.rates_by_age(stored.model, people, None, None, code, 1))
    order = np.argsort(assessment.subject_hash(people.subjects.subject_id), kind='stable')
    length = (people.subjects.end - people.subjects.start).to_numpy()[order].cumsum() / 365.25
    # real years, none given away
    assert few.years.sum() == pytest.approx(length[length <= 300].max())
    assert set(incidence.some_years(people, 300)) == set(order[length <= 300])


def test_some_people_are_the_same_people():
    people = simulate(200, 1)
    chosen = people[some_of(people, 30)].subjects.subject_id
    shuffled = people[np.random.default_rng(0).permutation(200)]
    again = shuffled[some_of(shuffled, 30)].subjects.subject_id
    assert set(again) == set(chosen) and len(set(chosen)) == 30


# the numbers


def test_evaluation_is_that_of_41(stored, people):
    baseline = AgeSexBaseline.fit(simulate(300, 6))
    a = Assessment(stored, people, Settings(n_boot=50, min_cases=5), baseline, make_world())
    mine = assessment.evaluations_of(a)[5.0]
    theirs = evaluate(
        stored.model, people, baseline=baseline, world=make_world(), n_boot=50, min_cases=5
    )
    assert mine.summary.equals(theirs.summary) and mine.per_code.equals(theirs.per_code)
    assert mine.parts == theirs.parts and mine.counts == theirs.counts


def test_an_age_is_a_landmark(stored, people):
    day = int(55 * 365.25)
    a = Assessment(stored, people, Settings(ages=(55,), n_boot=0, min_cases=3, horizons=(3.0,)))
    mine = assessment.evaluations_of(a)[3.0]
    some = people[standing(people, np.full(120, day)) == 'judged']
    table = landmark_auc(
        log_hazard_at(stored.model, some, day, years=3.0), landmark_outcome(some, day, 3.0), 3
    )
    assert (
        len(table)
        and np.array_equal(mine.per_code.model, table.auc)
        and mine.counts['rows'] == len(some)
    )


def test_sampled_risks_are_shares_of_futures(stored, people):
    a = Assessment(stored, people, Settings(n_boot=0, min_cases=3, offsets=(0.0,)))
    k = people.vocab.death
    table = projections.compared(a, np.arange(80), 5.0, [k]).set_index('code')
    futures = sample_futures(stored.model, people[:80], people.subjects.start[:80].to_numpy(), 5.0)
    assert table.sampled['Death'] == pytest.approx((futures.token == k).sum() / 80)
    assert table.frozen['Death'] == pytest.approx(a.risks(5.0)[:80, k].mean())
    within = people.age <= people.subjects.start.to_numpy()[people.person] + 5 * 365.25
    assert table.cases['Death'] == ((people.token == k) & within & (people.person < 80)).sum()


def test_codes_of_futures_are_chosen_among_everybody(stored):
    """By cases among all, so that chance in a small sample chooses none; the number that is needed
    is said."""
    people = simulate(600, 8)
    a = Assessment(stored, people, Settings(n_boot=0, min_cases=20, futures=150))
    parts, first = projections.sampled(a), a.rows.group == 0
    time = assessment.time_to_event(a.judged[first], a.rows.landmark[first])
    cases = (time.at_risk & (time.cause == 1) & (time.days <= 1826)).sum(0)
    assert projections.needed(20, 150, 600) == 20 and projections.needed(20, 60, 600) == 50
    names = np.array(people.vocab.names)
    assert (
        set(parts[0].content.code) == set(names[cases >= 20])
        and 'Codes with 20 cases or more' in parts[0].how
    )
    assert (
        projections.needed(20, len(people), len(people)) == 20
        and projections.needed(3, 150, 600) == 12
    )


def test_the_reason_of_futures_says_what_to_ask_for(stored):
    people = simulate(600, 8)
    a = Assessment(stored, people, Settings(n_boot=0, min_cases=20, futures=8))
    reason, first = projections.sampled(a)[0].content, a.rows.group == 0
    time = assessment.time_to_event(a.judged[first], a.rows.landmark[first])
    cases = (time.at_risk & (time.cause == 1) & (time.days <= 1826)).sum(0)
    assert 'futures of 8 of 600 people, a code needs 375 cases' in reason
    assert f'the most, {cases.max()}, has {people.vocab.names[cases.argmax()]}' in reason
    ask = int(re.search(r'--futures (\d+)', reason).group(1))
    enough = replace(a, settings=replace(a.settings, futures=ask))
    assert isinstance(
        projections.sampled(enough)[0].content, pd.DataFrame
    )  # who asks for it, gets it
    one_less = replace(a, settings=replace(a.settings, futures=ask - 1))
    assert isinstance(projections.sampled(one_less)[0].content, str)


def test_a_reason_names_the_true_numbers(stored, people):
    a = Assessment(stored, people, Settings(n_boot=0, min_cases=500))
    cases = assessment.cases_of(a, 5.0)
    reason = assessment.too_few(a, 5.0)
    assert (
        'no code has 500 cases' in reason
        and f'the most, {cases.max()}, has {people.vocab.names[cases.argmax()]}' in reason
    )
    everything(a)
    words = [
        p.content
        for p in a.parts
        if p.name in ('per_code', 'calibration_codes_5', 'deciles_5', 'groups_5', 'incidence')
    ]
    assert words == [reason] * 5
    assert 'a lower --min_cases' in next(p.content for p in a.parts if p.name == 'futures')


def test_nobody_at_risk_of_anything_has_a_reason(stored, people):
    "People of whom nothing is seen after the landmark."
    end = people[~people.subjects.died.to_numpy()]
    a = Assessment(stored, end, Settings(n_boot=0, horizons=(1 / 12,), min_cases=10))
    everything(a)
    assert all(isinstance(words, str) and words for _, words in in_words(a))


def test_a_model_of_landmarks_and_a_missing_package_say_so(tmp_path, monkeypatch):
    people = simulate(60, 5)
    config = event_trajectory_shared_v2(
        'nano', mode='all_future', vocab_size=len(people.vocab), dropout=0.0
    )
    looks = saved(tmp_path / 'looks', config, people)
    monkeypatch.setitem(sys.modules, 'hazardous.metrics', None)
    a = Assessment(looks, people, Settings(n_boot=0, min_cases=5, futures=20))
    parts = (
        discrimination.discrimination(a)
        + discrimination.stratified(a)
        + discrimination.c_index(a, 5.0)
    )
    reasons = {p.name: p.content for p in parts if isinstance(p.content, str)}
    assert "'all_future'" in reasons['delphi_auc'] and 'pip install' in reasons['c_index_5']
    assert np.isnan(a.evaluations[5.0].summary.competing_nll['model'])


def test_chapters_need_a_code_that_is_known(tmp_path):
    path = tmp_path / 'c.csv'
    path.write_text('code,chapter\nAsh,wood\nFemale,people\n')
    assert read_chapters(path, VOCAB).tolist() == [
        'wood' if n == 'Ash' else '' for n in VOCAB.names
    ]
    path.write_text('name,chapter\nA00 Cholera,one\nA01,two\nAsh tree,three\n')
    vocab = make_vocab(['A00 (cholera)', 'A01 Typhoid', 'A012', 'Ash', 'B00'])
    assert read_chapters(path, vocab)[4:].tolist() == ['one', 'two', '', '', '', '']
    path.write_text('code,chapter\nash,wood\n')
    with pytest.raises(ValueError, match='no disease of the vocabulary'):
        read_chapters(path, VOCAB)
    path.write_text('code,part\nAsh,wood\n')
    with pytest.raises(ValueError, match='expected code and chapter'):
        read_chapters(path, VOCAB)


# the pictures


def cut_off(figure):
    "Names of a figure that reach over its edge."
    FigureCanvasAgg(figure).draw()
    renderer, box = figure.canvas.get_renderer(), figure.bbox.padded(1)
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        (low, high), ticks = ax.get_ylim(), zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label]
        texts += [label for tick, label in ticks if low <= tick <= high]
    ends = [
        (text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()
    ]
    return [
        name for name, b in ends if b.x0 < box.x0 or b.x1 > box.x1 or b.y0 < box.y0 or b.y1 > box.y1
    ]


LONG = 'L98 (other disorders of skin and subcutaneous tissue, not elsewhere classified)'


@pytest.mark.parametrize('n', [1, 10, 45, 207])
def test_names_are_not_cut(n):
    rng = np.random.default_rng(0)
    names = [*(f'{LONG} {i}' for i in range(n - 1)), 'Death']
    table = pd.DataFrame(
        {'code': names, 'cases': range(n), 'model': rng.random(n), 'age and sex': rng.random(n)}
    )
    figure = auc_figure(table.sort_values('cases', ascending=False))
    assert not cut_off(figure)
    ax, legend = figure.axes[0], figure.legends[0].get_window_extent()
    assert not ax.get_window_extent().overlaps(legend)  # covers no point
    assert ax.get_window_extent().width > 0.3 * figure.bbox.width
    assert ax.get_yticklabels()[-1].get_text() == f'Death ({n - 1})'  # on top, with all its cases
    assert n == 1 or ax.get_yticklabels()[0].get_text().endswith(')')


def test_names_over_rates_are_not_cut():
    rates = pd.DataFrame(
        {
            'age': [52.5, 57.5],
            'observed': [0.1, 0.2],
            'low': [0.05, 0.1],
            'high': [0.2, 0.3],
            'model': [0.1, 0.1],
        }
    )
    assert not cut_off(incidence_figure(rates, LONG))


@pytest.mark.parametrize('n', [1, 12, 20, 63])
def test_no_two_groups_look_alike(n):
    plane = pd.DataFrame(
        {
            'code': map(str, range(2 * n)),
            'group': [f'chapter {i % n}' for i in range(2 * n)],
            'x': np.arange(2.0 * n),
            'y': np.arange(2.0 * n),
        }
    )
    figure = embedding_figure(plane)
    assert len({(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}) == n
    assert not cut_off(figure)


def test_more_groups_than_glyphs_are_refused():
    assert len({glyph(i) for i in range(63)}) == 63
    plane = pd.DataFrame({'code': map(str, range(64)), 'group': range(64), 'x': 0.0, 'y': 0.0})
    with pytest.raises(ValueError, match='more than 63 groups'):
        embedding_figure(plane)


@pytest.mark.parametrize('n', [5, 12, 30])
def test_models_and_predictors_do_not_look_alike(n):
    runs = pd.DataFrame(
        {'model': [f'm{i}' for i in range(n)], 'step': 1, 'cross_entropy': 1.0, 'waiting_time': 1.0}
    )
    lines = study_figure(runs).axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == n
    table = pd.DataFrame(
        {
            'predictor': ['model', 'oracle', *map(str, range(n))],
            'predicted': 0.1,
            'observed': 0.1,
            'low': 0.05,
            'high': 0.2,
        }
    )
    bars = calibration_figure(table).axes[0].containers
    assert len({(b.lines[0].get_color(), b.lines[0].get_marker()) for b in bars}) == n + 2


def test_people_whom_the_model_knows_are_said_first(tmp_path):
    people = simulate(80, seed=5)
    model = build_model(
        config_from(
            'traj_mixer_v5',
            people.vocab,
            dict(n_layer=1, d_model=24, n_head=4, objective='competing'),
        ),
        people.vocab,
    )
    save_checkpoint(tmp_path / 'c', model, people.vocab, people=seen_people(people[:30], salt='x'))
    stored = load_checkpoint(tmp_path / 'c')
    assert cautions_of(stored, people, Settings())[0].startswith(
        'The model was trained or tuned on 30 of these 80 people'
    )
    assert not any('trained or tuned' in c for c in cautions_of(stored, people[30:], Settings()))
    save_checkpoint(tmp_path / 'c', model, people.vocab)
    assert cautions_of(load_checkpoint(tmp_path / 'c'), people, Settings())[0].startswith(
        'The checkpoint does not say whom'
    )
    a = Assessment(stored, people, Settings(n_boot=0, min_cases=3, futures=0))
    page = report_html(
        'x', everything(a, {}, {}).parts, report.in_words(a), a.cautions, report.notes_of(a)
    )
    assert page.index('trained or tuned on 30 of these 80') < page.index('Predictors side by side')


def test_starts_that_were_guessed_are_said():
    class Of:
        model, people = tiny_model(), None

    table = pd.DataFrame({'subject_id': [1, 2], 'end': 20_000})
    events = pd.DataFrame(
        [(1, 15_000, 'Ash'), (2, 16_000, 'Ash')], columns=['subject_id', 'age', 'code']
    )
    guessed = read_frame(events, table, vocab=VOCAB, death=None)
    assert any(
        'do not give the start of observation of 2 people' in c
        for c in cautions_of(Of, guessed, Settings())
    )
