"""One test for each statement of the two TrajMixer documents, by loops over their index formulas,
and the ledger itself."""

import ast
import csv
import html
import importlib
import json
import math
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from delphi_traj.data.batches import collate
from delphi_traj.layers.attention import CausalSelfAttention, causal_mask
from delphi_traj.layers.clock import GaussianRBF, RelativeTimeBias, TimeRoPE
from delphi_traj.layers.groups import merge_groups, per_group_linear, split_groups
from delphi_traj.layers.mixers import FeedForward, GroupLayerNorm, SwiGLU, TrajMixerV1, TrajMixerV5
from delphi_traj.layers.stages import MIXERS, make_stage
from delphi_traj.models.delphi import Block, Delphi, DelphiConfig, traj_mixer_v1, traj_mixer_v5
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint, train_config
from delphi_traj.training.files import CheckpointError
from lives import VOCAB, redraw, tiny_config

ROOT = Path(__file__).parents[1]
g, d, h = 3, 4, 5  # groups, inner coordinates, hidden groups of the small mixers below


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def silu(x):
    return x * sigmoid(x)


def close(a, b, tolerance=1e-10):
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance)


def count(module):
    return sum(p.numel() for p in module.parameters())


def shapes(module):
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


@torch.no_grad()
def normalised(x, norm):
    "LayerNorm over the whole last axis, by loops."
    out = torch.empty_like(x)
    for place in (
        torch.cartesian_prod(*map(torch.arange, x.shape[:-1])).reshape(-1, x.ndim - 1).tolist()
    ):
        row = x[tuple(place)].tolist()
        mean = sum(row) / len(row)
        var = sum((v - mean) ** 2 for v in row) / len(row)
        for i, v in enumerate(row):
            out[(*place, i)] = (v - mean) / math.sqrt(var + 1e-5) * norm.weight[i] + norm.bias[i]
    return out


@torch.no_grad()
def attended(block, x, age, valid):
    """Causal multi-head attention with rotated queries and keys and the time bias, by loops, of one
    block."""
    a, (b, l, width) = block.attention, x.shape
    n_head, size = a.n_head, width // a.n_head
    q, k, v = (x @ p.weight.T for p in (a.q_proj, a.k_proj, a.v_proj))
    read = torch.zeros_like(x)
    for i in range(b):
        for n in range(n_head):
            part = slice(n * size, (n + 1) * size)
            for now in range(l):
                keys = [j for j in range(now + 1) if valid[i, j]]
                if not keys:
                    continue
                score = torch.stack(
                    [
                        score_of(block, q[i, now, part], k[i, j, part], age[i, now], age[i, j], n)
                        for j in keys
                    ]
                )
                weight = score.exp() / score.exp().sum()
                read[i, now, part] = sum(
                    w * v[i, j, part] for w, j in zip(weight, keys, strict=True)
                )
    return read @ a.o_proj.weight.T


def score_of(block, q, k, age_q, age_k, head):
    """Score of one query and key: their product after rotation by ages, and what the head adds for
    the gap."""
    half = len(q) // 2
    if block.time_bias is None:
        return q @ k / math.sqrt(len(q))
    # the buffers are float32 numbers
    frequency = (2 * math.pi / torch.logspace(math.log10(1 / 12), 2, half)).double()

    def turn(z, age):
        return torch.complex(z[:half], z[half:]) * torch.exp(1j * frequency * age / 365.25)

    score = (turn(q, age_q).conj() * turn(k, age_k)).real.sum() / math.sqrt(len(q))
    centre = torch.linspace(0, math.log1p(100), 12).double()
    bump = torch.exp(
        -((torch.log1p((age_q - age_k).abs() / 365.25) - centre) ** 2) / (2 * centre[1] ** 2)
    )
    return score + block.time_bias.time_bias_scale * (block.time_bias.rbf_proj.weight[head] @ bump)


def a_block(mixer, time_mode='relative', **options):
    "A redrawn block of width 24 with its inputs: (block, x, mask, rotation, rbf, age, valid)."
    config = tiny_config(mixer, time_mode, **options)
    block = redraw(Block(config).double())
    age = torch.tensor([[0, 100, 100, 9_000, 20_000], [50, 60, 70, 0, 0]]).double()
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    rotation = rbf = None
    if time_mode == 'relative':
        rotation, rbf = TimeRoPE(6).double()(age), GaussianRBF(12).double()(age, age)
    return block, draw(2, 5, 24), causal_mask(valid), rotation, rbf, age, valid


@torch.no_grad()
def check_attention_residual(mixer):
    "The block hands X + attention(LN(X)) to its stage; with all of attention dropped, X itself."
    for time_mode in ('absolute', 'relative'):
        block, x, mask, rotation, rbf, age, valid = a_block(mixer, time_mode)
        stage, block.stage = block.stage, nn.Identity()
        wanted = x + attended(block, normalised(x, block.norm), age, valid)
        assert close(block.eval()(x, mask, rotation, rbf), wanted)
        block.stage = stage.eval()
        assert close(block(x, mask, rotation, rbf), stage(wanted))
    block, x, mask, rotation, rbf, *_ = a_block(mixer, attention_dropout=1.0)
    block.stage = nn.Identity()
    assert torch.equal(block.train()(x, mask, rotation, rbf), x)


def test_v1_1():
    "U = X + Dropout(CausalMHA(LN(X), time)), and the attention is that of a plain transformer."
    check_attention_residual('traj_mixer_v1')
    assert shapes(CausalSelfAttention(24, 4)) == {f'{n}_proj.weight': (24, 24) for n in 'qkvo'}


@torch.no_grad()
def test_v1_2():
    "The mixer reads one LayerNorm over the full width, with one weight and bias a coordinate."
    stage, x, seen = redraw(make_stage('traj_mixer_v1', g * d, g).double()), draw(2, 3, g * d), []
    stage.branch.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    stage(x)
    assert close(seen[0], normalised(x, stage.norm))
    assert [m.normalized_shape for m in stage.modules() if isinstance(m, nn.LayerNorm)] == [
        (g * d,)
    ]


@torch.no_grad()
def test_v1_3():
    """The stage returns U + Dropout(TrajMixer(N)): U is there once, unnormalised, and only the
    branch is dropped."""
    stage = redraw(make_stage('traj_mixer_v1', g * d, g, dropout=0.5).double()).eval()
    u = draw(200, g * d)
    delta = stage.branch(normalised(u, stage.norm))
    assert close(stage(u), u + delta) and delta.abs().min() > 1e-9
    torch.manual_seed(0)
    left = ((stage.train()(u) - u) / delta).round(decimals=4)
    assert set(left.unique().tolist()) == {0.0, 2.0} and 0.45 < left.mean() / 2 < 0.55


def test_v1_4():
    """Group i holds coordinates i d_group to (i + 1) d_group - 1; as many groups as heads; a width
    that does not divide is an error."""
    x = draw(2, g * d)
    for i in range(g):
        for r in range(d):
            assert torch.equal(split_groups(x, g)[:, i, r], x[:, i * d + r])
    assert torch.equal(merge_groups(split_groups(x, g)), x)
    for n_head in (2, 4, 6):
        stage = Delphi(DelphiConfig(9, 24, n_head, 1, 'traj_mixer_v1')).blocks[0].stage
        assert stage.branch.group_align.shape == (n_head, 24 // n_head, 24 // n_head)
    for broken in (
        lambda: split_groups(x, 5),
        lambda: TrajMixerV1(25, 4),
        lambda: TrajMixerV5(25, 4),
        lambda: DelphiConfig(9, 25, 4),
    ):
        with pytest.raises(ValueError, match='25|12'):
            broken()
    assert 'n_group' not in DelphiConfig.__dataclass_fields__


@torch.no_grad()
def test_v1_4_groups_are_no_heads():
    "A change of one head's values reaches every group, through the output map of attention."
    block, x, mask, rotation, rbf, *_ = a_block('traj_mixer_v1')
    block.stage = nn.Identity()
    before = split_groups(block.eval()(x, mask, rotation, rbf), 4)
    block.attention.v_proj.weight[:6] += 1  # head 0
    after = split_groups(block(x, mask, rotation, rbf), 4)
    assert ((after - before)[0].abs().amax((0, 2)) > 1e-6).all()
    moved = x.clone()
    moved[..., :6] += 1  # the same six coordinates of the stream are one group
    touched = split_groups(moved - x, 4).abs().amax((0, 1, 3)) > 0
    assert touched.tolist() == [True, False, False, False]


@torch.no_grad()
def test_v1_5():
    """Z[b,t,i,s] = sum_r N[b,t,i,r] B_i[r,s]; identity at the start, no bias, and the residual
    stream is not aligned."""
    N, B = draw(2, 3, g, d), draw(g, d, d, seed=1)
    Z = torch.zeros_like(N)
    for b, t, i, r, s in torch.cartesian_prod(*map(torch.arange, (2, 3, g, d, d))).tolist():
        Z[b, t, i, s] += N[b, t, i, r] * B[i, r, s]
    assert close(per_group_linear(N, B), Z)
    align = TrajMixerV1(g * d, g).group_align
    assert torch.equal(align, torch.eye(d).expand(g, d, d))
    assert torch.equal(per_group_linear(N, align.double()), N)
    assert [s for name, s in shapes(TrajMixerV1(120, 10)).items() if 'align' in name] == [
        (10, 12, 12)
    ]
    stage = redraw(make_stage('traj_mixer_v1', g * d, g).double())
    stage.branch.output_proj.zero_()
    assert torch.equal(stage(draw(4, g * d)), draw(4, g * d))


@torch.no_grad()
def one_sided(gate=None, value=None):
    """A mixer with as many hidden groups as groups, output the identity; the side that is not given
    reads 50 and 1 from group 0."""
    mixer = TrajMixerV1(g * d, g, hidden_group=g).double()
    first = torch.zeros(d, g, g).double()
    first[:, 0] = 1
    mixer.gate_proj.copy_(50 * first if gate is None else gate)
    mixer.value_proj.copy_(first if value is None else value)
    mixer.output_proj.copy_(torch.eye(g).double().expand(d, g, g))
    N = draw(2, 3, g, d)
    N[:, :, 0] = 1
    return mixer(merge_groups(N)), N


def crossed(Z, A):
    "[b,t,q,r] = sum_i Z[b,t,i,r] A[r,i,q], by loops."
    (b, t, _, _), n = Z.shape, A.shape[-1]
    out = torch.zeros(b, t, n, d, dtype=Z.dtype)
    for b, t, i, r, q in torch.cartesian_prod(*map(torch.arange, (*Z.shape, n))).tolist():
        out[b, t, q, r] += Z[b, t, i, r] * A[r, i, q]
    return out


def test_v1_6():
    """Gate: G[b,t,q,r] = sum_i Z[b,t,i,r] A_g[r,i,q]. With the value fixed at 1 the mixer returns
    SiLU(G)."""
    A = draw(d, g, g, seed=1)
    found, Z = one_sided(gate=A)
    assert close(found, merge_groups(crossed(Z, A).apply_(silu)))


def test_v1_7():
    """Value: V[b,t,q,r] = sum_i Z[b,t,i,r] A_v[r,i,q]. With the gate fixed at 50, where SiLU is the
    identity, the mixer returns 50 V."""
    A = draw(d, g, g, seed=2)
    found, Z = one_sided(value=A)
    assert close(found, merge_groups(50 * crossed(Z, A)))


@torch.no_grad()
def v1_by_hand(mixer, N):
    "The whole branch on [b t (g d)], by loops."
    Z = torch.zeros(*N.shape[:2], g, d).double()
    for i in range(g):
        for r in range(d):
            for s in range(d):
                Z[:, :, i, s] += N[:, :, i * d + r] * mixer.group_align[i, r, s]
    M = crossed(Z, mixer.gate_proj).apply_(silu) * crossed(Z, mixer.value_proj)
    Y = torch.zeros_like(N)
    for i in range(g):
        for r in range(d):
            for q in range(M.shape[2]):
                Y[:, :, i * d + r] += M[:, :, q, r] * mixer.output_proj[r, q, i]
    return Y


@torch.no_grad()
def test_v1_8():
    "Y[b,t,i,r] = sum_q SiLU(G) V A_o[r,q,i], and group i returns to coordinates i d_group onwards."
    mixer, N = redraw(TrajMixerV1(g * d, g, h).double(), std=1.0), draw(2, 3, g * d)
    assert close(mixer(N), v1_by_hand(mixer, N))


def test_v1_9():
    """Stored shapes: group_align [g,d,d], gate and value [d,g,h], output [d,h,g]; nothing else, so
    no bias."""
    assert shapes(TrajMixerV1(g * d, g, h)) == dict(
        group_align=(g, d, d), gate_proj=(d, g, h), value_proj=(d, g, h), output_proj=(d, h, g)
    )


@torch.no_grad()
def test_v1_10():
    """hidden_group is any width, 20 by default, and with hidden_group = n_group the projections are
    square."""
    assert (
        shapes(TrajMixerV1(120, 10))['gate_proj']
        == (12, 10, 20)
        == shapes(Delphi(traj_mixer_v1(9)).blocks[0].stage.branch)['gate_proj']
    )
    assert shapes(TrajMixerV1(120, 10, 10))['output_proj'] == (12, 10, 10)
    for width in (1, 7, g):
        mixer = redraw(TrajMixerV1(g * d, g, width).double())
        assert close(mixer(draw(1, 2, g * d)), v1_by_hand(mixer, draw(1, 2, g * d)))
    with pytest.raises(ValueError, match='hidden_group'):
        TrajMixerV1(12, 3, 0)


def test_v1_11():
    "7,200 mixer and 1,440 alignment weights, 8,640 in all."
    mixer = TrajMixerV1(120, 10)
    assert (count(mixer), mixer.group_align.numel()) == (8_640, 1_440)


def test_v1_12():
    """A feed-forward branch 120-480-120 has 115,800 parameters, a full-width SwiGLU of 300 has
    108,720, biases counted."""
    assert (count(FeedForward(120)), count(SwiGLU(120))) == (115_800, 108_720)
    assert FeedForward(120).net[0].out_features == 480 and SwiGLU(120).gate_proj.out_features == 300
    x, ffn, glu = draw(5, 120), redraw(FeedForward(120).double()), redraw(SwiGLU(120).double())
    first, act, second = ffn.net
    assert isinstance(act, nn.GELU) and close(
        ffn(x), act(x @ first.weight.T + first.bias) @ second.weight.T + second.bias
    )
    gate, value, output = (
        (lambda z, m=m: z @ m.weight.T + m.bias)
        for m in (glu.gate_proj, glu.value_proj, glu.output_proj)
    )
    assert close(glu(x), output(gate(x).detach().apply_(silu) * value(x)))


@torch.no_grad()
def test_v1_13():
    """Group-wise LayerNorm normalises inside each group, is off unless asked for, and is then not
    the preset."""
    norm, x = redraw(GroupLayerNorm(g, d).double()), draw(2, 3, g * d)
    for i in range(g):
        part = nn.LayerNorm(d).double()
        part.weight.copy_(norm.weight[i])
        part.bias.copy_(norm.bias[i])
        assert close(
            norm(x)[..., i * d : (i + 1) * d], normalised(x[..., i * d : (i + 1) * d], part)
        )
    assert isinstance(
        Delphi(tiny_config('traj_mixer_v1'), VOCAB).blocks[0].stage.norm, nn.LayerNorm
    )
    asked = traj_mixer_v1(9, group_wise_layer_norm=True, n_layer=12)
    assert isinstance(Delphi(asked).blocks[0].stage.norm, GroupLayerNorm)
    assert (
        asked.preset is None
        and traj_mixer_v1(9).preset == 'traj_mixer_v1'
        and not traj_mixer_v1(9).group_wise_layer_norm
    )


def is_xavier(weight):
    """True where every slice [i, h] fills its own range sqrt(6 / (i + h)) evenly, and no two slices
    are equal."""
    bound = math.sqrt(6 / (weight.shape[1] + weight.shape[2]))
    reach = weight.abs().amax((1, 2)) / bound
    spread = weight.std() / bound * math.sqrt(3)
    return (
        reach.max() <= 1
        and reach.min() > 0.95
        and 0.95 < spread < 1.05
        and len(weight.unique(dim=0)) == len(weight)
    )


def is_small(weight):
    return abs(weight.mean()) < 1e-4 and 0.95e-3 < weight.std() < 1.05e-3


@torch.no_grad()
def test_v1_14():
    """Identity, Xavier for every inner coordinate, output N(0, 1e-3); the stage starts near the
    identity; its dropout is the feed-forward's."""
    torch.manual_seed(0)
    mixer = TrajMixerV1(120, 10)
    assert torch.equal(mixer.group_align, torch.eye(12).expand(10, 12, 12))
    assert (
        is_xavier(mixer.gate_proj)
        and is_xavier(mixer.value_proj)
        and not torch.equal(mixer.gate_proj, mixer.value_proj)
    )
    assert is_small(mixer.output_proj)
    stage, x = make_stage('traj_mixer_v1', 120, 10), torch.randn(50, 120)
    assert 0 < (stage(x) - x).norm() < 0.01 * x.norm()
    assert {
        make_stage(name, 120, 10, dropout=0.37).dropout.p for name in ('ffn', 'traj_mixer_v1')
    } == {0.37}


@torch.no_grad()
def test_v1_15():
    """A stage at one position reads that position only, and the mask of attention lets nobody read
    later or padded ones."""
    for name in MIXERS:
        stage, x = redraw(make_stage(name, 24, 4).double()).eval(), draw(2, 5, 24)
        for l in range(5):
            assert close(stage(x)[:, l], stage(x[:, l : l + 1])[:, 0], 1e-12)
    valid = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    for b, q, l in torch.cartesian_prod(*map(torch.arange, (2, 4, 4))).tolist():
        assert causal_mask(valid)[b, q, l] == (l <= q and bool(valid[b, l]))


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    "saved('traj_mixer_v5', ...): a checkpoint of a small model of that mixer."
    folder = tmp_path_factory.mktemp('checkpoints')

    def save(mixer, name):
        return save_checkpoint(folder / name, redraw(Delphi(tiny_config(mixer), VOCAB)), VOCAB)

    return save


def edited(path, config=lambda c: None, weights=lambda w: None):
    "The checkpoint after its JSON and its tensors were edited in place, with matching hash."
    import hashlib

    tensors = safetensors.torch.load((path / 'model.safetensors').read_bytes())
    weights(tensors)
    data = safetensors.torch.save(tensors)
    (path / 'model.safetensors').write_bytes(data)
    stored = json.loads((path / 'train_config.json').read_text())
    stored['model_sha256'] = hashlib.sha256(data).hexdigest()
    config(stored)
    (path / 'train_config.json').write_text(json.dumps(stored))
    return path


def tagged(path, tag):
    return edited(path, lambda stored: stored.update(model_architecture=tag))


def check_refusals(saved, mixer, tensors, old):
    """A checkpoint is taken back as it was; with another tag, an old tag or without any one of the
    `tensors` it is refused."""
    path = saved(mixer, 'good')
    stored = json.loads((path / 'train_config.json').read_text())
    assert stored['model_architecture'] == mixer
    back = load_checkpoint(edited(path), expect=mixer)
    wanted = redraw(Delphi(tiny_config(mixer), VOCAB)).state_dict()
    assert (
        all(torch.equal(wanted[n], t) for n, t in back.model.state_dict().items())
        and back.vocab == VOCAB
        and not back.model.training
    )
    for tag in ('traj_mixer_v1', 'traj_mixer_v5', 'delphi_ffn'):
        if tag != mixer:
            with pytest.raises(CheckpointError, match=f"'{mixer}'.*'{tag}'"):
                load_checkpoint(path, expect=tag)
            with pytest.raises(CheckpointError, match=mixer):
                load_checkpoint(tagged(saved(mixer, 'tag'), tag))
    for tag in old + ['nonsense', None]:
        for expect in (mixer, None):
            with pytest.raises(CheckpointError, match='model_architecture'):
                load_checkpoint(tagged(saved(mixer, 'old'), tag), expect)
    for tensor in tensors:
        name = f'blocks.1.stage.{tensor}'
        broken = edited(saved(mixer, 'part'), weights=lambda w: w.pop(name))
        with pytest.raises(CheckpointError, match=re.escape(name)):
            load_checkpoint(broken, mixer)


def test_v1_16(saved):
    """The tag traj_mixer_v1 is written; other tags and checkpoints without mixer tensors are
    refused."""
    tensors = [
        'norm.weight',
        'branch.group_align',
        'branch.gate_proj',
        'branch.value_proj',
        'branch.output_proj',
    ]
    check_refusals(saved, 'traj_mixer_v1', tensors, ['traj_mixer_v2'])
    with pytest.raises(CheckpointError):
        load_checkpoint(saved('ffn', 'feed-forward'), expect='traj_mixer_v1')


SECTION_11_V1 = dict(
    model_architecture='traj_mixer_v1',
    d_model=120,
    n_head=10,
    d_group=12,
    hidden_group=20,
    attention='unchanged',
    attention_output_projection='unchanged',
    mixer_norm='standard_layer_norm',
    group_alignment='per_group_12x12',
    group_alignment_bias=False,
    group_alignment_init='identity',
    mixer_bias=False,
    gate_value_init='xavier_uniform',
    output_init_std=0.001,
    group_wise_layer_norm=False,
)
SECTION_11_V5 = dict(
    model_architecture='traj_mixer_v5',
    d_model=120,
    n_head=10,
    n_group_rule='n_head',
    d_group_rule='d_model / n_group',
    traj_mixer_norm='layer_norm_over_n_embd',
    intra_hidden_rule='4 * d_group',
    intra_gate_shape=['n_group', 'd_group'],
    intra_gate_initial_sigmoid=0.1,
    cross_hidden_rule='4 * n_group',
    group_alignment=False,
    intra_residual=False,
    cross_residual=False,
    traj_mixer_outer_residual=True,
    projection_bias=False,
    intra_output_init='xavier_uniform',
    cross_output_init_std=0.001,
)


def check_section_11(preset, wanted, path):
    "The frozen model's train_config.json has every key and value of section 11, types included."
    model = Delphi(preset(len(VOCAB)), VOCAB)
    save_checkpoint(path, model, VOCAB)
    stored = json.loads((path / 'train_config.json').read_text())
    for facts in (stored, train_config(model, VOCAB)):
        assert {key: facts[key] for key in wanted} == wanted
        assert all(type(facts[key]) is type(value) for key, value in wanted.items())
    assert stored['preset'] == wanted['model_architecture']


def test_v1_17(tmp_path):
    "train_config.json holds the 15 keys and values of section 11."
    assert len(SECTION_11_V1) == 15
    check_section_11(traj_mixer_v1, SECTION_11_V1, tmp_path / 'frozen')


def test_v5_1():
    "X = X^(l) + CausalMHA(LN(X^(l))), with time as in v1."
    check_attention_residual('traj_mixer_v5')


def a_v5(seed=0):
    return redraw(TrajMixerV5(g * d, g).double(), seed, std=0.7).eval()


@torch.no_grad()
def test_v5_2():
    "G is the full-width LayerNorm of X, cut into groups; there is no other norm and no alignment."
    stage, x, seen = a_v5(), draw(2, 3, g * d), []
    fuse, stage.fuse = stage.fuse, lambda G: (seen.append(G), fuse(G))[1]
    update = stage.update(x)
    assert close(seen[0], normalised(x, stage.norm).reshape(2, 3, g, d)) and close(
        stage.update(x + 5), update, 1e-6
    )
    assert [m.normalized_shape for m in stage.modules() if isinstance(m, nn.LayerNorm)] == [
        (g * d,)
    ]
    assert not {'intra_norm', 'cross_norm', 'group_align'} & {
        name.split('.')[0] for name in stage.state_dict()
    }


@torch.no_grad()
def test_v5_3():
    "P_g = (SiLU(G_g W_g) * (G_g W_v)) W_o with weights of its own for every group, by loops."
    stage, G = a_v5(), draw(2, g, d)
    P = torch.zeros_like(G)
    for b in range(2):
        for i in range(g):
            for c in range(4 * d):
                gate = sum((G[b, i, r] * stage.intra_gate_proj[i, r, c]).item() for r in range(d))
                value = sum((G[b, i, r] * stage.intra_value_proj[i, r, c]).item() for r in range(d))
                for r in range(d):
                    P[b, i, r] += silu(gate) * value * stage.intra_output_proj[i, c, r]
    assert close(stage.intra(G), P)


@torch.no_grad()
def test_v5_4():
    """Gamma = sigmoid(Theta), one number a group and coordinate, .1 at the start, the same for
    every person and event."""
    stage = TrajMixerV5(120, 10)
    assert stage.intra_gate_logits.shape == (10, 12) and close(
        stage.intra_gate_logits, torch.full((10, 12), -2.1972), 1e-4
    )
    assert close(stage.gate, torch.full((10, 12), 0.1), 1e-7)
    stage = a_v5()
    for i in range(g):
        for r in range(d):
            assert (
                abs(stage.gate[i, r].item() - sigmoid(stage.intra_gate_logits[i, r].item())) < 1e-12
            )


@torch.no_grad()
def test_v5_5():
    "U = G + Gamma * P. It is no residual: without the cross projection the stage returns X itself."
    stage, G = a_v5(), draw(2, g, d)
    U, P = stage.fuse(G), stage.intra(G)
    for b in range(2):
        for i in range(g):
            for r in range(d):
                assert (
                    abs(
                        U[b, i, r]
                        - G[b, i, r]
                        - sigmoid(stage.intra_gate_logits[i, r].item()) * P[b, i, r]
                    )
                    < 1e-12
                )
    stage.output_proj.zero_()
    assert torch.equal(stage(draw(5, g * d)), draw(5, g * d))


@torch.no_grad()
def test_v5_6():
    """Q[:, r] = SiLU(U[:, r] A_g^r) * (U[:, r] A_v^r), Delta[:, r] = Q[:, r] A_o^r, for every inner
    coordinate r, by loops."""
    stage, U = a_v5(), draw(2, g, d)
    delta = torch.zeros_like(U)
    for b in range(2):
        for r in range(d):
            for q in range(4 * g):
                gate = sum((U[b, i, r] * stage.gate_proj[r, i, q]).item() for i in range(g))
                value = sum((U[b, i, r] * stage.value_proj[r, i, q]).item() for i in range(g))
                for i in range(g):
                    delta[b, i, r] += silu(gate) * value * stage.output_proj[r, q, i]
    assert close(stage.cross(U), delta)


@torch.no_grad()
def test_v5_7():
    "X' = X + Dropout(Delta), once: the block adds no second residual around the stage."
    block, x, mask, rotation, rbf, age, valid = a_block('traj_mixer_v5')
    X = x + attended(block, normalised(x, block.norm), age, valid)
    G = normalised(X, block.stage.norm).reshape(2, 5, 4, 6)
    assert close(
        block.eval()(x, mask, rotation, rbf),
        X + block.stage.cross(block.stage.fuse(G)).reshape(X.shape),
    )
    dropped, x = redraw(TrajMixerV5(g * d, g, dropout=1.0).double()).train(), draw(4, g * d)
    assert torch.equal(dropped(x), x)


def test_v5_8():
    """Stored shapes of the intra projections, the gate logits, the cross projections and the norm;
    nothing else."""
    assert shapes(TrajMixerV5(g * d, g)) == {
        'norm.weight': (g * d,),
        'norm.bias': (g * d,),
        'intra_gate_proj': (g, d, 4 * d),
        'intra_value_proj': (g, d, 4 * d),
        'intra_output_proj': (g, 4 * d, d),
        'intra_gate_logits': (g, d),
        'gate_proj': (d, g, 4 * g),
        'value_proj': (d, g, 4 * g),
        'output_proj': (d, 4 * g, g),
    }


@torch.no_grad()
def test_v5_9():
    """Xavier per group and per coordinate, output N(0, 1e-3), LayerNorm at 1 and 0, dropout =
    mlp_dropout; the update starts near 0."""
    torch.manual_seed(0)
    stage = TrajMixerV5(120, 10)
    for w in (
        stage.intra_gate_proj,
        stage.intra_value_proj,
        stage.intra_output_proj,
        stage.gate_proj,
        stage.value_proj,
    ):
        assert is_xavier(w)
    assert is_small(stage.output_proj)
    assert torch.equal(stage.norm.weight, torch.ones(120)) and torch.equal(
        stage.norm.bias, torch.zeros(120)
    )
    assert (
        Delphi(tiny_config('traj_mixer_v5', mlp_dropout=0.37), VOCAB).blocks[0].stage.dropout.p
        == 0.37
    )
    x = torch.randn(50, 120)
    assert 0 < (stage(x) - x).norm() < 0.05 * x.norm()
    inside = Delphi(traj_mixer_v5(9)).blocks[3].stage  # building a whole model keeps these values
    assert is_xavier(inside.intra_output_proj) and is_small(inside.output_proj)


def test_v5_10(few_people):
    """The time bias is exactly 0 at the start, its scale 1, and its projection has a gradient in
    the first step."""
    bias = RelativeTimeBias(12, 4)
    assert (
        not bias.rbf_proj.weight.any() and bias.time_bias_scale == 1 and bias.rbf_proj.bias is None
    )
    assert torch.equal(bias(torch.rand(2, 3, 3, 12)), torch.zeros(2, 4, 3, 3))
    torch.manual_seed(0)
    model = Delphi(tiny_config('traj_mixer_v5', vocab=few_people.vocab), few_people.vocab)
    model.nll(collate(few_people)).total.backward()
    for block in model.blocks:
        assert not block.time_bias.rbf_proj.weight.any() and block.time_bias.time_bias_scale == 1
        assert block.time_bias.rbf_proj.weight.grad.abs().max() > 0


def test_v5_11():
    "240 + 17,280 + 120 + 14,400 = 32,040 parameters."
    stage = TrajMixerV5(120, 10)
    sizes = {name: p.numel() for name, p in stage.named_parameters()}

    def of(*names):
        return sum(sizes[n] for n in names)

    assert (
        of('norm.weight', 'norm.bias') == 240
        and of('intra_gate_proj', 'intra_value_proj', 'intra_output_proj') == 17_280
    )
    assert (
        of('intra_gate_logits') == 120
        and of('gate_proj', 'value_proj', 'output_proj') == 14_400
        and count(stage) == 32_040
    )


def test_v5_12():
    """The default model has 1,232,428 parameters, all trainable: 12 blocks of 89,880, 150,720
    embeddings and 3,148 others."""
    model = Delphi(traj_mixer_v5(1256))
    assert (
        model.parameter_count()
        == model.parameter_count(trainable=True)
        == count(model)
        == 1_232_428
    )
    block = model.blocks[0]
    assert count(block.norm) + count(block.attention) + count(block.stage) == 240 + 57_600 + 32_040
    assert model.config.time_mode == 'relative' and (
        len(model.blocks),
        model.config.n_information_type,
    ) == (12, 1)
    assert count(model.token_embedding) == 150_720
    others = (model.final_norm, model.sex_embedding, model.type_embedding, model.age_encoding)
    assert 12 * count(block.time_bias) + sum(map(count, others)) == 3_148


def test_v5_13(tmp_path, capsys):
    "Tag and both parameter counts are in train_config.json, and a training run prints the counts."
    from delphi_traj.commands import delphi_train

    model = redraw(Delphi(tiny_config('traj_mixer_v5'), VOCAB))
    model.sex_embedding.weight.requires_grad_(False)
    stored = train_config(model, VOCAB)
    assert stored['model_architecture'] == 'traj_mixer_v5'
    assert (stored['model_parameter_count'], stored['trainable_parameter_count']) == (
        count(model),
        count(model) - 48,
    )
    (tmp_path / 'small.json').write_text(json.dumps(dict(d_model=24, n_head=4, n_layer=2)))
    delphi_train(
        'simulated:60:0',
        out=str(tmp_path / 'run'),
        config=str(tmp_path / 'small.json'),
        steps=1,
        batch_size=8,
        device='cpu',
    )
    written = json.loads((tmp_path / 'run' / 'last' / 'train_config.json').read_text())
    said = capsys.readouterr().out
    for key in ('model_parameter_count', 'trainable_parameter_count'):
        assert f'{written[key]:,}' in said or str(written[key]) in said
    assert written['model_parameter_count'] == count(
        load_checkpoint(tmp_path / 'run' / 'last').model
    )


def test_v5_13_the_log_prints_both_counts(tmp_path, capsys, monkeypatch):
    """Where some parameters are fixed the two counts differ; the log prints both, and both are
    written."""
    from delphi_traj import commands

    def some_fixed(config, vocab):
        model = Delphi(config, vocab)
        model.sex_embedding.weight.requires_grad_(False)
        return model

    monkeypatch.setattr(commands, 'build_model', some_fixed)
    (tmp_path / 'small.json').write_text(json.dumps(dict(d_model=24, n_head=4, n_layer=2)))
    commands.delphi_train(
        'simulated:60:0',
        out=str(tmp_path / 'run'),
        config=str(tmp_path / 'small.json'),
        steps=1,
        batch_size=8,
        device='cpu',
    )
    said = capsys.readouterr().out
    written = json.loads((tmp_path / 'run' / 'last' / 'train_config.json').read_text())
    every, trained = written['model_parameter_count'], written['trainable_parameter_count']
    assert every - trained == 2 * 24
    assert f'{every:,} parameters' in said and f'{trained:,} trainable' in said


def test_v5_14(saved):
    """Only traj_mixer_v5 with norm, intra projections, static gate and cross projections is taken;
    v4 and older are refused."""
    check_refusals(
        saved,
        'traj_mixer_v5',
        [
            'norm.weight',
            'intra_gate_proj',
            'intra_value_proj',
            'intra_output_proj',
            'intra_gate_logits',
            'gate_proj',
            'value_proj',
            'output_proj',
        ],
        ['traj_mixer_v4', 'traj_mixer_v3', 'traj_mixer_v2'],
    )


def test_v5_15(tmp_path):
    "train_config.json holds the 17 keys and values of section 11."
    assert len(SECTION_11_V5) == 17
    check_section_11(traj_mixer_v5, SECTION_11_V5, tmp_path / 'frozen')


LEDGER = ROOT / 'data' / 'ledger.csv'
FAMILIES = [f'V1.{i}' for i in range(1, 18)] + [f'V5.{i}' for i in range(1, 16)]
COLUMNS = ['id', 'document', 'statement', 'notebook', 'symbol', 'test']


def rows():
    "Rows of data/ledger.csv; none where it is not there."
    if not LEDGER.exists():
        return []
    with open(LEDGER, encoding='utf8', newline='') as f:
        return list(csv.DictReader(f))


DONE = [row for row in rows() if row['symbol']]
every_row = pytest.mark.parametrize('row', [pytest.param(row, id=row['id']) for row in DONE])


def markdown(notebook):
    "Text of all markdown cells of a notebook, named with or without folder and ending."
    path = ROOT / 'nbs' / (Path(notebook).name.removesuffix('.ipynb') + '.ipynb')
    assert path.exists(), f'{path} is not there'
    cells = json.loads(path.read_text(encoding='utf8'))['cells']
    return '\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown')


@pytest.mark.skipif(not LEDGER.exists(), reason='data/ledger.csv is not there')
def test_ledger_is_whole():
    """Columns are as agreed, no id stands twice, and all statements of v1 and v5 are there with
    every field filled."""
    by_id = {row['id']: row for row in rows()}
    assert list(rows()[0]) == COLUMNS and len(by_id) == len(rows())
    for name in FAMILIES:
        assert all(by_id[name][column] for column in COLUMNS), name


@every_row
def test_ledger_symbol(row):
    "The symbol can be imported."
    module, name = row['symbol'].split(':')
    found = importlib.import_module(module)
    for part in name.split('.'):
        found = getattr(found, part)


@pytest.mark.parametrize('row', [pytest.param(row, id=row['id']) for row in DONE])
def test_ledger_notebook(row):
    "The notebook is there and its text mentions the id of the statement."
    assert re.search(rf'(?<![\w.]){re.escape(row["id"])}(?!\d)', markdown(row['notebook']))


def named_tests(row):
    "The tests of a row, which stand in one cell with '; ' between them."
    return row['test'].split('; ')


def definition(place):
    "The function that tests/test_x.py::test_y names, as a syntax tree; None where there is none."
    file, _, function = place.partition('::')
    if not (ROOT / file).is_file():
        return None
    tree = ast.parse((ROOT / file).read_text(encoding='utf8'))
    found = [d for d in tree.body if isinstance(d, ast.FunctionDef) and d.name == function]
    return found[-1] if found else None


@every_row
def test_ledger_test(row):
    "Every named test is a function of its file, is named once, and runs in a plain run."
    places = named_tests(row)
    assert len(set(places)) == len(places)
    for place in places:
        named = re.fullmatch(r'tests/test_\w+\.py::test_\w+', place)
        assert named, f"{place!r}: expected tests/test_x.py::test_y, with '; ' between tests"
        assert definition(place) is not None, f'{place} is not there'
        marks = ' '.join(map(ast.unparse, definition(place).decorator_list))
        assert not re.search('slow|skip', marks), f'{place} does not run by itself: {marks}'


def test_ledger_cells_that_are_wrong():
    """A comma, a missing blank, a test twice, a misspelt name and a test that only --slow runs are
    seen."""
    good = 'tests/test_ledger.py::test_v1_1'
    test_ledger_test(dict(test=f'{good}; tests/test_ledger.py::test_v1_2'))
    slow = 'tests/test_simulator.py::test_every_code_over_seeds'
    wrong = [f'{good}, {good}', f'{good};{good}', f'{good}; {good}', f'{good}x', f'{good}; {slow}']
    for cell in wrong + [f'{good}; ', '']:
        with pytest.raises(AssertionError):
            test_ledger_test(dict(test=cell))


def cells_of(line):
    "The cells of a row of an HTML table as text, '; ' for a break."
    cells = re.findall(r'<td[^>]*>(.*?)</td>', line, re.S)
    return [html.unescape(re.sub('<[^>]+>', '', cell.replace('<br>', '; '))) for cell in cells]


def test_index_shows_the_ledger():
    "The saved table of the front page is the ledger of today, in every column."
    notebook = json.loads((ROOT / 'nbs/index.ipynb').read_text(encoding='utf8'))
    outputs = [o.get('data', {}) for c in notebook['cells'] for o in c.get('outputs', [])]
    table = next(page for o in outputs if 'V1.1' in (page := ''.join(o.get('text/html', ''))))
    shown = [line for line in map(cells_of, table.split('<tr>')) if line]

    def wanted(row):
        symbol, test = row['symbol'].replace('delphi_traj.', ''), row['test'].replace('tests/', '')
        return [row['id'], row['statement'], row['notebook'], symbol, test]

    assert shown == list(map(wanted, rows()))
