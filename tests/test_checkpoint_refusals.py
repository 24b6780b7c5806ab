"""Checkpoints that are refused, each in its own words: one damage done to a copy of a good one."""

import json
import math
import os
import random
import shutil
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from unittest.mock import patch as stand_in

import pytest
import safetensors.torch
import torch
from torch import Tensor

from delphi_traj.data.batches import collate
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.events import example_life
from delphi_traj.models.delphi import Delphi, DelphiConfig, traj_mixer_v5
from delphi_traj.models.event_trajectory import (
    EventTrajectory,
    EventTrajectoryConfig,
    event_trajectory_shared_v2,
)
from delphi_traj.training.architectures import frozen_facts
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint
from delphi_traj.training.files import CheckpointError
from delphi_traj.training.states import load_training_state, save_training_state
from lives import redraw

FILES = ('train_config.json', 'model.safetensors', 'vocab.csv')
STATE_FILES = ('training_state.safetensors', 'training_state.json')
MIXERS = dict(ffn='ffn', swiglu='swiglu', v1='traj_mixer_v1', v5='traj_mixer_v5')
LIFE = example_life()
VOCAB = LIFE.vocab
THIRTY = make_vocab([f'Disease {i}' for i in range(25)])
SMALL = DelphiConfig(len(VOCAB), d_model=24, n_head=4, n_layer=2, mixer='ffn')
STATE = dict(step=2, w=torch.arange(4.0), rng=torch.arange(9, dtype=torch.uint8))


@pytest.fixture(scope='module')
def room(tmp_path_factory):
    "Good checkpoints: four mixers, a preset, an event-trajectory model, a run that was stopped."
    room = tmp_path_factory.mktemp('checkpoints')
    for name, mixer in MIXERS.items():
        save_checkpoint(room / name, redraw(Delphi(replace(SMALL, mixer=mixer), VOCAB)), VOCAB)
    four = replace(SMALL, time_mode='absolute')
    save_checkpoint(room / 'four', Delphi(four, VOCAB), VOCAB)
    save_checkpoint(room / 'preset', Delphi(traj_mixer_v5(len(THIRTY)), THIRTY), THIRTY)
    rounds = EventTrajectory(event_trajectory_shared_v2(vocab_size=len(VOCAB)), VOCAB)
    save_checkpoint(room / 'rounds', rounds, VOCAB)
    save_checkpoint(room / 'stopped', Delphi(SMALL, VOCAB), VOCAB, training_state=STATE)
    return room


# edits


def stored_in(copy):
    return json.loads((copy / 'train_config.json').read_text(encoding='utf8'))


def write(copy, stored):
    (copy / 'train_config.json').write_text(json.dumps(stored), encoding='utf8')


def keys(**new):
    "Set top-level keys of train_config.json."
    return lambda copy: write(copy, {**stored_in(copy), **new})


def without(key):
    "Remove a top-level key of train_config.json."
    return lambda copy: write(copy, {k: v for k, v in stored_in(copy).items() if k != key})


def numbers(**new):
    "Set fields of the config, and nothing else."
    return lambda copy: keys(config={**stored_in(copy)['config'], **new})(copy)


def few(copy):
    "A field of the config is gone."
    keys(config={k: v for k, v in stored_in(copy)['config'].items() if k != 't_min'})(copy)


def forged(kind=DelphiConfig, **new):
    "Set fields of the config, and every fact that follows from it."

    def edit(copy):
        config = kind(**{**stored_in(copy)['config'], **new})
        keys(**frozen_facts(config), preset=config.preset, config=asdict(config))(copy)

    return edit


def both(*edits):
    return lambda copy: [edit(copy) for edit in edits]


def tensors(change):
    "Alter the dict of tensors in place."

    def edit(copy):
        file = copy / 'model.safetensors'
        change(state := safetensors.torch.load(file.read_bytes()))
        file.write_bytes(safetensors.torch.save(state))

    return edit


def put(name, value):
    return tensors(lambda state: state.update({name: value(state[name])}))


def add(name, value):
    return tensors(lambda state: state.update({name: value}))


def drop(*names):
    return tensors(lambda state: [state.pop(n) for n in names])


def drop_stage(copy):
    "All tensors of the mixers."
    tensors(lambda state: [state.pop(n) for n in list(state) if '.stage.' in n])(copy)


def cut(name, n):
    return lambda copy: (copy / name).write_bytes((copy / name).read_bytes()[:n])


def remove(name):
    return lambda copy: (copy / name).unlink()


def text(name, value):
    return lambda copy: (copy / name).write_text(value, encoding='utf8')


def replaced(old, new):
    "Other words in vocab.csv."

    def edit(copy):
        said = (copy / 'vocab.csv').read_text(encoding='utf8')
        assert old in said
        text('vocab.csv', said.replace(old, new))(copy)

    return edit


def exchanged(vocab):
    "Another vocabulary, and its fingerprint in the JSON."

    def edit(copy):
        vocab.save(copy / 'vocab.csv')
        keys(vocab_fingerprint=vocab.fingerprint)(copy)

    return edit


def taken_from(other, name):
    return lambda copy: shutil.copy(copy.parent / f'{other} as it was' / name, copy)


V1_PARTS = {
    'norm.weight': 'weight of the norm',
    'norm.bias': 'bias of the norm',
    'branch.group_align': 'group_align of the group alignment',
    'branch.gate_proj': 'gate_proj of the cross-group projections',
    'branch.value_proj': 'value_proj of the cross-group projections',
    'branch.output_proj': 'output_proj of the cross-group projections',
}
V5_PARTS = {
    'norm.weight': 'weight of the full-width LayerNorm',
    'norm.bias': 'bias of the full-width LayerNorm',
    'intra_gate_proj': 'intra_gate_proj of the intra projections',
    'intra_value_proj': 'intra_value_proj of the intra projections',
    'intra_output_proj': 'intra_output_proj of the intra projections',
    'intra_gate_logits': 'intra_gate_logits of the static gate',
    'gate_proj': 'gate_proj of the cross-group projections',
    'value_proj': 'value_proj of the cross-group projections',
    'output_proj': 'output_proj of the cross-group projections',
}
SEX = 'sex_embedding.weight'
HABIT = make_vocab(VOCAB.names[5:-1], VOCAB.names[4:5])  # asthma as a habit
TINY = both(keys(preset='tiny'), numbers(size='tiny'))
OF_V1 = both(numbers(preset='traj_mixer_v1'), keys(preset='traj_mixer_v1'))
WORDS = dict(
    old="', an older version that is not read; wanted traj_mixer_v5; train again",
    rule='"2 * n_group"; wanted cross_hidden_rule: "4 * n_group", which follows from the config',
    shape="no key 'intra_gate_shape'; wanted intra_gate_shape: [\"n_group\"",
    norms='lacks weight of the norm (blocks.0.stage.norm.weight), and 11 more; wanted every part',
    finite='11 of 11 values of head.log_base_rate not finite',
)

# what is done, to which checkpoint, the edit, the words, and the tag that is expected
CASES = [
    # files
    ('nothing there', 'ffn', shutil.rmtree, 'found nothing; wanted a directory', None),
    *[
        (f'no {n}', 'ffn', remove(n), f'found no {n}; wanted the files {", ".join(FILES)}', None)
        for n in FILES
    ],
    ('cut', 'ffn', cut(FILES[0], 100), 'train_config.json: found no JSON', None),
    ('a list', 'ffn', text(FILES[0], '[]'), "no key 'model_architecture'", None),
    ('half weights', 'ffn', cut(FILES[1], 5000), '5000 bytes that are no whole safetensors', None),
    ('empty weights', 'ffn', cut(FILES[1], 0), '0 bytes that are no whole safetensors', None),
    # tags
    *[
        (tag, 'v5', keys(model_architecture=tag), f"'{tag}{WORDS['old']}", 'traj_mixer_v5')
        for tag in ('traj_mixer_v2', 'traj_mixer_v3', 'traj_mixer_v4')
    ],
    ('v1', 'v1', keys(), "'traj_mixer_v1'; wanted 'traj_mixer_v5', as the", 'traj_mixer_v5'),
    ('ffn', 'ffn', keys(), "'delphi_ffn'; wanted 'traj_mixer_v1', as the", 'traj_mixer_v1'),
    ('no tag', 'v5', without('model_architecture'), "found no key 'model_architecture'", None),
    (
        'a tag to come',
        'v5',
        keys(model_architecture='traj_mixer_v6'),
        "'traj_mixer_v6'; wanted one of traj_mixer_v1",
        None,
    ),
    (
        'a second name',
        'v5',
        keys(model_architecture='delphi_traj_mixer_v5'),
        "'delphi_traj_mixer_v5'; wanted one of",
        None,
    ),
    (
        'v5 called v1',
        'v5',
        keys(model_architecture='traj_mixer_v1'),
        "found config.mixer 'traj_mixer_v5'; wanted 'traj_mixer_v1'",
        None,
    ),
    # presets and facts
    (
        'preset, narrow',
        'preset',
        numbers(d_model=40),
        "found d_model 40 in preset 'traj_mixer_v5'; wanted 120, the frozen number",
        None,
    ),
    (
        'preset, 11 layers',
        'preset',
        numbers(n_layer=11),
        "found n_layer 11 in preset 'traj_mixer_v5'; wanted 12",
        None,
    ),
    ('preset of v1', 'preset', OF_V1, "'traj_mixer_v1'; wanted null or one of", None),
    (
        'a small model claims it',
        'v5',
        keys(preset='traj_mixer_v5'),
        "preset 'traj_mixer_v5' but config.preset None; wanted one name",
        None,
    ),
    ('a rule', 'v5', keys(cross_hidden_rule='2 * n_group'), WORDS['rule'], None),
    ('d_group', 'v1', keys(d_group=12), 'found d_group: 12; wanted d_group: 6, which', None),
    (
        'false became 0',
        'v5',
        keys(projection_bias=0),
        'found projection_bias: 0; wanted projection_bias: false',
        None,
    ),
    ('a fact is gone', 'v5', without('intra_gate_shape'), WORDS['shape'], None),
    # counts and fields
    (
        'no count',
        'v5',
        without('trainable_parameter_count'),
        "no key 'trainable_parameter_count'",
        None,
    ),
    (
        'a wrong count',
        'v5',
        keys(model_parameter_count=1_232_428),
        'found model_parameter_count 1232428; wanted',
        None,
    ),
    (
        'a wrong trainable count',
        'v5',
        keys(trainable_parameter_count=0),
        'found trainable_parameter_count 0; wanted',
        None,
    ),
    (
        'an untrained stranger',
        'v5',
        keys(not_trainable=['final_norm']),
        "found not_trainable ['final_norm']; wanted a list of names",
        None,
    ),
    (
        'a field too many',
        'v5',
        numbers(n_group=4),
        "a config that differs in ['n_group']; wanted the fields",
        None,
    ),
    ('a field is gone', 'v5', few, "a config that differs in ['t_min']", None),
    (
        'seven heads for 24',
        'v5',
        numbers(n_head=7),
        'a config that cannot be (found d_model=24, n_head=7',
        None,
    ),
    (
        'no such mixer',
        'v5',
        numbers(mixer='traj_mixer_v4'),
        "a config that cannot be (found mixer='traj_mixer_v4'",
        None,
    ),
    # the fingerprint
    (
        'ffn: two heads for four',
        'four',
        forged(n_head=2),
        'found fingerprint.n_head 4; wanted 2, as train_config.json says',
        None,
    ),
    (
        'v1: two heads for four',
        'v1',
        forged(n_head=2),
        'found fingerprint.n_head 4; wanted 2',
        None,
    ),
    (
        'another mask',
        'v5',
        forged(tie_mask='delphi'),
        "found fingerprint.tie_mask None; wanted 'delphi'",
        None,
    ),
    (
        'another objective',
        'v5',
        forged(objective='competing'),
        "found fingerprint.objective 'delphi'; wanted 'competing'",
        None,
    ),
    (
        'a billion layers',
        'v5',
        forged(n_layer=10**9),
        'found fingerprint.n_layer 2; wanted 1000000000',
        None,
    ),
    (
        'false became 0 in the config',
        'v5',
        numbers(first_occurrence=1),
        'found fingerprint.first_occurrence True; wanted 1',
        None,
    ),
    (
        'no fingerprint',
        'v5',
        drop('fingerprint.n_head'),
        'found no fingerprint.n_head; wanted the fingerprint',
        None,
    ),
    (
        'weights of ffn',
        'v5',
        taken_from('ffn', FILES[1]),
        "found fingerprint.architecture 'delphi_ffn'",
        None,
    ),
    # parts of the mixer
    *[
        (f'v5 without {n}', 'v5', drop(f'blocks.1.stage.{n}'), f'found block 1 lacks {part}', None)
        for n, part in V5_PARTS.items()
    ],
    *[
        (f'v1 without {n}', 'v1', drop(f'blocks.0.stage.{n}'), f'found block 0 lacks {part}', None)
        for n, part in V1_PARTS.items()
    ],
    ('v1 without any', 'v1', drop_stage, WORDS['norms'], None),
    # tensors
    ('missing', 'v5', drop(SEX), f'found 1 missing tensors: {SEX}; wanted the', None),
    (
        'extra',
        'v5',
        add('bias', torch.ones(24)),
        'found 1 extra tensors: bias; wanted only the',
        None,
    ),
    (
        'wrong shape',
        'v5',
        put(SEX, lambda w: w.new_zeros(3, 24)),
        f'found {SEX} as float32 [3, 24]; wanted float32 [2, 24]',
        None,
    ),
    (
        'half precision',
        'v5',
        put(SEX, Tensor.bfloat16),
        f'found {SEX} as bfloat16 [2, 24]; wanted float32 [2, 24]',
        None,
    ),
    ('not finite', 'v5', put('head.log_base_rate', lambda w: (w + 1) / 0), WORDS['finite'], None),
    ('a nudge', 'v5', put('final_norm.weight', lambda w: w + 1e-3), 'found SHA-256', None),
    # vocabulary; the last two forge the hash as well
    ('a code renamed', 'v5', replaced('Asthma', 'Gout'), 'vocab.csv: found vocabulary ', None),
    (
        'another order',
        'v5',
        replaced('Female,sex\nMale', 'Male,sex\nFemale'),
        'names, kinds or order differ',
        None,
    ),
    (
        'repeats allowed',
        'v5',
        replaced('occurrence=True', 'occurrence=False'),
        'vocab.csv: found vocabulary ',
        None,
    ),
    ('no vocabulary', 'v5', cut('vocab.csv', 0), 'vocab.csv: found no vocabulary', None),
    ('a longer one', 'v5', exchanged(THIRTY), 'found 30 codes; wanted 11, the vocab_size', None),
    ('asthma as a habit', 'v5', exchanged(HABIT), 'token_kind of another vocabulary', None),
    # the event-trajectory model
    (
        'six rounds for twelve',
        'rounds',
        forged(EventTrajectoryConfig, n_reasoning_rounds=6),
        'fingerprint.n_reasoning_rounds 12; wanted 6',
        None,
    ),
    (
        'another mode',
        'rounds',
        forged(EventTrajectoryConfig, time_mode='absolute'),
        'found fingerprint.time_mode',
        None,
    ),
    ('a size that is none', 'rounds', keys(model_size='micro'), 'model_size: "micro"', None),
    ('another size', 'rounds', TINY, 'd_model', None),
    ('v1 expected', 'rounds', keys(), "wanted 'traj_mixer_v1'", 'traj_mixer_v1'),
    ('the old tag', 'rounds', keys(model_architecture='traj_mixer_v2'), 'traj_mixer_v2', None),
    (
        'no mixer',
        'rounds',
        drop('reasoning_core.mixer.gate_proj'),
        'the reasoning core lacks mixer.gate_proj',
        None,
    ),
    (
        'a second core',
        'rounds',
        add('reasoning_core_2.attn_scale', torch.ones(())),
        'there is a second core, reasoning_core_2',
        None,
    ),
    (
        'a tag that is not registered',
        'rounds',
        keys(model_architecture='rounds'),
        "found model_architecture 'rounds'; wanted one of",
        None,
    ),
]


def damaged(room, base, edit, tmp_path):
    "A copy of a checkpoint after `edit(copy)`; the others lie beside it."
    copy = tmp_path / base
    shutil.copytree(room / base, copy)
    for other in ('ffn',):
        (tmp_path / f'{other} as it was').symlink_to(room / other)
    edit(copy)
    return copy


def refusal_of(load, *args):
    "The words with which something is refused."
    with pytest.raises(CheckpointError) as caught:
        load(*args)
    return str(caught.value)


def test_damages_have_names_of_their_own():
    assert len({what for what, *_ in CASES}) == len(CASES) == 78


@pytest.mark.parametrize('base', ['ffn', 'swiglu', 'v1', 'v5', 'four', 'preset', 'rounds'])
def test_an_undamaged_copy_is_taken(room, base, tmp_path):
    assert load_checkpoint(damaged(room, base, keys(), tmp_path))


@pytest.mark.parametrize(
    'base, edit, words, expect', [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_damaged_checkpoints_are_refused(room, base, edit, words, expect, tmp_path):
    path = damaged(room, base, edit, tmp_path)
    assert words in refusal_of(load_checkpoint, path, expect)


def test_the_parts_are_all_there_are(room):
    for base, parts in (('v1', V1_PARTS), ('v5', V5_PARTS)):
        stage = load_checkpoint(room / base).model.blocks[1].stage
        assert sorted(n for n, _ in stage.named_parameters()) == sorted(parts)


def test_a_pickle_is_never_opened(room, tmp_path):
    "One that leaves a trace lies beside the weights; as the path itself it is no checkpoint."

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / 'opened',)

    path = damaged(room, 'v5', keys(), tmp_path)
    torch.save(Trap(), path / 'model.pt')
    load_checkpoint(path, expect='traj_mixer_v5')
    words = refusal_of(load_checkpoint, path / 'model.pt')
    assert 'model.pt: found a file; wanted a directory' in words
    assert not (tmp_path / 'opened').exists()
    torch.load(path / 'model.pt', weights_only=False)
    assert (tmp_path / 'opened').exists()


# edits that nobody thought of

ODD = [None, True, 10**30, 'x', {'x': 1}]


def odd_for(value):
    return [v for v in ODD if json.dumps(v) != json.dumps(value)]


def flip(copy):
    "Flip one bit of the weights' file."
    file = copy / 'model.safetensors'
    data = bytearray(file.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    file.write_bytes(data)


def blind_edits(path):
    "Odd values in every key and every field, weights cut at random lengths, single bits flipped."
    stored, size = stored_in(path), (path / FILES[1]).stat().st_size
    checked = {k: v for k, v in stored.items() if k not in ('versions', 'training')}
    edits = [keys(**{k: v}) for k, value in checked.items() for v in odd_for(value)]
    edits += [numbers(**{k: v}) for k, value in stored['config'].items() for v in odd_for(value)]
    return edits + [cut(FILES[1], random.randrange(size)) for _ in range(20)] + [flip] * 30


def test_edits_that_nobody_thought_of(room, tmp_path):
    "All are refused with a CheckpointError and nothing rougher; notes may be edited."
    random.seed(0)
    copy, good = damaged(room, 'v5', lambda copy: None, tmp_path), room / 'v5'
    edits = blind_edits(good)
    for edit in edits:
        edit(copy)
        refusal_of(load_checkpoint, copy)
        for name in FILES:
            shutil.copy(good / name, copy)
    assert len(edits) == 268
    keys(versions=None, training='a note')(copy)
    batch = collate(LIFE)
    with torch.no_grad():
        assert torch.equal(load_checkpoint(copy).model(batch), load_checkpoint(good).model(batch))


# the state of a run


class Killed(BaseException):
    "The process is gone."


TOUCHES = [
    (os, 'rename'),
    (os, 'replace'),
    (os, 'fsync'),
    (os, 'mkdir'),
    (shutil, 'rmtree'),
    (Path, 'write_bytes'),
]


def dying(function, turn, k):
    "`function`, until the k-th touch of the disk; a file that is being written is left half."

    def stand(*args, **kwargs):
        if next(turn) != k:
            return function(*args, **kwargs)
        if function.__name__ == 'write_bytes':
            function(args[0], args[1][: len(args[1]) // 2])
        raise Killed

    return stand


def dies(k, action):
    "Run `action` and stop it at touch k; True if it died."
    turn = count()
    with ExitStack() as stack:
        for where, name in TOUCHES:
            stack.enter_context(stand_in.object(where, name, dying(getattr(where, name), turn, k)))
        try:
            action()
        except Killed:
            return True
    return False


def killed_between(copy):
    "The next state is saved, and the process dies between the two files."
    assert dies(4, lambda: save_training_state(copy, {**STATE, 'step': 3}))


def tree(value):
    "Another tree in training_state.json."

    def edit(copy):
        about = json.loads((copy / STATE_FILES[1]).read_text(encoding='utf8'))
        text(STATE_FILES[1], json.dumps({**about, 'state': value}))(copy)

    return edit


def other_tensors(copy):
    just_a_step = safetensors.torch.save({'step': torch.tensor(2)})
    (copy / STATE_FILES[0]).write_bytes(just_a_step)


STATE_CASES = [
    ('killed', killed_between, 'found step 3; wanted step 2, as training_state.json says'),
    ('tensors', other_tensors, 'training_state.safetensors: found other tensors'),
    ('weights', taken_from('ffn', FILES[1]), 'model.safetensors: found other weights'),
    *[(f'no {n}', remove(n), f'found no {n}') for n in STATE_FILES],
    ('JSON cut off', cut(STATE_FILES[1], 50), 'training_state.json: found no JSON'),
    ('cut off', cut(STATE_FILES[0], 50), '50 bytes that are no whole safetensors file'),
    (
        'a tensor that is not there',
        tree({'tensor': '99:x'}),
        "a state that cannot be rebuilt (KeyError('99:x'))",
    ),
    (
        'a mark that is none',
        tree({'set': [1]}),
        "found the mark 'set'; wanted float, tensor, tuple or dict",
    ),
]


@pytest.mark.parametrize(
    'edit, words', [c[1:] for c in STATE_CASES], ids=[c[0] for c in STATE_CASES]
)
def test_damaged_states_are_refused(room, edit, words, tmp_path):
    path = damaged(room, 'stopped', edit, tmp_path)
    assert words in refusal_of(load_training_state, path)


def test_a_state_has_a_step(tmp_path):
    words = refusal_of(save_training_state, tmp_path, {'epoch': 1})
    assert "state['step']: found None; wanted a whole number" in words


def test_weights_without_a_state_do_not_keep_an_older_one(room, tmp_path):
    path = damaged(room, 'stopped', keys(), tmp_path)
    save_checkpoint(path, Delphi(SMALL, VOCAB), VOCAB)
    assert 'found no training_state' in refusal_of(load_training_state, path)


# what is not saved


def test_what_is_no_checkpoint_is_not_replaced(tmp_path):
    letter = tmp_path / 'letters' / 'first.txt'
    letter.parent.mkdir()
    letter.write_text('Dear', encoding='utf8')
    for place in (letter, letter.parent):
        words = refusal_of(save_checkpoint, place, Delphi(SMALL, VOCAB), VOCAB)
        assert 'something that is no checkpoint' in words
    assert letter.read_text(encoding='utf8') == 'Dear'


def test_what_could_not_be_loaded_is_not_saved(room, tmp_path):
    "The good checkpoint stays, and nothing else lies beside it."
    path = damaged(room, 'ffn', lambda copy: None, tmp_path)
    (tmp_path / 'ffn as it was').unlink()
    sick = Delphi(SMALL, VOCAB)
    sick.final_norm.weight.data[0] = math.nan
    words = refusal_of(save_checkpoint, path, sick, VOCAB)
    assert '1 of 24 values of final_norm.weight not finite' in words
    words = refusal_of(save_checkpoint, path, Delphi(SMALL), VOCAB)
    assert 'token_kind of another vocabulary' in words
    with pytest.raises(CheckpointError, match='training: found a value that JSON'):
        save_checkpoint(path, Delphi(SMALL, VOCAB), VOCAB, best=math.inf)
    assert [p.name for p in tmp_path.iterdir()] == ['ffn']
    assert stored_in(path) == stored_in(room / 'ffn')


@pytest.mark.parametrize('name', [FILES[1], STATE_FILES[0], FILES[0]])
def test_what_the_disk_got_wrong_is_not_saved(room, name, tmp_path):
    "A stand-in writes one wrong byte into one file."
    path, right = damaged(room, 'stopped', lambda copy: None, tmp_path), Path.write_bytes

    def wrong(self, data):
        return right(self, data[:-1] + b'?' if name in self.name else data)

    with stand_in.object(Path, 'write_bytes', wrong):
        words = refusal_of(save_checkpoint, path, Delphi(SMALL, VOCAB), VOCAB, dict(STATE, step=5))
    assert name in words
    assert load_training_state(path)['step'] == 2 and load_checkpoint(path)
