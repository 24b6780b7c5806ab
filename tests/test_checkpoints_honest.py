"""What a checkpoint says of itself is what it is: ablations, sizes, people seen, factors of a
recalibration."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from delphi_traj.data.codes import make_vocab
from delphi_traj.data.simulator import simulate
from delphi_traj.evaluation.export import export_program, load_program
from delphi_traj.models.delphi import Delphi, DelphiConfig, traj_mixer_v1, traj_mixer_v5
from delphi_traj.models.event_trajectory import EventTrajectory, event_trajectory_shared_v2
from delphi_traj.models.sequence import Recalibration
from delphi_traj.training.architectures import architecture, build_model, config_from
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint
from delphi_traj.training.files import CheckpointError
from delphi_traj.training.loop import TrainOptions, train
from delphi_traj.training.people import person_marks, seen_people

VOCAB = make_vocab(['A', 'B', 'C'])
SMALL = dict(d_model=24, n_head=4, n_layer=1, objective='competing')
ABLATION = 'traj_mixer_v1_group_wise_layer_norm'


def small(**more):
    return Delphi(traj_mixer_v5(len(VOCAB), **SMALL | more), VOCAB)


def test_v1_13_ablation_is_named(tmp_path):
    """A v1 with group-wise LayerNorm has another tag, in checkpoints and exports, and is not taken
    for v1."""
    config = traj_mixer_v1(len(VOCAB), **SMALL, group_wise_layer_norm=True)
    assert architecture(config) == ABLATION and config.preset is None
    assert architecture(replace(config, group_wise_layer_norm=False)) == 'traj_mixer_v1'
    save_checkpoint(tmp_path / 'a', Delphi(config, VOCAB), VOCAB)
    with pytest.raises(CheckpointError, match=f"{ABLATION}'; wanted 'traj_mixer_v1'"):
        load_checkpoint(tmp_path / 'a', expect='traj_mixer_v1')
    stored = load_checkpoint(tmp_path / 'a', expect=ABLATION)
    assert stored.config['mixer_norm'] == 'group_wise_layer_norm'
    program = load_program(export_program(stored, tmp_path / 'program'))
    assert program.facts['model_architecture'] == ABLATION


def test_a_tag_that_the_config_contradicts_is_refused(tmp_path):
    save_checkpoint(
        tmp_path / 'a',
        Delphi(traj_mixer_v1(len(VOCAB), **SMALL, group_wise_layer_norm=True), VOCAB),
        VOCAB,
    )
    said = json.loads((tmp_path / 'a/train_config.json').read_text())
    (tmp_path / 'a/train_config.json').write_text(
        json.dumps(said | {'model_architecture': 'traj_mixer_v1'})
    )
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / 'a')


def test_et_free_sizes_are_not_the_documents(tmp_path):
    "size=None is no size of the document, so it is not the document's architecture."
    free = EventTrajectory(
        event_trajectory_shared_v2(
            None, 2, vocab_size=len(VOCAB), n_trajectory=4, trajectory_dim=6
        ),
        VOCAB,
    )
    save_checkpoint(tmp_path / 'free', free, VOCAB)
    with pytest.raises(CheckpointError, match="free_size'; wanted 'event_trajectory_shared_v2'"):
        load_checkpoint(tmp_path / 'free', expect='event_trajectory_shared_v2')
    assert (
        load_checkpoint(tmp_path / 'free').config['model_architecture']
        == 'event_trajectory_shared_v2_free_size'
    )
    said = json.loads((tmp_path / 'free/train_config.json').read_text())
    (tmp_path / 'free/train_config.json').write_text(
        json.dumps(said | {'model_architecture': 'event_trajectory_shared_v2'})
    )
    with pytest.raises(CheckpointError, match='free_size'):
        load_checkpoint(tmp_path / 'free')


@pytest.mark.parametrize(
    'mixer, wrong',
    [
        ('traj_mixer_v5', dict(hidden_group=7)),
        ('traj_mixer_v5', dict(hidden=9)),
        ('ffn', dict(hidden_group=7)),
        ('traj_mixer_v1', dict(hidden=9)),
        ('traj_mixer_v5', dict(group_wise_layer_norm=True)),
        ('swiglu', dict(group_wise_layer_norm=True)),
        ('traj_mixer_v5', dict(n_information_type=2)),
    ],
)
def test_options_that_a_mixer_would_ignore_are_refused(mixer, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DelphiConfig(len(VOCAB), mixer=mixer, **wrong)


@pytest.mark.parametrize(
    'mixer, right',
    [('traj_mixer_v1', dict(hidden_group=7)), ('ffn', dict(hidden=9)), ('swiglu', dict(hidden=9))],
)
def test_options_that_a_mixer_reads_are_taken(mixer, right):
    assert DelphiConfig(len(VOCAB), mixer=mixer, **right)


# whom a model has seen


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "A run on 60 people, tuned on 20, and all 120."
    people, folder = simulate(120, seed=8), tmp_path_factory.mktemp('run')
    config = config_from('traj_mixer_v5', people.vocab, SMALL)
    options = TrainOptions(steps=2, batch_size=32, evaluate_every=1, device='cpu')
    train(
        build_model(config, people.vocab),
        people.vocab,
        people[:60],
        people[60:80],
        options,
        folder,
        progress=False,
    )
    return folder, people


def test_training_leaves_marks_of_everybody_it_saw(run):
    folder, people = run
    for name in ('best', 'last'):
        assert load_checkpoint(folder / name).seen(people).tolist() == [True] * 80 + [False] * 40


def test_marks_know_a_later_extract_and_a_renumbered_copy(run):
    folder, people = run
    stored = load_checkpoint(folder / 'best')
    table = people.subjects
    assert stored.seen(replace(people, subjects=table.assign(end=table.end + 400))).sum() == 80
    renamed = stored.seen(
        replace(people, subjects=table.assign(subject_id=table.subject_id + 10**6))
    )
    real = np.bincount(people.person, people.vocab.of_kind('disease', 'death')[people.token])
    assert renamed.tolist() == [i < 80 and n > 2 for i, n in enumerate(real)]
    assert not stored.seen(simulate(120, seed=9)).any()  # the same numbers, other people


def test_marks_hold_no_number_and_depend_on_the_run(run):
    folder, people = run
    marks = safetensors.torch.load_file(folder / 'best/people.safetensors')['marks'].numpy()
    assert marks.shape == (80, 2) and not np.isin(people.subjects.subject_id, marks).any()
    assert not np.isin(person_marks(people, 'another run'), marks[marks >= 0]).any()


def test_short_records_are_known_by_their_number_only():
    few = simulate(300, seed=10)
    real = np.bincount(few.person, few.vocab.of_kind('disease', 'death')[few.token], minlength=300)
    assert ((person_marks(few, 's')[:, 1] < 0) == (real < 3)).all() and (real < 3).any()


@pytest.mark.parametrize(
    'damage, words',
    [
        (lambda p: (p / 'people.safetensors').unlink(), 'no people.safetensors'),
        (lambda p: (p / 'people.safetensors').write_bytes(b'x'), 'SHA-256'),
        (lambda p: keys(p, people_sha256=None), 'train_config.json knows nothing'),
    ],
)
def test_damaged_marks_are_refused(run, tmp_path, damage, words):
    shutil.copytree(run[0] / 'best', tmp_path / 'copy')
    damage(tmp_path / 'copy')
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path / 'copy')


def keys(path, **new):
    "Change keys of train_config.json."
    said = json.loads((path / 'train_config.json').read_text())
    (path / 'train_config.json').write_text(json.dumps(said | new))


def test_a_checkpoint_without_marks_has_seen_nobody_that_it_knows_of(tmp_path):
    save_checkpoint(tmp_path / 'a', small(), VOCAB)
    stored = load_checkpoint(tmp_path / 'a')
    assert stored.people is None and not stored.seen(simulate(5, seed=1)).any()


def test_a_new_checkpoint_does_not_inherit_marks(tmp_path):
    people = simulate(10, seed=1)
    save_checkpoint(tmp_path / 'a', small(), VOCAB, people=seen_people(people, salt='x'))
    save_checkpoint(tmp_path / 'a', small(), VOCAB)
    assert load_checkpoint(tmp_path / 'a').people is None


# factors of a recalibration


def test_factors_come_back(tmp_path):
    model = small().eval()
    model.recalibration = Recalibration(
        torch.randn(3, 2, len(VOCAB)), torch.tensor([20_000.0]), dict(people=5)
    )
    save_checkpoint(tmp_path / 'a', model, VOCAB)
    back = load_checkpoint(tmp_path / 'a')
    assert torch.equal(back.model.recalibration.log_factor, model.recalibration.log_factor)
    assert back.config['recalibration'] == {'shape': [3, 2, len(VOCAB)], 'people': 5}


@pytest.mark.parametrize(
    'said',
    [
        None,
        {'shape': [1, 2, 8]},
        {'shape': [2, 2, 8]},
        {'shape': [3, 10**9, 8]},
        {'shape': 3},
        'yes',
        {},
    ],
)
def test_factors_that_are_not_as_said_are_refused(tmp_path, said):
    model = small()
    model.recalibration = Recalibration(torch.zeros(3, 2, len(VOCAB)), torch.tensor([20_000.0]))
    save_checkpoint(tmp_path / 'a', model, VOCAB)
    keys(tmp_path / 'a', recalibration=said)
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / 'a')


def test_factors_without_a_word_are_refused(tmp_path):
    save_checkpoint(tmp_path / 'a', small(), VOCAB)
    keys(tmp_path / 'a', recalibration={'shape': [1, 1, len(VOCAB)]})
    with pytest.raises(CheckpointError, match='missing tensors'):
        load_checkpoint(tmp_path / 'a')
