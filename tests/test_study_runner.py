"""A study survives being killed: every job is run once, a torn line is made again, numbers are told
apart by value, and the studies' saved files are found finished."""

import math
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from delphi_traj.training.studies import (
    append_missing,
    append_row,
    measure_in_turn,
    missing_jobs,
    read_rows,
    rounded,
    run_missing,
)

JOBS = [dict(model=m, seed=s, rate=0.001) for m in ('a', 'b, "quoted"', 'ü') for s in (0, 1)]


def result(job):
    return dict(auc=0.7 + 0.01 * job['seed'] + 0.001 * len(job['model']), note=None)


def test_a_study_runs_each_job_once(tmp_path):
    """A second call runs nothing, an added job is the only one that runs, and a failure keeps what
    was finished."""
    path, calls = tmp_path / 'deep/study.csv', Counter()

    def run(job):
        calls[job['model'], job['seed']] += 1
        if job['model'] == 'ü' and calls['ü', job['seed']] == 1:
            raise RuntimeError('power')
        return result(job)

    with pytest.raises(RuntimeError):
        run_missing(path, JOBS, run)
    assert len(pd.read_csv(path)) == 4
    with pytest.raises(RuntimeError):
        run_missing(path, JOBS, run)
    table = run_missing(path, JOBS, run)
    assert table.equals(run_missing(path, JOBS, run)) and len(table) == 6
    assert all(calls[j['model'], j['seed']] == (2 if j['model'] == 'ü' else 1) for j in JOBS)
    assert (
        table[['model', 'seed', 'rate']].to_dict('records') == JOBS
        and (table.auc == [result(j)['auc'] for j in JOBS]).all()
    )
    run_missing(path, [*JOBS, dict(model='c', seed=0, rate=0.001)], run)
    assert calls['c', 0] == 1 and sum(calls.values()) == 9


def test_a_file_cut_at_any_byte_is_healed(tmp_path):
    """Wherever the last write stopped, the finished rows stay, the torn one is said, dropped and
    made again."""
    whole = tmp_path / 'whole.csv'
    run_missing(whole, JOBS[:3], result)
    text, path = whole.read_bytes(), tmp_path / 'cut.csv'
    for end in range(len(text)):
        path.write_bytes(text[:end])
        finished, ran = max(text[:end].count(b'\n') - 1, 0), []
        torn = end > 0 and text[end - 1 : end] != b'\n'

        def run(job, ran=ran):
            ran.append(job)
            return result(job)

        if torn:
            with pytest.warns(UserWarning, match='torn last line'):
                run_missing(path, JOBS[:3], run)
        else:
            run_missing(path, JOBS[:3], run)
        assert path.read_bytes() == text and ran == JOBS[finished:3], end


KILLED = """
import os, signal, sys
from pathlib import Path
from delphi_traj.training import studies
def run(job):
    with open('seen', 'a') as f: f.write(f"{job['seed']}\\n")
    return dict(auc=.5, words='x' * 50)
real = studies.append_row
def half(target, row):
    real(target, row)
    if row['seed'] == 2:
        # the write stops in the middle of the line
        with open(target, 'r+b') as f: f.truncate(os.path.getsize(target) - 20)
        os.kill(os.getpid(), signal.SIGKILL)
studies.append_row = half
studies.run_missing('study.csv', [dict(model='m', seed=s) for s in range(5)], run)
"""


def test_sigkill_in_the_middle_of_a_line(tmp_path):
    """A process is killed while row 2 is half written; the next call makes runs 2 to 4, and 0 and 1
    are never made again."""
    killed = subprocess.run(
        [sys.executable, '-c', KILLED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    path, seen = tmp_path / 'study.csv', (tmp_path / 'seen').read_text().split()
    assert seen == ['0', '1', '2'] and not path.read_bytes().endswith(b'\n')

    def run(job):
        seen.append(str(job['seed']))
        return dict(auc=0.5, words='x' * 50)

    with pytest.warns(UserWarning, match='torn last line'):
        table = run_missing(path, [dict(model='m', seed=s) for s in range(5)], run)
    assert seen == ['0', '1', '2', '2', '3', '4'] and table.seed.tolist() == [0, 1, 2, 3, 4]


def test_a_row_is_on_disk_before_the_next_run_starts(tmp_path):
    path, lengths = tmp_path / 'study.csv', []

    def run(job):
        lengths.append(len(read_rows(path)))
        return result(job)

    run_missing(path, JOBS, run)
    assert lengths == [0, 1, 2, 3, 4, 5]


def test_numbers_are_compared_by_value(tmp_path):
    "1, 1.0 and numpy's 1 are the same key; True, None and text keep their own."
    path, calls = tmp_path / 'study.csv', []

    def run(job):
        calls.append(job)
        return dict(auc=0.5)

    run_missing(path, [dict(model='a', x=1, flag=True, none=None, small=5e-4)], run)
    run_missing(
        path,
        [dict(model='a', x=np.float64(1.0), flag=True, none=None, small=np.float32(5e-4).item())],
        run,
        keys=['model', 'x', 'flag', 'none'],
    )
    assert len(calls) == 1
    run_missing(path, [dict(model='a', x=1, flag=False, none=None, small=5e-4)], run)
    assert len(calls) == 2


@pytest.mark.parametrize(
    'jobs, run, keys, word',
    [
        ([dict(m=1, s=0), dict(m=1, s=1)], result, ['m'], 'jobs 0 and 1 have the same'),
        ([dict(m=1), dict(s=1)], result, None, 'job 1, .* no .*m'),
        ([dict(m=1)], lambda job: dict(m=2), None, 'stand in the job and in its result'),
        ([dict(m=1)], lambda job: dict(text='a\nb'), None, 'line break'),
    ],
)
def test_a_study_that_cannot_be_told_apart(jobs, run, keys, word, tmp_path):
    with pytest.raises(ValueError, match=word):
        run_missing(tmp_path / 'x.csv', jobs, run, keys)


def test_a_file_of_another_study(tmp_path):
    "Other columns and broken lines are named with the line; nothing is written."
    path = tmp_path / 'x.csv'
    path.write_text('a,b\n1,2\n')
    with pytest.raises(ValueError, match='no columns'):
        run_missing(path, [dict(m=1)], result)
    with pytest.raises(ValueError, match='found columns'):
        run_missing(path, [dict(a=2)], lambda job: dict(c=1))
    assert path.read_text() == 'a,b\n1,2\n'
    path.write_text('a,b\n1,2\n1\n1,3\n')
    with pytest.raises(ValueError, match='line 3: found 1 values under 2 names'):
        run_missing(path, [dict(a=2)], lambda job: dict(b=1))
    assert run_missing(tmp_path / 'none.csv', [], result).empty


def test_keys_are_what_the_file_says(tmp_path):
    "float32's .1 is written as 0.1 and found again; a file without a header is refused."
    jobs, ran = [dict(x=np.float32(0.1), on=True)], []
    for _ in range(2):
        run_missing(tmp_path / 'a.csv', jobs, lambda job: ran.append(job) or dict(y=1))
    assert len(ran) == 1
    (tmp_path / 'b.csv').write_bytes(b'\n')
    with pytest.raises(ValueError, match='line 1: found no names'):
        run_missing(tmp_path / 'b.csv', jobs, lambda job: dict(y=1))


def test_nothing_is_nothing(tmp_path):
    "NaN is written as pandas writes it and is found again, also where a file says nan."
    path = tmp_path / 'x.csv'
    append_row(path, dict(model='a', temperature=math.nan, loss=None))
    assert path.read_text() == 'model,temperature,loss\na,,\n'
    for text in (path.read_text(), 'model,temperature,loss\na,nan,1\n'):
        path.write_text(text)
        jobs = [dict(model='a', temperature=t) for t in (math.nan, 1.0)]
        assert missing_jobs(path, jobs) == jobs[1:]


def test_a_report_adds_no_row_twice(tmp_path):
    "A run that goes on from a checkpoint reports some steps again; a torn one is written anew."
    path, keys = tmp_path / 'x.csv', ['model', 'step']
    rows = [rounded(dict(model='ü', step=s, loss=1 / s), 4) for s in (3, 6, 7)]
    assert [append_missing(path, r, keys) for r in rows] == [True] * 3
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.warns(UserWarning, match='torn last line'):
        assert [append_missing(path, r, keys) for r in rows] == [False, False, True]
    assert path.read_bytes() == whole
    assert append_missing(path, dict(model='v', step=3, loss=1.0), keys)
    with pytest.raises(ValueError, match='no columns'):
        append_missing(path, dict(model='v', seed=0), ['model', 'seed'])


def test_times_are_taken_in_turn(tmp_path):
    "Rounds to warm up come first and are not recorded; a measurement that stopped goes on."
    path, calls = tmp_path / 'x.csv', []

    def step(name, r):
        calls.append((name, r))
        if len(calls) == 6:
            raise RuntimeError('power')

    steps = {n: lambda r, n=n: step(n, r) for n in ('a', 'b')}
    with pytest.raises(RuntimeError):
        measure_in_turn(path, steps, 2, columns=('model', 'step'), warm_up=2)
    assert calls == [(n, r) for r in (-2, -1, 0) for n in ('a', 'b')]
    table = measure_in_turn(path, steps, 2, columns=('model', 'step'), warm_up=1)
    assert calls[6:] == [('a', -1), ('b', -1), ('b', 0), ('a', 1), ('b', 1)]
    assert list(table) == ['model', 'step', 'seconds'] and (table.seconds >= 0).all()
    assert table[['model', 'step']].values.tolist() == [['a', 0], ['b', 0], ['a', 1], ['b', 1]]
