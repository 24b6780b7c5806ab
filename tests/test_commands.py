"""The commands: what they write, for whom they answer, what they refuse, and that a refusal leaves
nothing behind."""

import argparse
import contextlib
import io
import json
import logging
import os
import re
import shutil
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from delphi_traj import __main__ as door
from delphi_traj import commands
from delphi_traj.commands import delphi_convert, delphi_evaluate, delphi_export, delphi_sample
from delphi_traj.data.codes import Vocab, make_vocab
from delphi_traj.data.events import Cohort
from delphi_traj.data.formats import read_cohort, write_cohort
from delphi_traj.data.landmarks import known_at
from delphi_traj.data.simulator import simulate
from delphi_traj.evaluation.assessment import Assessment, Settings, rows_of
from delphi_traj.evaluation.baseline import AgeSexBaseline
from delphi_traj.evaluation.comparison import evaluate
from delphi_traj.evaluation.drawing import ENDED
from delphi_traj.evaluation.export import load_program, program_gap
from delphi_traj.evaluation.futures import Futures, sample_futures
from delphi_traj.evaluation.matching import matching_cohort
from delphi_traj.evaluation.sampled_people import as_people
from delphi_traj.models.delphi import DelphiConfig
from delphi_traj.models.heads import marginal_log_rates, set_base_rate
from delphi_traj.training.architectures import build_model
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint
from lives import cohorts, examples, tiny_model
from pages import Page
from terminal import said_on_stderr

SHAPED = make_vocab(
    ['Ash', 'Beech', 'Cedar', 'Dogwood'], lifestyle=[f'level {i}' for i in range(9)]
)  # a .bin file can hold it


def saved(path, config, cohort, seed=0):
    "A checkpoint whose parameters all matter, with rates near those of the cohort."
    model, generator = build_model(config, cohort.vocab), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        [p.add_(0.1 * torch.randn(p.shape, generator=generator)) for p in model.parameters()]
    if config.objective != 'delphi':
        set_base_rate(model.head, marginal_log_rates(cohort))
    save_checkpoint(path, model, cohort.vocab)
    return str(path)


def small(vocab, **options):
    return DelphiConfig(
        len(vocab),
        d_model=12,
        n_head=3,
        n_layer=1,
        **{'objective': 'competing', 'mixer': 'traj_mixer_v5', **options},
    )


def shaped_people(n=40, seed=0):
    "People with codes that a .bin file can hold; a third of them die."
    rng, rows, table = np.random.default_rng(seed), [], []
    for i in range(1, n + 1):
        start = int(rng.integers(12_000, 20_000))
        end = start + int(rng.integers(1_000, 6_000))
        rows += [
            (i, int(rng.integers(0, end)), int(k))
            for k in rng.choice(np.arange(13, 17), rng.integers(0, 4), replace=False)
        ]
        if i % 3 == 0:
            rows.append((i, end, SHAPED.death))
        rows.append((i, 0, 2 + i % 2))
        table.append((i, ('female', 'male')[i % 2], start, end))
    return Cohort.from_rows(
        SHAPED,
        *np.array(rows).T,
        pd.DataFrame(table, columns=['subject_id', 'sex', 'start', 'end']),
    )


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "A folder with checkpoints and people."
    root, people = tmp_path_factory.mktemp('commands'), simulate(120, 5)
    saved(root / 'model', small(people.vocab), people)
    torn = shutil.copytree(root / 'model', root / 'torn')
    data = (torn / 'model.safetensors').read_bytes()
    (torn / 'model.safetensors').write_bytes(
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    )
    saved(root / 'leaky', small(people.vocab, objective='delphi', tie_mask='delphi'), people)
    people.write_frame(root / 'people')
    shaped_people().write_frame(root / 'shaped')
    saved(root / 'shaped_model', small(SHAPED), shaped_people())
    return root


def call(command, *argv):
    "Run a command quietly; it must succeed."
    with contextlib.redirect_stdout(io.StringIO()) as heard:
        status, line = said_on_stderr(command.main, list(map(str, argv)))
    assert status == 0, line
    return heard.getvalue()


def refused(command, *argv):
    "Run a command that must refuse, in one line."
    with contextlib.redirect_stdout(io.StringIO()):
        status, line = said_on_stderr(command.main, list(map(str, argv)))
    assert status == 2 and line.count('\n') == 1 and line.startswith(command.__name__), (
        status,
        line,
    )
    return line


# any command


@commands.command
def spells(
    data: str,  # people
    batch_size: int = 3,  # of them at once
    max_length: int = None,  # of a sequence
    no_birth: str = None,  # what becomes of people without one
    base_rate: bool = False,  # whether
):
    "Say what was asked for."
    if data == 'Ctrl-C':
        raise KeyboardInterrupt
    logging.getLogger('delphi_traj.layers').info(f'{data=} {batch_size=} {max_length=}')
    print(f'{no_birth=} {base_rate=}')


@pytest.mark.parametrize('dash', '-_')
def test_both_spellings_of_an_option_are_one(dash, capsys):
    argv = [f'--batch{dash}size=5', f'--max{dash}length', '7', 'a-b', f'--base{dash}rate']
    spells.main([*argv, f'--no{dash}birth', '--drop-x'[2:]])
    said = capsys.readouterr()
    assert said.out == "data='a-b' batch_size=5 max_length=7\nno_birth='drop-x' base_rate=True\n"
    assert not said.err


def test_help_has_one_spelling(capsys):
    "That of README, whatever fastcore makes of it."
    for command in (spells, delphi_evaluate, commands.delphi_train):
        with pytest.raises(SystemExit):
            command.main(['--help'])
        options = re.findall(r'--[\w-]+', capsys.readouterr().out)
        assert len(options) > 4 and not [o for o in options if '-' in o[2:]]


def test_newer_fastcore_spells_with_hyphens(monkeypatch, capsys):
    "The parser of another fastcore, which knows hyphens only."
    old = commands.anno_parser

    def hyphens(function, prog=None):
        parser, made = old(function, prog=prog), argparse.ArgumentParser(prog=prog)
        for action in parser._actions[1:]:
            names = [o.replace('_', '-') for o in action.option_strings]
            kind = {'action': 'store_true'} if action.nargs == 0 else {'type': action.type}
            made.add_argument(*(names or [action.dest]), default=action.default, **kind)
        return made

    monkeypatch.setattr(commands, 'anno_parser', hyphens)
    for dash in '-_':
        test_both_spellings_of_an_option_are_one(dash, capsys)
    test_help_has_one_spelling(capsys)


def test_an_interruption_is_one_line(capsys):
    assert said_on_stderr(spells.main, ['Ctrl-C']) == (130, 'spells: interrupted\n')


def test_what_the_library_says_is_printed_by_commands_only(capsys):
    "Also where a command is called as a function; afterwards the logger is as it was."
    logger = logging.getLogger('delphi_traj')
    before = logger.level, list(logger.handlers)
    spells('x')
    assert capsys.readouterr().out.startswith("data='x' batch_size=3")
    with pytest.raises(KeyboardInterrupt):
        spells('Ctrl-C')
    assert (logger.level, logger.handlers) == before
    spells.__wrapped__('x')
    assert capsys.readouterr().out == 'no_birth=None base_rate=False\n'


def test_only_the_first_process_speaks(monkeypatch, capsys):
    monkeypatch.setenv('RANK', '1')
    spells('x')
    assert capsys.readouterr().out == 'no_birth=None base_rate=False\n'


def test_a_module_with_one_door(capsys):
    "python -m delphi_traj: the commands that are installed, and one of them by its name."
    facts = ConfigParser(delimiters=['='])
    facts.read(Path(__file__).parents[1] / 'settings.ini', encoding='utf8')
    installed = dict(x.split('=') for x in facts['DEFAULT']['console_scripts'].split())
    assert installed == {f.__name__: f'delphi_traj.commands:{f.__name__}' for f in door.COMMANDS}
    door.main(['--help'])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(installed)]] == list(installed)
    assert said_on_stderr(door.main, ['train']) == said_on_stderr(door.main, ['delphi_train'])
    status, line = said_on_stderr(door.main, ['fly'])
    assert status == 2 and line.count('\n') == 1 and 'delphi_train' in line


def test_a_list_that_goes_on_is_another_list(place, tmp_path):
    "Where one list of codes begins the other, nothing differs until it ends."
    people = simulate(40, 5)
    v = people.vocab
    longer = Vocab((*v.names, 'Zoster'), (*v.kinds, 'disease'))
    replace(people, vocab=longer).write_frame(tmp_path / 'longer')
    line = refused(delphi_evaluate, place / 'model', tmp_path / 'longer', '--device', 'cpu')
    assert 'the shorter list begins the longer one' in line


# delphi_evaluate


@pytest.fixture(scope='module')
def report(place):
    chapters = place / 'chapters.csv'
    chapters.write_text(
        'name,ICD-10 Chapter (short)\nDeath,End\n<b>&,Nobody\n'
        + ''.join(f'{n},"Part <{n[0]}>"\n' for n in simulate(1, 0).vocab.names[4:-1])
    )
    argv = [
        'model',
        'people',
        '--train',
        'simulated:300:9',
        '--n_boot',
        50,
        '--min_cases',
        5,
        '--futures',
        60,
        '--years',
        '2,5',
        '--device',
        'cpu',
        '--chapters',
        chapters.name,
        '--note',
        'Checked & <signed>.',
    ]
    with _inside(place):
        said = call(delphi_evaluate, *argv, '--out', 'report')
    return place / 'report', said, argv


@contextlib.contextmanager
def _inside(folder):
    was = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(was)


def test_the_report_holds_what_was_found(report):
    folder, said, _ = report
    text = (folder / 'report.html').read_text()
    page = Page(text)
    for heading in (
        'Beware',
        'Summary',
        'Contents',
        'Who was judged',
        'Discrimination',
        'Calibration',
        'Incidence by age',
        'Sampled futures',
        'Codes',
        'Model and settings',
    ):
        assert heading in page.words
    assert (
        '://' not in text
        and page.tags.count('script') == 1
        and all(x.startswith('data:image/png;base64,') for x in page.loads)
    )
    assert all(x[0] == '#' or (folder / x).exists() for x in page.links)
    assert len(page.loads) == len(list(folder.glob('*.png'))) >= 7
    written = json.loads((folder / 'evaluation.json').read_text())
    # not simulated: no word of it
    assert written['notes'] == ['Checked & <signed>.'] and written['notes'][0] in page.words
    assert page.words.index('Checked & <signed>.') < page.words.index('Beware')
    assert sorted(written['files'] + ['evaluation.json']) == sorted(
        p.name for p in folder.iterdir()
    )
    assert all(p.name in said for p in folder.iterdir())
    for name, rows in written['tables'].items():
        assert len(pd.read_csv(folder / f'{name}.csv')) == len(rows) > 0
    assert {'Part <H>', 'End'} <= {
        r['group'] for r in written['tables']['groups_5'] if r['by'] == 'chapter'
    }


def test_numbers_of_the_report_are_those_of_the_package(report, place):
    folder, _, _ = report
    summary = pd.read_csv(folder / 'summary.csv')
    baseline = AgeSexBaseline.fit(simulate(300, 9))
    for years in (2.0, 5.0):
        theirs = evaluate(
            load_checkpoint(place / 'model').model,
            simulate(120, 5),
            baseline=baseline,
            years=years,
            n_boot=50,
            min_cases=5,
        ).summary
        mine = summary[summary.years == years].set_index('predictor')
        assert np.allclose(mine[theirs.columns].astype(float), theirs.astype(float), equal_nan=True)
    groups = pd.read_csv(folder / 'groups_5.csv')
    groups = groups[groups.measure == 'observed_over_expected'].set_index(['by', 'group'])
    assert (
        groups.cases['everybody', 'everybody']
        == groups[groups.index.get_level_values('by') == 'chapter'].cases.sum()
    )


def test_the_same_line_gives_the_same_bytes(report, place):
    folder, _, argv = report
    shutil.copytree(folder, place / 'first_time')
    with _inside(place):
        call(delphi_evaluate, *argv, '--out', 'report')
    for p in (place / 'first_time').iterdir():
        assert p.read_bytes() == (folder / p.name).read_bytes(), p.name


def test_files_of_an_earlier_evaluation_go(report, place):
    folder, _, argv = report
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    copy = shutil.copytree(folder, place / 'copy')
    (copy / 'mine.txt').write_text('kept')
    with _inside(place):
        call(
            delphi_evaluate,
            'model',
            'people',
            '--min_cases',
            500,
            '--ages',
            60,
            '--n_boot',
            0,
            '--futures',
            0,
            '--device',
            'cpu',
            '--out',
            'copy',
        )
    left = {p.name for p in copy.iterdir()}
    assert (
        'mine.txt' in left
        and not {'auc.png', 'deciles_5.csv', 'per_code.csv', 'groups_2.csv'} & left
    )
    written = json.loads((copy / 'evaluation.json').read_text())
    assert set(written['files']) | {'evaluation.json', 'mine.txt'} == left
    assert {'per_code', 'deciles_5', 'groups_5', 'futures'} <= set(written['not_computed']) and all(
        written['not_computed'].values()
    )
    text = ''.join(Page((copy / 'report.html').read_text()).words)
    for why in written['not_computed'].values():
        assert why in text
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


# the people, in every form


def test_names_are_enough(place, tmp_path):
    stored, people = load_checkpoint(place / 'model'), simulate(30, 5)
    people.write_frame(tmp_path / 'csv')
    (tmp_path / 'csv/vocab.csv').unlink()
    write_cohort(people, tmp_path / 'meds')
    write_cohort(people, tmp_path / 'other')
    (tmp_path / 'other/metadata/codes.parquet').unlink()
    for form in ('csv', 'meds', 'other'):
        assert matching_cohort(tmp_path / form, stored) == people
    events = pd.read_csv(tmp_path / 'csv/events.csv')
    events.loc[len(events) - 1, 'code'] = 'Asthmaa'
    events.to_csv(tmp_path / 'csv/events.csv', index=False)
    with pytest.raises(ValueError, match='unknown code'):
        matching_cohort(tmp_path / 'csv', stored)


def test_tables_of_omop_are_read_with_the_codes_of_the_checkpoint(place, tmp_path):
    stored = load_checkpoint(place / 'model')
    name = stored.vocab.names[6]
    pd.DataFrame(
        dict(
            person_id=[1, 2],
            gender_concept_id=[8507, 8532],
            year_of_birth=[1950, 1960],
            month_of_birth=[1, 1],
            day_of_birth=[1, 1],
        )
    ).to_csv(tmp_path / 'person.csv', index=False)
    pd.DataFrame(
        dict(
            person_id=[1, 1],
            condition_start_date=['2000-01-01', '2001-01-01'],
            condition_concept_id=[7, 8],
        )
    ).to_csv(tmp_path / 'condition_occurrence.csv', index=False)
    pd.DataFrame(dict(person_id=[2], death_date=['2010-01-01'])).to_csv(
        tmp_path / 'death.csv', index=False
    )
    pd.DataFrame(
        dict(
            person_id=[1, 2],
            observation_period_start_date=['1999-01-01'] * 2,
            observation_period_end_date=['2010-01-01'] * 2,
        )
    ).to_csv(tmp_path / 'observation_period.csv', index=False)
    concept = pd.DataFrame(
        dict(concept_id=[7, 8], concept_name=[name, stored.vocab.names[7]], concept_code=['a', 'b'])
    )
    concept.to_csv(tmp_path / 'concept.csv', index=False)
    found = matching_cohort(tmp_path, stored)
    assert (
        found.vocab == stored.vocab
        and name in found.frame().code.tolist()
        and found.subjects.died.tolist() == [False, True]
    )
    concept.assign(concept_name=['Nothing', name]).to_csv(tmp_path / 'concept.csv', index=False)
    with pytest.raises(ValueError, match='unknown code'):
        matching_cohort(tmp_path, stored)


# delphi_sample


@given(cohorts(people=(2, 5)), st.integers(1, 3), st.sampled_from([1, 3, 1000]), st.integers(0, 20))
@examples(20)
def test_futures_as_people(cohort, n, budget, years):
    when = cohort.subjects.start.to_numpy(dtype=np.int64)
    futures = sample_futures(tiny_model(), cohort, when, years + 1.0, n, seed=3, budget=budget)
    if not (futures.why == 0).any():
        return
    people, draws = as_people(futures)
    ids = cohort.subjects.subject_id.to_numpy()
    assert (
        people.subjects.subject_id.tolist() == draws.subject_id.tolist()
        and draws.subject_id.is_unique
    )
    assert draws.subject_id.tolist() == (
        draws.source.tolist() if n == 1 else list(range(1, len(draws) + 1))
    )
    for i, row in enumerate(draws.itertuples()):
        p, me = int(np.flatnonzero(ids == row.source)[0]), people[i]
        at = (futures.person == p) & (futures.draw == row.draw)
        past = (cohort.person == p) & (cohort.age <= when[p])
        wanted = sorted(
            zip(cohort.age[past].tolist(), cohort.token[past].tolist(), strict=True)
        ) + list(
            zip(
                np.floor(futures.age[at]).astype(int).tolist(),
                futures.token[at].tolist(),
                strict=True,
            )
        )
        assert (
            sorted(zip(me.age.tolist(), me.token.tolist(), strict=True)) == sorted(wanted)
            and row.events == at.sum()
        )
        subject = me.subjects.iloc[0]
        assert (
            subject.died == (row.ended == 'death')
            and subject.sex == cohort.subjects.sex[p]
            and subject.start == cohort.subjects.start[p]
        )
        if subject.died:
            assert me.token[-1] == cohort.vocab.death and me.age[-1] == subject.end
        if row.ended == 'horizon':
            assert subject.end == when[p] + int((years + 1) * 365.25)
        if row.ended == 'budget':
            assert subject.end == int(np.floor(futures.age[at].max()))


def test_an_event_within_the_landmark_day_and_death_after_it():
    past = known_at(simulate(1, 2), np.array([20_000]))
    died = past.vocab.death
    futures = Futures(
        past,
        np.array([20_000]),
        1.0,
        1,
        np.array([0, 2]),
        np.array([died - 1, died], np.int32),
        np.array([20_000.2, 20_000.9]),
        np.array([0], np.int8),
        np.array([0], np.int8),
    )
    people, _ = as_people(futures)
    assert (
        people.age[-2:].tolist() == [20_000, 20_000]
        and people.token[-1] == died
        and people.subjects.end[0] == 20_000
    )


@pytest.mark.parametrize('form', ['meds', 'csv', 'bin'])
def test_a_sample_reads_back(place, tmp_path, form):
    argv = [
        place / 'shaped_model',
        place / 'shaped',
        '--landmark',
        50,
        '--years',
        40,
        '--n',
        2,
        '--device',
        'cpu',
        '--format',
        form,
    ]
    said = call(delphi_sample, *argv, '--out', tmp_path / 'a')
    call(delphi_sample, *argv, '--out', tmp_path / 'b')
    call(delphi_sample, *argv, '--out', tmp_path / 'c', '--seed', 1)

    def read(x):
        return read_cohort(tmp_path / x / 'people.bin' if form == 'bin' else tmp_path / x)

    draws, out = (pd.read_csv(tmp_path / 'a' / f) for f in ('draws.csv', 'left_out.csv'))
    assert (
        read('a') == read('b') != read('c')
        and read('a').subjects.subject_id.tolist() == draws.subject_id.tolist()
    )
    people = shaped_people()
    assert set(draws.source) | set(out.subject_id) == set(people.subjects.subject_id) and not set(
        draws.source
    ) & set(out.subject_id)
    assert (draws.landmark == int(50 * 365.25)).all() and set(draws.ended) <= set(ENDED[:2])
    assert (
        'floored' in said
        and 'death is the last row' in said
        and all(f'{n:,} {why}' in said for why, n in out.reason.value_counts().items())
    )
    facts = json.loads((tmp_path / 'a/sample.json').read_text())
    assert (
        facts['people'] == len(draws)
        and facts['left_out'] == len(out)
        and sum(facts['ended'].values()) == len(draws)
    )
    assert not list(tmp_path.glob('*.part'))


def test_people_without_history_and_the_old_get_an_answer_or_a_reason(place, tmp_path):
    stored = load_checkpoint(place / 'shaped_model')
    rows = [(2, 9_000, 13), (3, 18_000, SHAPED.death), (4, 36_000, 14), (5, 100, 15)]
    table = pd.DataFrame(
        dict(
            subject_id=[1, 2, 3, 4, 5],
            sex=['female', 'male', 'unknown', 'male', 'unknown'],
            start=[8_000, 8_000, 8_000, 36_000, 0],
            end=[20_000, 20_000, 18_000, 40_000, 19_000],
        )
    )
    Cohort.from_rows(SHAPED, *np.array(rows).T, table).write_frame(tmp_path / 'five')
    call(
        delphi_sample,
        place / 'shaped_model',
        tmp_path / 'five',
        '--device',
        'cpu',
        '--out',
        tmp_path / 'end',
    )
    out = pd.read_csv(tmp_path / 'end/left_out.csv').set_index('subject_id').reason
    assert out.to_dict() == {3: 'dead at the landmark', 4: 'beyond the oldest age'}
    assert pd.read_csv(tmp_path / 'end/draws.csv').source.tolist() == [1, 2, 5]
    five = matching_cohort(tmp_path / 'five', stored)
    assert rows_of(five, Settings(ages=(30, 105))).table.iloc[:, 2:].values.tolist() == [
        [4, 1, 0, 0, 0],
        [0, 0, 3, 1, 1],
    ]
    assert 'nobody alive' in refused(
        delphi_sample,
        place / 'shaped_model',
        tmp_path / 'five',
        '--landmark',
        140,
        '--device',
        'cpu',
        '--out',
        tmp_path / 'x',
    )
    found = Assessment(stored, five, Settings(ages=(30,), min_cases=1, n_boot=0, futures=5))
    # four people, one of whom had code 13
    assert np.isfinite(found.risks(1.0)[:, [13, SHAPED.death]]).sum() == 7


# delphi_convert


@pytest.mark.parametrize('target', ['x.bin', 'x_meds', 'x_csv'])
def test_people_survive_conversion(place, tmp_path, target):
    call(
        delphi_convert,
        place / 'shaped',
        tmp_path / target,
        '--format',
        'csv' if target == 'x_csv' else 'meds',
    )
    assert read_cohort(tmp_path / target) == shaped_people()
    call(delphi_convert, tmp_path / target, tmp_path / 'back', '--format', 'csv')
    assert read_cohort(tmp_path / 'back') == shaped_people()


def test_conversion_is_whole_or_nothing(place, tmp_path):
    call(delphi_convert, 'simulated:30:2', tmp_path / 'some')
    assert read_cohort(tmp_path / 'some') == simulate(30, 2)
    alive = shaped_people()[[0, 1, 3]]
    alive.write_frame(tmp_path / 'alive_csv')
    write_cohort(alive, tmp_path / 'alive')
    assert 'no deaths matched' in refused(
        delphi_convert, tmp_path / 'alive', tmp_path / 'gone', '--format', 'csv'
    )
    assert 'nobody who died' in refused(delphi_convert, tmp_path / 'alive', tmp_path / 'gone.bin')
    assert 'cannot stand in a .bin' in refused(
        delphi_convert, tmp_path / 'some', tmp_path / 'gone.bin'
    )
    assert 'something there already' in refused(
        delphi_convert, tmp_path / 'some', tmp_path / 'alive'
    )
    assert '--birth' in refused(delphi_convert, place / 'people', tmp_path / 'gone', '--birth', 'B')
    assert '--column' in refused(
        delphi_convert, tmp_path / 'some', tmp_path / 'gone', '--column', 'B'
    )
    assert 'neither a .bin' in refused(delphi_convert, tmp_path / 'nowhere', tmp_path / 'gone')
    assert "format='parquet'" in refused(
        delphi_convert, place / 'people', tmp_path / 'gone', '--format', 'parquet'
    )
    assert (
        sorted(p.name for p in tmp_path.iterdir()) == ['alive', 'alive_csv', 'some']
        and read_cohort(tmp_path / 'alive') == alive
    )


def test_options_reach_the_reader(place, tmp_path):
    call(delphi_convert, 'simulated:60:2', tmp_path / 'all')
    call(
        delphi_convert,
        tmp_path / 'all',
        tmp_path / 'held',
        '--split',
        'held_out',
        '--vocab',
        place / 'model' / 'vocab.csv',
    )
    held = read_cohort(tmp_path / 'held')
    assert (
        held == simulate(60, 2).split()['held_out']
        and held.vocab == load_checkpoint(place / 'model').vocab
    )


# delphi_export, and what all refuse


def test_an_export_answers_as_the_model(place, tmp_path):
    said = call(
        delphi_export,
        place / 'model',
        '--out',
        tmp_path / 'program',
        '--data',
        place / 'people',
        '--expect',
        'traj_mixer_v5',
    )
    gap = float(said.split('people of ')[1].split(': ')[1].split(' in')[0])
    program, stored = load_program(tmp_path / 'program'), load_checkpoint(place / 'model')
    assert (
        gap == pytest.approx(program_gap(program, stored.model, simulate(120, 5)), abs=1e-6)
        and gap < 1e-5
    )
    with torch.no_grad():
        stored.model.token_embedding.weight.add_(0.01)
    assert program_gap(program, stored.model, simulate(120, 5)) > 1e-4


WRONG = {
    'no checkpoint': (['nowhere'], 'found nothing'),
    'torn': (['torn'], 'SHA-256'),
    'another tag': (['model', '--expect', 'traj_mixer_v1'], 'traj_mixer_v1'),
    'an unknown tag': (['model', '--expect', 'v4'], 'v4'),
    'reads the future': (['leaky'], "tie_mask='delphi'"),
}


@pytest.mark.parametrize('name', WRONG)
@pytest.mark.parametrize('command', [delphi_evaluate, delphi_sample, delphi_export])
def test_all_refuse_the_same(place, tmp_path, command, name):
    (folder, *more), words = WRONG[name]
    data = [] if command is delphi_export else [place / 'people', '--device', 'cpu']
    assert words in refused(command, place / folder, *data, *more, '--out', tmp_path / 'never')
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('command', [delphi_evaluate, delphi_sample, delphi_export])
def test_all_refuse_other_codes(place, tmp_path, command):
    data = (
        ['--data', place / 'shaped']
        if command is delphi_export
        else [place / 'shaped', '--device', 'cpu']
    )
    assert 'they part at id 4' in refused(
        command, place / 'model', *data, '--out', tmp_path / 'never'
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    'argv, words',
    [
        (['--years', '0'], 'years'),
        (['--years', '5,5'], 'each once'),
        (['--offsets', '-1'], 'offsets'),
        (['--offsets', '99'], 'nobody under observation'),
        (['--ages', 'old'], 'ages'),
        (['--ages', '151'], 'ages'),
        (['--min_cases', '0'], 'min_cases=0'),
        (['--n_boot', '-1'], 'n_boot=-1'),
        (['--futures', '-5'], 'futures=-5'),
        (['--seed', '-1'], 'seed=-1'),
        (['--delphi_offset', '-1'], 'delphi_offset'),
        (['--chapters', 'nowhere.csv'], 'nowhere.csv'),
        (['--device', 'abacus'], 'abacus'),
        (['--min_cases', 'many'], 'invalid int'),
        (['--nonsense'], 'unrecognized'),
    ],
)
def test_wrong_arguments_of_an_evaluation(place, tmp_path, argv, words):
    more = [] if '--device' in argv else ['--device', 'cpu']
    assert words in refused(
        delphi_evaluate,
        place / 'model',
        place / 'people',
        *argv,
        *more,
        '--out',
        tmp_path / 'never',
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('command', [delphi_evaluate, delphi_sample])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_computed(
    place, tmp_path, monkeypatch, command
):
    (tmp_path / 'file').write_text('mine')
    monkeypatch.setattr(commands, 'matching_cohort', lambda *a: pytest.fail('the people were read'))
    assert 'found a file at' in refused(
        command,
        place / 'model',
        place / 'people',
        '--device',
        'cpu',
        '--out',
        tmp_path / 'file' / 'report',
    )
    monkeypatch.setattr('os.access', lambda path, mode: False)
    assert 'cannot be written to' in refused(
        command, place / 'model', place / 'people', '--device', 'cpu', '--out', tmp_path / 'new'
    )
    assert [p.name for p in tmp_path.iterdir()] == ['file']


@pytest.mark.parametrize(
    'argv, words',
    [
        (['--landmark', 'soon'], 'landmark'),
        (['--landmark', 'nan'], 'landmark'),
        (['--landmark', '2'], 'nobody alive and observed'),
        (['--years', '0'], 'years'),
        (['--n', '0'], 'n=0'),
        (['--format', 'xml'], 'xml'),
        (['--format', 'bin'], 'cannot stand in a .bin'),
        (['--budget', '0'], 'budget=0'),
    ],
)
def test_wrong_arguments_of_a_sample(place, tmp_path, argv, words):
    assert words in refused(
        delphi_sample,
        place / 'model',
        place / 'people',
        *argv,
        '--device',
        'cpu',
        '--out',
        tmp_path / 'never',
    )
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full/x').write_text('')
    assert 'something there already' in refused(
        delphi_sample, place / 'model', place / 'people', '--out', tmp_path / 'full'
    )
    assert sorted(p.name for p in tmp_path.rglob('*')) == ['full', 'x']
