"""Runs that are killed or interrupted, split over processes, or asked for nonsense."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from delphi_traj.commands import delphi_train
from delphi_traj.data.simulator import simulate
from delphi_traj.models.delphi import Delphi, traj_mixer_v5
from delphi_traj.training.checkpoints import load_checkpoint
from delphi_traj.training.loop import Objective, TrainOptions, interrupts_noted, read_metrics, train
from terminal import said_on_stderr

SMALL = {"d_model": 24, "n_head": 4, "n_layer": 1}
ARGS = [
    "simulated:300:1",
    "--objective",
    "competing",
    "--evaluate_every",
    "10",
    "--device",
    "cpu",
    "--batch_size",
    "32",
]


def launch(folder, *more, runner=()):
    """Start delphi_train as a program of its own."""
    (folder / "small.json").write_text(json.dumps(SMALL))
    code = "from delphi_traj.commands import delphi_train; delphi_train()"
    script = folder / "run_train.py"
    script.write_text(code)
    command = [sys.executable, *runner, str(script), *ARGS, "--config", "small.json", *more]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def weights(path):
    """All tensors of a checkpoint's model."""
    return load_checkpoint(path).model.state_dict()


def assert_same_run(folder, whole='whole', cut='cut'):
    """Weights to the bit, and metrics row for row."""
    for name, tensor in weights(folder / whole / 'last').items():
        assert torch.equal(tensor, weights(folder / cut / 'last')[name]), name
    story = [
        read_metrics(folder / run / 'metrics.jsonl').drop(columns='seconds_per_step')
        for run in (whole, cut)
    ]
    assert story[0].equals(story[1])


def test_a_killed_process_continues_to_the_same_bits(tmp_path):
    """SIGKILL at whatever moment it comes; the continued run equals the one that was left alone."""
    whole = launch(tmp_path, "--steps", "60", "--out", "whole")
    assert whole.wait() == 0, whole.stderr.read()
    cut = launch(tmp_path, "--steps", "60", "--out", "cut")
    while not (tmp_path / "cut/last/training_state.json").exists():
        time.sleep(0.02)
        assert cut.poll() is None or cut.returncode == 0, cut.stderr.read()
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    again = launch(tmp_path, "--steps", "60", "--out", "cut", "--resume")
    assert again.wait() == 0, again.stderr.read()
    assert_same_run(tmp_path)


def test_an_interrupted_process_ends_in_a_line_and_continues_to_the_same_bits(tmp_path):
    """SIGINT, as Ctrl-C sends it: exit status 130, one line, a checkpoint of the last step."""
    whole = launch(tmp_path, '--steps', '200', '--out', 'whole')
    assert whole.wait() == 0, whole.stderr.read()
    cut = launch(tmp_path, '--steps', '200', '--out', 'cut')
    while not (tmp_path / 'cut/last/training_state.json').exists():
        time.sleep(0.02)
        assert cut.poll() is None, cut.stderr.read()
    cut.send_signal(signal.SIGINT)
    said = cut.communicate()[1].splitlines()
    step = load_checkpoint(tmp_path / 'cut/last').config['training']['step']
    assert cut.returncode == 130 and len(said) == 1, said
    assert f'stopped after step {step}; cut/last is of this step' in said[0]
    again = launch(tmp_path, '--steps', '200', '--out', 'cut', '--resume')
    assert again.wait() == 0, again.stderr.read()
    assert_same_run(tmp_path)


def run_of(people, out, interrupt_at=None, **more):
    """Twelve steps with dropout, three evaluations; Ctrl-C while a batch goes through the model."""
    torch.manual_seed(3)
    config = traj_mixer_v5(len(people.vocab), objective='competing', **SMALL)
    model, seen = Delphi(config, people.vocab), []
    options = TrainOptions(steps=12, batch_size=32, evaluate_every=5, warmup=2, device='cpu')

    def press(module, args):
        seen.append(isinstance(module, Objective))
        if seen[-1] and sum(seen) == interrupt_at:
            signal.raise_signal(signal.SIGINT)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(press)
    try:
        return train(model, people.vocab, people[:60], people[60:], options, out, **more)
    finally:
        hook.remove()


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
    people, folder = simulate(90, seed=4), tmp_path_factory.mktemp('run')
    run_of(people, folder / 'whole', progress=False)
    return people, folder


@pytest.mark.parametrize('step', [1, 5, 7, 12])
def test_an_interrupted_run_continues_to_the_same_bits(uninterrupted, step):
    """Before, at, between and after evaluations: the step is finished and saved, and the next row
    is the one that it would have been."""
    people, folder = uninterrupted
    with pytest.raises(KeyboardInterrupt, match=f'stopped after step {step}; .*--resume'):
        run_of(people, folder / f'at {step}', step, progress=False)
    stored = load_checkpoint(folder / f'at {step}/last').config['training']
    assert stored['step'] == step and (stored['best'] is None) == (step < 5)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run_of(people, folder / f'at {step}', resume=True, progress=False)
    assert_same_run(folder, cut=f'at {step}')


def test_a_second_interrupt_does_not_wait(uninterrupted, tmp_path):
    """The first is noted, the second raises where it comes; another handler is left alone."""
    people, _ = uninterrupted
    with interrupts_noted() as came:
        signal.raise_signal(signal.SIGINT)
        assert came
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    heard = []
    before = signal.signal(signal.SIGINT, lambda *given: heard.append(given))
    try:
        run_of(people, tmp_path / 'mine', 3, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(heard) == 1 and len(read_metrics(tmp_path / 'mine/metrics.jsonl')) == 3


class Terminal(io.StringIO):
    """What a bar takes for a screen."""

    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_and_a_log_a_line_for_each_evaluation(
    uninterrupted, tmp_path, monkeypatch, caplog
):
    """The bar moves once a second at most, not at each step."""
    people, _ = uninterrupted
    caplog.set_level('INFO', logger='delphi_traj')
    for screen, lines in ((Terminal(), 0), (io.StringIO(), 3)):
        caplog.clear()
        monkeypatch.setattr(sys, 'stderr', screen)
        began = time.perf_counter()
        run_of(people, None)
        drawn = screen.getvalue().count('it/s') + screen.getvalue().count('step/s')
        said = [r.getMessage() for r in caplog.records if r.name == 'delphi_traj.training.loop']
        assert len(said) == lines
        if lines:
            assert not screen.getvalue()
            assert said[0].startswith('step 5 of 12: training loss ')
        else:
            assert 0 < drawn <= 3 + (time.perf_counter() - began)
    caplog.clear()
    run_of(people, None, progress=False)
    assert not caplog.records


def test_two_processes_are_two_accumulated_batches(tmp_path):
    """Distributed averaging over two processes and accumulation over the same two batches give the
    same weights."""
    quiet = ("--dropout", "0", "--steps", "10")
    one = launch(tmp_path, *quiet, "--accumulate", "2", "--out", "one")
    assert one.wait() == 0, one.stderr.read()
    port = str(20_000 + os.getpid() % 20_000)
    two = launch(
        tmp_path,
        *quiet,
        "--out",
        "two",
        runner=("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port),
    )
    assert two.wait() == 0, two.stderr.read()
    for name, tensor in weights(tmp_path / "one/last").items():
        torch.testing.assert_close(
            weights(tmp_path / "two/last")[name], tensor, atol=2e-5, rtol=1e-4
        )


def test_bf16_trains_and_keeps_ages_exact():
    """Under bf16 autocast the loss falls as in float32, within two per cent."""
    cohort = simulate(200, seed=4)
    losses = {}
    for precision in ("no", "bf16"):
        torch.manual_seed(0)
        model = Delphi(
            traj_mixer_v5(len(cohort.vocab), objective="competing", **SMALL), cohort.vocab
        )
        options = TrainOptions(
            steps=20,
            batch_size=64,
            warmup=5,
            evaluate_every=20,
            mixed_precision=precision,
            device="cpu",
        )
        losses[precision] = train(model, cohort.vocab, cohort, cohort, options, progress=False)[
            "tuning.total"
        ].iloc[-1]
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses["bf16"] == pytest.approx(losses["no"], rel=0.02)


def test_a_loss_that_is_not_finite_stops_the_run():
    """A NaN in a weight is reported with its step, not trained on."""
    cohort = simulate(60, seed=4)
    model = Delphi(traj_mixer_v5(len(cohort.vocab), objective="competing", **SMALL), cohort.vocab)
    with torch.no_grad():
        model.token_embedding.weight[5] = float("nan")
    with pytest.raises(FloatingPointError, match="step 0"):
        train(
            model, cohort.vocab, cohort, cohort, TrainOptions(steps=2, device="cpu"), progress=False
        )


def test_a_run_of_before_an_option_had_its_usual_value(tmp_path):
    """A stored run without an option of today goes on at the usual value, and only at that."""
    people = simulate(60, seed=4)
    config = traj_mixer_v5(len(people.vocab), objective='competing', **SMALL)
    options = TrainOptions(steps=2, batch_size=32, evaluate_every=1, device='cpu')

    def go(options, resume=True):
        model = Delphi(config, people.vocab)
        return train(model, people.vocab, people, people, options, tmp_path, resume, progress=False)

    whole = go(options, resume=False)
    file = tmp_path / 'last' / 'train_config.json'
    stored = json.loads(file.read_text(encoding='utf8'))
    del stored['training']['options']['clip']
    file.write_text(json.dumps(stored), encoding='utf8')
    with pytest.raises(ValueError, match='other options.*clip'):
        go(replace(options, clip=2.0))
    assert len(go(options)) == len(whole)


def test_resume_refuses_another_run(tmp_path):
    """Another learning rate, another width, another vocabulary: each is said."""
    cohort = simulate(60, seed=4)
    config = traj_mixer_v5(len(cohort.vocab), objective="competing", **SMALL)
    options = TrainOptions(steps=2, batch_size=32, evaluate_every=1, device="cpu")
    train(
        Delphi(config, cohort.vocab),
        cohort.vocab,
        cohort,
        cohort,
        options,
        tmp_path,
        progress=False,
    )
    with pytest.raises(ValueError, match="learning_rate"):
        train(
            Delphi(config, cohort.vocab),
            cohort.vocab,
            cohort,
            cohort,
            replace(options, learning_rate=1.0),
            tmp_path,
            True,
            progress=False,
        )
    wide = replace(config, d_model=48)
    with pytest.raises(ValueError, match="another configuration"):
        train(
            Delphi(wide, cohort.vocab),
            cohort.vocab,
            cohort,
            cohort,
            options,
            tmp_path,
            True,
            progress=False,
        )


@pytest.mark.parametrize(
    "argv, word",
    [
        (["--steps", "5"], "required: data"),
        (["nowhere.bin"], "neither a .bin file nor a folder"),
        (["simulated:40:0", "--objective", "delfi"], "expected 'delphi' or"),
        (["simulated:40:0", "--mixed_precision", "fp8"], "expected 'no' or 'bf16'"),
        (["simulated:40:0", "--device", "cuda"], "no CUDA device"),
        (["simulated:40:0", "--config", "missing.json"], "missing.json"),
        (["simulated:40:0", "--colour", "red"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_are_one_line(argv, word, tmp_path, monkeypatch):
    """One line on stderr, exit status 2, no traceback."""
    if "cuda" in argv and torch.cuda.is_available():
        pytest.skip("a CUDA device is here, so asking for one is right")
    monkeypatch.chdir(tmp_path)
    status, said = said_on_stderr(delphi_train.main, argv)
    assert status == 2 and said.count("\n") == 1 and word in said and "Traceback" not in said, said


def two(*more):
    """A launch of two processes."""
    port = str(20_000 + (os.getpid() + len(more)) % 20_000)
    return ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port)


def finished(run):
    """Its output, if it ended well."""
    out, err = run.communicate()
    assert run.returncode == 0, err
    return out


def test_two_processes_with_dropout_continue_where_they_were(tmp_path):
    """Each process keeps its own generator; the printed training loss is that of both; one process
    may not go on."""
    args = ("--dropout", "0.3", "--evaluate_every", "4")
    finished(launch(tmp_path, *args, "--steps", "8", "--out", "whole", runner=two()))
    (tmp_path / "stop.py").write_text(
        "from delphi_traj.training import loop\n"
        "save = loop.TrainingRun.save\n"
        "def stop(self, *rest, **more):\n"
        "    save(self, *rest, **more)\n"
        "    if self.step == 4 and self.accelerator.is_main_process: import os; os._exit(7)\n"
        "loop.TrainingRun.save = stop\n"
        "from delphi_traj.commands import delphi_train\n"
        "delphi_train()\n"
    )
    command = [
        sys.executable,
        *two(1),
        "stop.py",
        *ARGS,
        "--config",
        "small.json",
        *args,
        "--steps",
        "8",
        "--out",
        "cut",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    assert subprocess.run(command, cwd=tmp_path, env=env, capture_output=True).returncode != 0
    assert load_checkpoint(tmp_path / "cut/last").config["training"]["step"] == 4
    alone = launch(tmp_path, *args, "--steps", "8", "--out", "cut", "--resume")
    assert alone.wait() == 2 and "trained by 2 process(es), and this is 1" in alone.stderr.read()
    finished(launch(tmp_path, *args, "--steps", "8", "--out", "cut", "--resume", runner=two(1, 2)))
    assert_same_run(tmp_path)


def test_two_processes_stop_at_the_same_step(tmp_path):
    """One of them hears Ctrl-C; the other does not wait for ever, and both continue."""
    args = ('--dropout', '0.3', '--evaluate_every', '4', '--steps', '8')
    finished(launch(tmp_path, *args, '--out', 'whole', runner=two()))
    (tmp_path / 'press.py').write_text(
        "import os, signal\n"
        "from delphi_traj.training import loop\n"
        "advance = loop.TrainingRun.advance\n"
        "def press(self):\n"
        "    if self.step == 5 and os.environ['RANK'] == '1': signal.raise_signal(signal.SIGINT)\n"
        "    return advance(self)\n"
        "loop.TrainingRun.advance = press\n"
        "from delphi_traj.commands import delphi_train\n"
        "delphi_train()\n"
    )
    command = [sys.executable, *two(1), 'press.py', *ARGS, '--config', 'small.json', *args]
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    got = subprocess.run(
        [*command, '--out', 'cut'],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert got.returncode != 0 and 'delphi_train: stopped after step 6' in got.stderr
    assert load_checkpoint(tmp_path / 'cut/last').config['training']['step'] == 6
    finished(launch(tmp_path, *args, '--out', 'cut', '--resume', runner=two(1, 2)))
    assert_same_run(tmp_path)


def test_the_training_loss_is_that_of_all_processes(tmp_path):
    """Two processes report the loss that one process reports of the same two batches
    accumulated."""
    args = ("--dropout", "0", "--steps", "4", "--evaluate_every", "2")
    finished(launch(tmp_path, *args, "--accumulate", "2", "--out", "one"))
    finished(launch(tmp_path, *args, "--out", "two", runner=two(1, 2, 3)))
    one, both = (read_metrics(tmp_path / run / "metrics.jsonl").train for run in ("one", "two"))
    assert both.tolist() == pytest.approx(one.tolist(), rel=1e-5)  # sums in another order


def test_a_second_run_chooses_its_device(monkeypatch):
    """A run on the CPU does not bind later runs of the process to it; a stand-in for a GPU is found
    and left."""
    from accelerate.state import PartialState

    from delphi_traj.training.devices import make_accelerator

    monkeypatch.setattr(PartialState, "default_device", property(lambda self: torch.device("meta")))
    kinds = [
        make_accelerator(TrainOptions(device=d)).device.type for d in ("cpu", "auto", "cpu", "auto")
    ]
    assert kinds == ["cpu", "meta", "cpu", "meta"]
    monkeypatch.undo()
    make_accelerator(TrainOptions(device="cpu"))


def test_declared_splits_are_kept(tmp_path, capsys):
    """`held_out` is for judging: training takes train and tuning, says so, and leaves marks of
    nobody else."""
    from delphi_traj.data.meds_out import write_meds

    people = simulate(150, seed=6)
    ids = people.subjects.subject_id.tolist()
    write_meds(
        people,
        tmp_path / "meds",
        splits={"train": ids[:90], "tuning": ids[90:110], "held_out": ids[110:]},
    )
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    args = [
        str(tmp_path / "meds"),
        "--config",
        str(tmp_path / "small.json"),
        "--steps",
        "1",
        "--device",
        "cpu",
        "--batch_size",
        "32",
    ]
    delphi_train.main([*args, "--out", str(tmp_path / "run")])
    assert (
        "90 train, 40 held_out, 20 tuning: trained on train, tuned on tuning"
        in capsys.readouterr().out
    )
    seen = load_checkpoint(tmp_path / "run/best").seen(people)
    assert seen.tolist() == [True] * 110 + [False] * 40
    delphi_train.main([*args, "--out", str(tmp_path / "all"), "--split", "all"])
    assert load_checkpoint(tmp_path / "all/best").seen(people).all()
    status, said = said_on_stderr(
        delphi_train.main, [*args, "--out", str(tmp_path / "x"), "--split", "held_out"]
    )
    assert status == 2 and "expected 'declared'" in said


def test_a_folder_without_train_people_is_refused(tmp_path):
    """Splits of other names say nothing of whom to train on."""
    from delphi_traj.data.meds_out import write_meds

    people = simulate(40, seed=6)
    write_meds(people, tmp_path / "meds", splits={"held_out": people.subjects.subject_id.tolist()})
    status, said = said_on_stderr(
        delphi_train.main, [str(tmp_path / "meds"), "--out", str(tmp_path / "x")]
    )
    assert status == 2 and "expected 'train' among them, or --split all" in said
