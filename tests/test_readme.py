"""What README tells people to type works: every command of its blocks is run on a few people, its
Python too, and its words name what there is."""

import contextlib
import io
import os
import re
import shlex
import shutil
from configparser import ConfigParser
from pathlib import Path

import pytest

from delphi_traj.__main__ import COMMANDS
from delphi_traj.commands import delphi_convert, parser_of
from delphi_traj.data.simulator import simulate
from delphi_traj.training.architectures import PRESETS
from terminal import said_on_stderr

ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf8')
BLOCKS = re.findall(r'^```(\w+)\n(.*?)^```$', README, re.M | re.S)
BY_NAME = {command.__name__: command for command in COMMANDS}
FACTS = ConfigParser(delimiters=['='])
FACTS.read(ROOT / 'settings.ini', encoding='utf8')
# what makes a command of README small; the last value of an option counts
SMALL = {
    'delphi_train': '--config small.json --steps 4 --evaluate-every 2 --device cpu',
    'delphi_evaluate': '--n-boot 0 --futures 10 --min-cases 5 --device cpu',
    'delphi_sample': '--device cpu',
    'delphi_export': '',
    'delphi_demo': '--people 40 --judged 40 --steps 1',
}


def commands_of(block):
    "Words of every command in a block, one for each part between `&&`."
    for line in block.splitlines():
        part = []
        for word in [*shlex.split(line, comments=True), '&&']:
            if word != '&&':
                part.append(word)
            elif part:
                yield part
                part = []


def known_elsewhere(name, *words):
    "A command that is not ours is one that the install brings, with words that it knows."
    if name == 'pip':
        (package,) = [w for w in words if w.startswith('.')]
        extra = re.search(r'\[(\w+)\]', package)
        return words[:2] == ('install', '-e') and (
            not extra or f'{extra[1]}_requirements' in FACTS['DEFAULT']
        )
    if name == 'nbdev_test':
        return 'nbdev' in FACTS['DEFAULT']['dev_requirements'] and words == ('--n_workers', '2')
    return (name, words) in (
        ('python3', ('-m', 'venv', '.venv')),
        ('.', ('.venv/bin/activate',)),
        ('pytest', ()),
    )


@contextlib.contextmanager
def inside(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "The folders that README speaks of, with a few people."
    root, people = tmp_path_factory.mktemp('readme'), simulate(160, 7)
    people[:100].write_frame(root / 'my_folder')
    people[100:].write_frame(root / 'my_held_out_folder')
    (root / 'small.json').write_text('{"d_model": 12, "n_head": 3, "n_layer": 1}')
    return root


@pytest.fixture(scope='module')
def ran(place):
    "Every command of the shell blocks, in their order: its name, status and words."
    heard = []
    with inside(place):
        for language, block in BLOCKS:
            for name, *words in commands_of(block) if language == 'bash' else ():
                if name not in BY_NAME:
                    heard.append((name, words, known_elsewhere(name, *words)))
                    continue
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    words += shlex.split(SMALL[name])
                    status, line = said_on_stderr(BY_NAME[name].main, words)
                heard.append((name, words, status == 0 and 'wrote' in out.getvalue() or line))
    return heard


def test_every_command_runs(ran, place):
    assert not [(name, words, said) for name, words, said in ran if said is not True]
    assert {name for name, *_ in ran} >= set(SMALL)
    for file in (
        'runs/mine/best/model.safetensors',
        'runs/mine/best/evaluation/report.html',
        'runs/mine/best/program/program.pt2',
        'futures/draws.csv',
        'delphi_demo/report.html',
    ):
        assert (place / file).exists(), file


def test_the_example_in_python_runs(ran, place):
    "After the commands, in the same folder; with fewer futures than it asks for."
    (code,) = (block for language, block in BLOCKS if language == 'python')
    names = {}
    assert 'n=1000' in code
    with inside(place):
        exec(compile(code.replace('n=1000', 'n=10'), 'README.md', 'exec'), names)
    vocab = names['saved'].vocab
    assert names['hazard'].shape == (3, len(vocab))
    assert len(names['at_60'].frame()) == 3 * vocab.of_kind('disease', 'death').sum()
    assert len(names['inputs']) == 3


def test_options_and_presets_that_are_named_exist():
    options = {
        o
        for command in COMMANDS
        for action in parser_of(command.__wrapped__)._actions
        for o in action.option_strings
    }
    prose = re.sub(r'^```.*?^```$', '', README, flags=re.M | re.S)
    named = set(re.findall(r'`(--\w+)', prose))
    assert len(named) > 5 and not named - options
    listed = re.search(r'`--preset` takes (.*?);', prose)[1]
    assert set(re.findall(r'`(\w+)`', listed)) == set(PRESETS)


def test_paths_that_are_named_exist():
    "Figures, folders and files of the repository; commands by their name."
    for path in re.findall(r'!\[[^]]*\]\((\S+)\)', README):
        assert (ROOT / path).exists(), path
    for name in set(re.findall(r'`?(delphi_\w+)`', README)) - {'delphi_traj', 'delphi_demo/'}:
        assert name in BY_NAME, name
    for path in re.findall(r'`((?:\.ci|nbs|tests|data|figures)/[\w./]*)`', README):
        if not path.startswith('data/ukb_simulated_data'):  # in Delphi's repository
            assert (ROOT / path).exists(), path


def test_a_word_that_is_no_option_is_refused(place):
    "The checks above can fail."
    assert not known_elsewhere('pip', 'install', '-e', '.[nothing]')
    assert not known_elsewhere('pytst') and known_elsewhere('pytest')
    status, line = said_on_stderr(delphi_convert.main, ['x', 'y', '--fromat', 'csv'])
    assert status == 2 and '--fromat' in line
    assert list(commands_of("a 'b c' && d  # e\n\nf\n")) == [['a', 'b c'], ['d'], ['f']]
    assert shutil.which('pytest')
