"""What the tables of mutations share: copies of the package with one line changed, and the named
tests run against them.

A table maps (statement, what is broken) to (module, text that stands in it exactly once, text in
its place, test that must fail). White space does not count when the text is looked for: a line
that is broken in another place is the same line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import delphi_traj

TESTS = Path(__file__).parent
PACKAGE = Path(delphi_traj.__file__).parent


def mutated(text, old, new):
    """`text` with `old`, which must stand in it exactly once whatever its white space, replaced by
    `new`, which must be Python."""
    kept = [i for i, letter in enumerate(text) if not letter.isspace()]
    bare, sought = ''.join(text[i] for i in kept), ''.join(old.split())
    times = bare.count(sought)
    assert times == 1, f'{old!r} stands {times} times, expected once: renew this mutation'
    first = bare.index(sought)
    # what is replaced begins and ends with a letter: white space around both texts stays outside
    lead, trail = len(old) - len(old.lstrip()), len(old) - len(old.rstrip())
    new = new[lead:] if new.startswith(old[:lead]) else new
    new = new[: len(new) - trail] if new.endswith(old[len(old) - trail :]) else new
    changed = text[: kept[first]] + new + text[kept[first + len(sought) - 1] + 1 :]
    try:
        compile(changed, 'changed', 'exec')
    except SyntaxError as error:
        raise AssertionError(f'{new!r} makes no Python: {error}; renew this mutation') from error
    return changed


def place(name):
    return 'tests/test_{}.py::{}'.format(*name.split('::'))


@pytest.fixture(scope='module')
def copies(tmp_path_factory):
    "copies(module, old, new): a folder with the package, changed in one place."

    def copy(module=None, old='', new=''):
        root = tmp_path_factory.mktemp('package')
        shutil.copytree(PACKAGE, root / 'delphi_traj', ignore=shutil.ignore_patterns('__pycache__'))
        if module:
            file = root / 'delphi_traj' / module
            file.write_text(mutated(file.read_text(encoding='utf8'), old, new), encoding='utf8')
        return root

    return copy


@pytest.fixture(scope='module')
def outcome():
    """outcome(root, test): what `mutant.py` says; one process for all, so that torch is imported
    once."""
    pipe = subprocess.PIPE
    worker = subprocess.Popen(
        [sys.executable, TESTS / 'mutant.py'], stdin=pipe, stdout=pipe, text=True, cwd=TESTS.parent
    )

    def ask(root, *tests):
        worker.stdin.write(json.dumps(dict(root=str(root), tests=tests)) + '\n')
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        assert Path(answer['package']).parent.parent == Path(root), (
            'the test ran against another package'
        )
        return answer

    yield ask
    worker.stdin.close()
    worker.wait(timeout=60)


def checks_of(mutations):
    """The two tests of a table: every change is noticed by its test, and without a change all of
    these tests pass."""

    @pytest.mark.parametrize('what', mutations, ids=': '.join)
    def test_mutation_is_noticed(what, copies, outcome):
        "With the change, the named test fails by an assertion, not by a crash."
        module, old, new, test = mutations[what]
        got = outcome(copies(module, old, new), place(test))
        assert got['code'] == pytest.ExitCode.TESTS_FAILED, got['text']
        assert set(got['errors']) <= {'AssertionError', 'Failed'}, got['text']

    def test_without_mutation(copies, outcome):
        "After all that, every named test passes with an unchanged copy."
        got = outcome(copies(), *sorted({place(test) for *_, test in mutations.values()}))
        assert got['code'] == pytest.ExitCode.OK, got['text']

    return test_mutation_is_noticed, test_without_mutation


def statements(mutations):
    "The statements that a table breaks."
    return {part for name, _ in mutations for part in name.split(', ')}
