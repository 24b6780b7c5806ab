"""An exported program is its model, whatever the mixer, the family, the head and the numbers of
people and events."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from delphi_traj.data.batches import collate, collate_landmark
from delphi_traj.data.codes import Vocab
from delphi_traj.data.files import read_frame
from delphi_traj.evaluation.export import (
    FILES,
    INPUTS,
    LandmarkProgram,
    check_same,
    example_inputs,
    export_program,
    load_program,
    program_inputs,
    traced,
)
from delphi_traj.evaluation.metrics import log_hazard_at
from delphi_traj.evaluation.risk import landmark_inputs
from delphi_traj.layers.stages import MIXERS
from delphi_traj.models.delphi import DelphiConfig
from delphi_traj.models.event_trajectory import event_trajectory_shared_v2
from delphi_traj.models.heads import Hazards
from delphi_traj.training.architectures import build_model
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint
from delphi_traj.training.files import CheckpointError
from lives import DISEASES, VOCAB


def small(mixer):
    return DelphiConfig(
        vocab_size=len(VOCAB), d_model=12, n_head=3, n_layer=1, mixer=mixer, objective='competing'
    )


def reader(**options):
    return event_trajectory_shared_v2('nano', vocab_size=len(VOCAB), dropout=0.0, **options)


def drawn(config, seed=0):
    "A model in which every parameter matters."
    model, generator = build_model(config, VOCAB).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        [p.copy_(0.3 * torch.randn(p.shape, generator=generator)) for p in model.parameters()]
    return model


CONFIGS = {name: small(name) for name in MIXERS}
CONFIGS |= {
    f'{mode} {head}': reader(mode=mode, head=head, **extra)
    for mode, head, extra in [
        ('all_future', 'exponential', {}),
        ('all_future', 'weibull', {}),
        ('all_future', 'mixed', {}),
        ('next_token', 'weibull', dict(objective='competing')),
        ('next_token', 'exponential', dict(objective='delphi')),
    ]
}


@pytest.mark.parametrize('name', CONFIGS)
def test_program_is_the_model(name):
    model = drawn(CONFIGS[name])
    program = traced(model, example_inputs(VOCAB)).module()
    eager = LandmarkProgram(model)
    for people, events in ((1, 2), (2, 3), (9, 30)):
        x = example_inputs(VOCAB, people, events, seed=events)
        with torch.no_grad():
            found, expected = program(*x), eager(*x)
        assert torch.equal(found[2], expected[2]) and found[2].any()
        for a, b in zip(found[:2], expected[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert found[0].std() > 0.05, 'the outputs must differ for the comparison to mean anything'


def lives(seed, people=6):
    "People with a few diseases each, observed to one age."
    rng, rows = np.random.default_rng(seed), []
    for i in range(people):
        n = int(rng.integers(1, len(DISEASES)))
        rows += [
            dict(subject_id=i, code=c, age=int(a))
            for c, a in zip(
                rng.permutation(DISEASES)[:n], np.sort(rng.integers(1, 30_000, n)), strict=True
            )
        ]
    table = pd.DataFrame(dict(subject_id=range(people), sex='female', start=0, end=31_000))
    return read_frame(pd.DataFrame(rows), table, VOCAB, death=None)


@pytest.mark.parametrize('name', CONFIGS)
def test_function_is_what_evaluation_uses(name):
    "Seven tensors give the hazards that `predict` gives."
    model, people = drawn(CONFIGS[name]), lives(0)
    for landmark in (0, 12_000, 30_500):
        x = program_inputs(landmark_inputs(model.config.objective, people, landmark), len(VOCAB))
        with torch.no_grad():
            log_scale, log_shape, risk = LandmarkProgram(model)(*x)
        expected = log_hazard_at(model, people, landmark)
        found = Hazards(log_scale, log_shape).log_hazard(x[INPUTS.index('clock')]).numpy()
        assert (risk.numpy() == ~np.isnan(expected)).all()
        np.testing.assert_allclose(found[risk], expected[risk], rtol=1e-4, atol=1e-4)


def test_padding_moves_nothing():
    program = traced(drawn(small('traj_mixer_v5')), example_inputs(VOCAB)).module()
    token, age, sex, valid, had, clock, query = example_inputs(VOCAB, 4, 6)
    wide = [
        torch.cat([x, torch.full((4, 5), fill, dtype=x.dtype)], 1)
        for x, fill in ((token, 0), (age, 0), (valid, False))
    ]
    with torch.no_grad():
        a = program(token, age, sex, valid, had, clock, query)
        b = program(wide[0], wide[1], sex, wide[2], had, clock, query)
    torch.testing.assert_close(a[0], b[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(a[2], b[2])


def test_nothing_follows_death():
    "A row with death among its inputs is at risk of nothing; the others are as they were."
    for name in ('ffn', 'all_future exponential'):
        model, (token, age, sex, valid, *rest) = drawn(CONFIGS[name]), example_inputs(VOCAB, 4, 5)
        dead = token.clone()
        dead[1, 0] = VOCAB.death
        with torch.no_grad():
            before, after = (
                LandmarkProgram(model)(t, age, sex, valid, *rest)[2] for t in (token, dead)
            )
        assert (
            not after[1].any()
            and before[1].any()
            and torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
        )


@pytest.mark.parametrize('name', ['ffn', 'next_token weibull', 'all_future exponential'])
def test_a_cropped_batch_has_the_risk_of_a_whole_one(name):
    "What was had before the window of a cropped batch is not at risk."
    people, model = lives(0), drawn(CONFIGS[name])
    looks = model.config.objective == 'all_future'
    make = (
        (lambda n: collate(people, 'all_future', landmark=30_500, max_length=n))
        if looks
        else lambda n: collate_landmark(people, 30_500, max_length=n)
    )
    whole, cropped = make(None), make(2)
    assert cropped.token.shape[1] == 2 < whole.token.shape[1]
    with torch.no_grad():
        a, b = (LandmarkProgram(model)(*program_inputs(x, len(VOCAB)))[2] for x in (whole, cropped))
    assert torch.equal(a, b) and a.any()


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    room = tmp_path_factory.mktemp('export')
    save_checkpoint(room / 'checkpoint', drawn(small('unimixing_lite')), VOCAB)
    export_program(load_checkpoint(room / 'checkpoint'), room / 'export')
    return room


def test_round_trip(exported):
    program = load_program(exported / 'export', VOCAB)
    stored = load_checkpoint(exported / 'checkpoint')
    x = example_inputs(VOCAB, 5, 7, seed=9)
    with torch.no_grad():
        torch.testing.assert_close(
            program.module(*x)[0], LandmarkProgram(stored.model)(*x)[0], rtol=1e-5, atol=1e-5
        )
    assert program.facts['parameters'] == stored.config['model_parameter_count']
    assert program.facts['checkpoint_sha256'] == stored.config['model_sha256']


@pytest.mark.parametrize('name', FILES)
def test_missing_file_is_refused(exported, tmp_path, name):
    folder = shutil.copytree(exported / 'export', tmp_path / 'copy')
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_program(folder)


@pytest.mark.parametrize('at', [0.0, 0.1, 0.5, 0.9])
def test_changed_program_is_refused(exported, tmp_path, at):
    folder = shutil.copytree(exported / 'export', tmp_path / 'copy')
    data = bytearray((folder / 'program.pt2').read_bytes())
    data[int(at * len(data))] ^= 1
    (folder / 'program.pt2').write_bytes(data)
    with pytest.raises(CheckpointError, match='SHA-256'):
        load_program(folder)


def test_changed_vocabulary_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported / 'export', tmp_path / 'copy')
    names = list(VOCAB.names)
    names[-1], names[-2] = names[-2], names[-1]
    with pytest.raises(CheckpointError, match='vocabulary'):
        load_program(folder, Vocab(names, VOCAB.kinds))
    Vocab(names, VOCAB.kinds).save(folder / 'vocab.csv')
    with pytest.raises(CheckpointError, match='vocab.csv'):
        load_program(folder)


@pytest.mark.parametrize(
    'change', [dict(format='x'), dict(inputs=['token']), dict(program_sha256='0')]
)
def test_changed_facts_are_refused(exported, tmp_path, change):
    folder = shutil.copytree(exported / 'export', tmp_path / 'copy')
    (folder / 'program.json').write_text(
        json.dumps(json.loads((folder / 'program.json').read_text()) | change)
    )
    with pytest.raises(CheckpointError):
        load_program(folder)


def test_foreign_folder_is_left_alone(exported, tmp_path):
    (tmp_path / 'thesis.txt').write_text('mine')
    with pytest.raises(ValueError, match='belong to no export'):
        export_program(load_checkpoint(exported / 'checkpoint'), tmp_path)
    assert (tmp_path / 'thesis.txt').read_text() == 'mine'


def test_a_program_that_differs_is_never_written():
    model = drawn(small('ffn'))
    program = traced(model, example_inputs(VOCAB))
    with torch.no_grad():
        model.blocks[0].stage.norm.weight.add_(1.0)
    with pytest.raises(RuntimeError, match='difference'):
        check_same(program, drawn(small('ffn'), seed=1), VOCAB)


def test_no_event_is_an_error():
    batch = landmark_inputs('competing', lives(0), 30_500)
    batch.valid[2] = False
    with pytest.raises(ValueError, match='row 2'):
        program_inputs(batch, len(VOCAB))


def test_program_leaves_the_mode_of_the_model():
    model = drawn(small('ffn')).train()
    LandmarkProgram(model)
    assert model.training


def test_an_export_killed_while_it_saved_can_be_made_again(exported, tmp_path):
    folder = tmp_path / 'again'
    folder.mkdir()
    (folder / 'part.program.pt2').write_bytes(b'half')
    save_checkpoint(tmp_path / 'checkpoint', drawn(small('ffn')), VOCAB)
    export_program(load_checkpoint(tmp_path / 'checkpoint'), folder)
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


@pytest.mark.parametrize(
    'change', [dict(inputs=None), dict(program_sha256=None), dict(vocabulary=1)]
)
def test_facts_of_other_types_are_refused(exported, tmp_path, change):
    folder = shutil.copytree(exported / 'export', tmp_path / 'e')
    facts = json.loads((folder / 'program.json').read_text()) | change
    (folder / 'program.json').write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match='another format'):
        load_program(folder)
