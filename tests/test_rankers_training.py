"""Training of rankers: the same seed gives the same bits, the temperature is on its line, bad rows
are named, and a study survives being killed."""

import math
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from delphi_traj.data.interactions import Field, Interactions
from delphi_traj.layers.unimixing import BlockMixing, linear_temperature
from delphi_traj.models.rankers import make_ranker
from delphi_traj.training.loop import make_accelerator
from delphi_traj.training.rankers import (
    RankerOptions,
    batch_order,
    has_temperature,
    predict_interactions,
    ranker_loss,
    ranker_step,
    read_rows,
    run_missing,
    seeded,
    temperature_at,
    train_ranker,
    warm_start,
)

FIELDS = (
    Field('user', domain='user', size=12),
    Field('item', domain='item', size=9),
    Field('price', 'dense', 'item'),
)
SMALL = RankerOptions(batch_size=16, device='cpu')


def table(n=70, seed=0):
    "Rows whose label depends on the pair of ids."
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, f.size, n) for f in FIELDS[:2]], 1)
    label = (rng.random(n) < 0.2 + 0.6 * (ids.sum(1) % 2)).astype(np.float32)
    return Interactions(
        FIELDS, ids, rng.normal(size=(n, 1)).astype(np.float32), label, user=ids[:, 0]
    )


def ranker(seed=0, name='unimixer', **options):
    with seeded(seed):
        return make_ranker(name, FIELDS, 2, 8, 1, embedding=4, **options)


def noisy():
    "A ranker with dropout before its last layer."
    model = ranker()
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    return model


def bits(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_um_24():
    """Adam at .001 for every parameter, tables included: one step is torch's Adam, and no parameter
    is left out; then cold."""
    data, model, other = table(), ranker(), ranker()
    history = train_ranker(model, data, replace(SMALL, epochs=1, batch_size=70))
    optimiser = torch.optim.Adam(other.parameters(), lr=1e-3)
    at = next(iter(batch_order(70, 70, 1, 0))).numpy()
    columns = [torch.as_tensor(a[at]) for a in (data.categorical, data.dense, data.label)]
    loss = other.loss(*columns)
    loss.total.backward()
    optimiser.step()
    assert history.loss[0] == loss.total.item() and same(bits(model), bits(other))
    start = bits(ranker())
    for name, p in model.named_parameters():
        moved = (p - start[name]).abs().flatten().tolist()
        assert not moved or 0 < max(moved) < 1.01e-3, name  # Adam's first step is the rate
    assert RankerOptions().learning_rate == 1e-3 and RankerOptions().epochs == 2
    two = ranker()
    stages = warm_start(two, data, SMALL)
    assert stages.groupby('stage').tau.unique().map(list).tolist() == [[1.0], [0.05]]


def test_um_17_in_training():
    """The temperature of every step is on the line, is in the model when the step is made, and
    stays at the end's value."""
    data, seen = table(), []
    model = ranker()
    mixing = next(m for m in model.modules() if isinstance(m, BlockMixing))
    model.register_forward_pre_hook(lambda *_: seen.append(mixing.tau.item()))
    model.loss = lambda *columns, loss=model.loss: (seen.append(mixing.tau.item()), loss(*columns))[
        1
    ]
    history = train_ranker(model, data, replace(SMALL, tau_end=0.05, tau_steps=6))
    want = [linear_temperature(j, 6, 1.0, 0.05) for j in range(10)]
    assert (
        history.tau.tolist() == want
        and np.allclose(seen, want, atol=1e-7)
        and want[6:] == [0.05] * 4
    )
    assert abs(mixing.tau.item() - 0.05) < 1e-7
    default = train_ranker(ranker(), data, replace(SMALL, tau_end=0.05)).tau
    assert (
        default.tolist() == [linear_temperature(j, 9, 1.0, 0.05) for j in range(10)]
        and default.iloc[-1] == 0.05
    )
    assert temperature_at(0, 1, replace(SMALL, tau_end=0.05)) == 1.0


def test_same_seed_same_bits():
    """Same seed, same weights; another order of rows, other weights; torch's own generator is left
    as it was."""
    data = table()
    before = torch.get_rng_state()
    runs = [
        (model, train_ranker(model, data, replace(SMALL, seed=s, tau_end=0.05)))
        for s in (0, 0, 1)
        for model in [ranker()]
    ]
    assert torch.equal(torch.get_rng_state(), before)
    (a, one), (b, two), (c, _) = runs
    assert same(bits(a), bits(b)) and one.equals(two) and not same(bits(a), bits(c))
    torch.rand(5)
    d = ranker()
    train_ranker(d, data, replace(SMALL, tau_end=0.05))
    assert same(bits(a), bits(d))


def test_dropout_is_seeded_too():
    "Noise that a model draws in training comes from the seed, whatever was drawn before."
    models = []
    for drawn in (0, 7):
        torch.rand(drawn)
        models.append(noisy())
        train_ranker(models[-1], table(), SMALL)
    assert same(bits(models[0]), bits(models[1]))


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 3), st.integers(0, 1000))
def test_an_epoch_is_every_row_once(n, size, epochs, seed):
    "Whatever the sizes: each epoch holds every row once, all batches are full but the last."
    batches = [b.tolist() for b in batch_order(n, size, epochs, seed)]
    per = math.ceil(n / size)
    assert len(batches) == per * epochs
    for e in range(epochs):
        mine = batches[e * per : (e + 1) * per]
        assert sorted(sum(mine, [])) == list(range(n)) and all(len(b) == size for b in mine[:-1])


def test_epochs_and_seeds_differ():
    def flat(seed):
        return [b.tolist() for b in batch_order(40, 40, 2, seed)]

    assert flat(0)[0] != flat(0)[1] and flat(0) == flat(0) and flat(0) != flat(1)


def test_validation_is_a_look_only():
    """Measuring between epochs changes no weight and leaves the last row of each epoch with a
    number."""
    data, model, quiet = table(), noisy(), noisy()
    history = train_ranker(model, data, SMALL, valid=table(seed=1))
    plain = train_ranker(quiet, data, SMALL)
    assert same(bits(model), bits(quiet)) and history.drop(columns='valid_loss').equals(plain)
    assert history.valid_loss.notna().to_numpy().nonzero()[0].tolist() == [4, 9]
    assert abs(history.valid_loss.iloc[-1] - ranker_loss(model, table(seed=1), batch_size=3)) < 1e-6
    assert not model.training


def test_predictions_do_not_depend_on_the_batch():
    data, model = table(), ranker()
    p = predict_interactions(model, data, 7)
    with torch.no_grad():
        want = model(torch.as_tensor(data.categorical), torch.as_tensor(data.dense)).sigmoid()
    assert p.dtype == np.float64 and np.abs(p - want.numpy()).max() < 1e-6 and model.training
    assert (
        np.abs(p - predict_interactions(model, data)).max() < 1e-6
        and len(predict_interactions(model, data[:0])) == 0
    )


def test_warm_start_is_two_trainings():
    """The second stage is a training from the weights of the first, at .05, with a new optimiser;
    rows carry the stage."""
    data, model, by_hand, rows = table(), ranker(), ranker(), []
    history = warm_start(model, data, SMALL, on_row=rows.append)
    train_ranker(by_hand, data, SMALL)
    hot = bits(by_hand)
    train_ranker(by_hand, data, replace(SMALL, tau_start=0.05, tau_end=0.05))
    assert same(bits(model), bits(by_hand)) and not same(hot, bits(by_hand))
    assert [r['stage'] for r in rows] == history.stage.tolist() == [0] * 10 + [1] * 10


def test_balance_reaches_the_optimiser():
    """A heavier balance loss gives other router weights, and the loss that is minimised is the sum
    of its parts."""
    data = table()
    runs = {w: ranker(n_expert=4, top_k=1, balance_weight=w) for w in (0.0, 10.0)}
    history = {w: train_ranker(m, data, SMALL) for w, m in runs.items()}
    routers = [
        next(p for n, p in m.named_parameters() if n.endswith('router')) for m in runs.values()
    ]
    assert not torch.equal(*routers)
    h = history[10.0]
    assert (
        (h.balance > 1).all()
        and np.allclose(h.loss, h.label + h.balance, atol=1e-5)
        and (history[0.0].balance == 0).all()
    )


def test_models_without_temperature():
    "The same options train a model that has none; its temperature is NaN."
    model = ranker(doubly_stochastic=False)
    history = train_ranker(model, table(), replace(SMALL, tau_end=0.05))
    assert not has_temperature(model) and has_temperature(ranker()) and history.tau.isna().all()


def test_a_real_target():
    data = table()
    data.label = data.label * 3 - 1.5
    model = ranker(target='real')
    history = train_ranker(model, data, replace(SMALL, epochs=30, learning_rate=1e-2))
    assert history.loss.iloc[-5:].mean() < 0.8 * history.loss.iloc[:5].mean()
    assert predict_interactions(model, data).min() < 0


@pytest.mark.parametrize(
    'bad, word',
    [
        (dict(label=(13, 2.0)), 'row 13: found label 2.0; expected 0 or 1'),
        (dict(label=(0, np.nan)), 'row 0: found label nan; expected 0 or 1'),
        (
            dict(label=(69, 0.5)),
            r"row 69: found label 0.5; expected 0 or 1 for target='binary'; 1 such",
        ),
    ],
)
def test_a_label_that_is_none(bad, word):
    "The row is named, in the training part and in the validation part, before a weight moves."
    data, model = table(), ranker()
    row, value = bad['label']
    data.label[row] = value
    start = bits(model)
    for call in (
        lambda: train_ranker(model, data, SMALL),
        lambda: train_ranker(model, table(), SMALL, valid=data),
    ):
        with pytest.raises(ValueError, match=word):
            call()
    assert same(start, bits(model))


def test_other_fields_are_refused():
    "A table encoded with other maps has other ids; no rows at all make no training."
    other = replace(table(), fields=(FIELDS[0], Field('item', domain='item', size=10), FIELDS[2]))
    with pytest.raises(ValueError, match='encode them with the maps'):
        train_ranker(ranker(), other, SMALL)
    with pytest.raises(ValueError, match='found no rows'):
        train_ranker(ranker(), table()[:0], SMALL)


def test_a_loss_that_is_no_number_names_its_step():
    "The step is named and the weights of the step before are kept."
    data, model = table(), ranker()
    data.dense[:] = 1
    rows = []
    bad = list(batch_order(70, 16, 2, 0))[3][0].item()
    data.dense[bad] = np.inf
    with pytest.raises(FloatingPointError, match='step 3: loss nan'):
        train_ranker(model, data, SMALL, on_row=rows.append)
    assert len(rows) == 3 and all(p.isfinite().all() for p in model.parameters())


def test_a_gradient_that_is_no_number_is_caught():
    model = ranker()
    model.head.weight.register_hook(lambda g: g * math.nan)
    accelerator = make_accelerator(SMALL)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    columns = [torch.as_tensor(a) for a in (table().categorical, table().dense, table().label)]
    with pytest.raises(FloatingPointError, match='step 5: loss .*gradient norm nan'):
        ranker_step(accelerator, model, optimiser, columns, 5)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_large_gradient_is_not_clipped():
    "The norm is measured; Adam's moments hold the gradient itself."
    model = ranker()
    columns = [torch.as_tensor(a) for a in (table().categorical, table().dense, table().label)]
    model.loss(*columns).total.backward()
    want = [p.grad.clone() for p in model.parameters()]
    ranker_step(
        make_accelerator(SMALL), model, torch.optim.SGD(model.parameters(), lr=0.0), columns, 0
    )
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), want, strict=True))


@pytest.mark.parametrize(
    'given, word',
    [
        (dict(epochs=0), 'epochs=0'),
        (dict(batch_size=1.5), 'batch_size=1.5'),
        (dict(seed=-1), 'seed=-1'),
        (dict(tau_steps=0), 'tau_steps=0'),
        (dict(learning_rate=0), 'learning_rate=0'),
        (dict(learning_rate=math.nan), 'learning_rate=nan'),
        (dict(tau_end=0.0), 'tau_end=0.0'),
        (dict(tau_start=0.05, tau_end=1.0), 'the temperature falls'),
    ],
)
def test_options_are_checked(given, word):
    with pytest.raises(ValueError, match=word):
        RankerOptions(**given)


# --- studies --------------------------------------------------------------------------------------
# --------------------------------------

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

        def run(job):
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
from delphi_traj.training import rankers
def run(job):
    with open('seen', 'a') as f: f.write(f"{job['seed']}\\n")
    return dict(auc=.5, words='x' * 50)
real = rankers.append_row
def half(target, row):
    real(target, row)
    if row['seed'] == 2:
        with open(target, 'r+b') as f: f.truncate(os.path.getsize(target) - 20) # the write stops in the middle of the line
        os.kill(os.getpid(), signal.SIGKILL)
rankers.append_row = half
rankers.run_missing('study.csv', [dict(model='m', seed=s) for s in range(5)], run)
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
    from delphi_traj.training.rankers import run_missing

    jobs, ran = [dict(x=np.float32(0.1), on=True)], []
    for _ in range(2):
        run_missing(tmp_path / 'a.csv', jobs, lambda job: ran.append(job) or dict(y=1))
    assert len(ran) == 1
    (tmp_path / 'b.csv').write_bytes(b'\n')
    with pytest.raises(ValueError, match='line 1: found no names'):
        run_missing(tmp_path / 'b.csv', jobs, lambda job: dict(y=1))
