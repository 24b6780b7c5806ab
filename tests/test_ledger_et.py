"""One test for each statement of the event-trajectory document, by loops over its index
formulas."""

import copy
import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

from delphi_traj.data.batches import LandmarkBatch
from delphi_traj.layers.attention import TrajectoryAttention, all_future_mask, next_token_mask
from delphi_traj.layers.mixers import TrajectoryMixer
from delphi_traj.models.delphi import Delphi
from delphi_traj.models.event_trajectory import (
    SIZES,
    EventTrajectory,
    EventTrajectoryConfig,
    SharedEventTrajectoryCore,
    event_trajectory_shared_v2,
)
from delphi_traj.models.heads import hazards_of
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint, train_config
from delphi_traj.training.files import CheckpointError
from lives import VOCAB, redraw, tiny_config
from test_ledger import close, count, draw, edited, normalised, score_of, shapes, silu

TAG = 'event_trajectory_shared_v2'
g, d = 4, 6  # slots and their width in the small models below
MODES = [
    (mode, time_mode)
    for mode in ('next_token', 'all_future')
    for time_mode in ('absolute', 'relative')
]
every_mode = pytest.mark.parametrize('mode, time_mode', MODES, ids=map('-'.join, MODES))


def small(mode='next_token', time_mode='relative', rounds=3, vocab=VOCAB, **options):
    "A configuration with four slots of width 6."
    return event_trajectory_shared_v2(
        None,
        rounds,
        mode,
        vocab_size=len(vocab),
        n_trajectory=g,
        trajectory_dim=d,
        time_mode=time_mode,
        first_occurrence=vocab.first_occurrence,
        **options,
    )


def a_model(
    mode='next_token',
    time_mode='relative',
    rounds=3,
    seed=0,
    dtype=torch.float64,
    vocab=VOCAB,
    **options,
):
    "A small model in evaluation mode whose every parameter is drawn anew."
    return redraw(
        EventTrajectory(small(mode, time_mode, rounds, vocab, **options), vocab).to(dtype), seed
    ).eval()


def three_lives():
    """Ties, a covariate placed before its time, padding, a person without anything; landmarks on a
    day with events, between two, and nowhere."""
    token = torch.tensor([[5, 4, 6, 7, 8], [9, 1, 10, 0, 0], [0, 0, 0, 0, 0]])
    age = torch.tensor([[0, 15_000, 100, 100, 9_000], [50, 60, 80, 0, 0], [0, 0, 0, 0, 0]]).double()
    return LandmarkBatch(
        token,
        age,
        torch.tensor([0, 1, 2]),
        token > 0,
        query_age=torch.tensor([[100], [70], [3_000]]).double(),
    )


def may_read(batch, mode):
    "Whom a query may read, pair by pair: [b][q][l]."
    age, valid, when = batch.age.tolist(), batch.valid.tolist(), batch.query_age.tolist()
    if mode == 'all_future':
        return [
            [[v and t <= w for v, t in zip(vs, ts, strict=True)] for w in ws]
            for vs, ts, ws in zip(valid, age, when, strict=True)
        ]
    return [
        [
            [vs[l] and (ts[l] < ts[q] or (ts[l] == ts[q] and l <= q)) for l in range(len(ts))]
            for q in range(len(ts))
        ]
        for vs, ts in zip(valid, age, strict=True)
    ]


def aged(encoding, days, width=g * d):
    "Waves and curve of one age, number by number."
    # the buffer is made in float32
    t, frequency = (days / 365.25, (10_000 ** (-torch.arange(0, width, 2) / width)).tolist())
    rise = [
        t / 100 * w + b
        for w, b in zip(
            encoding.rise.weight[:, 0].tolist(), encoding.rise.bias.tolist(), strict=True
        )
    ]
    curve = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in rise]
    wave = [f(t * w) for f in (math.sin, math.cos) for w in frequency]
    wave, curve = (torch.tensor(x, dtype=torch.float64) for x in (wave, curve))
    return wave + encoding.out.weight @ curve + encoding.out.bias


def sexed(model, sex):
    "The row of a sex, or half of each."
    female, male = model.sex_embedding.weight
    return (female, male, (female + male) / 2)[sex]


@torch.no_grad()
def events_by_hand(model, batch):
    "X_E: embedding, age and sex of every event."
    rows = [
        [
            model.token_embedding.weight[k] + aged(model.age_encoding, t) + sexed(model, s)
            for k, t in zip(ks, ts, strict=True)
        ]
        for ks, ts, s in zip(
            batch.token.tolist(), batch.age.tolist(), batch.sex.tolist(), strict=True
        )
    ]
    return torch.stack([torch.stack(row) for row in rows])


def queries_by_hand(model, batch):
    "Features and ages of the queries."
    if model.config.mode == 'next_token':
        return events_by_hand(model, batch), batch.age
    rows = [
        model.query_token + aged(model.age_encoding, t) + sexed(model, s)
        for (t,), s in zip(batch.query_age.tolist(), batch.sex.tolist(), strict=True)
    ]
    return torch.stack(rows)[:, None].detach(), batch.query_age


def memory_by_hand(model, x):
    return normalised(x @ model.event_projection.weight.T, model.event_norm).detach()


@torch.no_grad()
def weights_by_hand(core, state, memory, may, query_age, age):
    """Softmax of the scores of every person, query, slot and readable event; nothing where nothing
    may be read. [b q g l]"""
    keys, slots = memory @ core.attention.k_proj.weight.T, normalised(state, core.attn_norm)
    out = torch.zeros(*state.shape[:3], age.shape[1]).double()
    for b, q, i in torch.cartesian_prod(*map(torch.arange, state.shape[:3])).tolist():
        seen = [l for l, yes in enumerate(may[b][q]) if yes]
        query = slots[b, q, i] @ core.attention.q_proj[i]
        if not seen:
            continue
        score = torch.stack(
            [
                score_of(
                    core, query, keys[b, l, i * d : (i + 1) * d], query_age[b, q], age[b, l], i
                )
                for l in seen
            ]
        )
        out[b, q, i, seen] = score.exp() / score.exp().sum()
    return out


@torch.no_grad()
def mix_by_hand(mixer, U):
    "Y[i, r] = sum_c SiLU(sum_i U[i, r] W_g[r, i, c]) (sum_i U[i, r] W_v[r, i, c]) W_o[r, c, i]."
    Y = torch.zeros_like(U)
    slots, width, hidden = range(U.shape[-2]), range(U.shape[-1]), range(mixer.gate_proj.shape[-1])
    for r in width:
        for c in hidden:
            gate = sum(U[..., i, r] * mixer.gate_proj[r, i, c] for i in slots)
            value = sum(U[..., i, r] * mixer.value_proj[r, i, c] for i in slots)
            for i in slots:
                Y[..., i, r] += gate / (1 + (-gate).exp()) * value * mixer.output_proj[r, c, i]
    return Y


@torch.no_grad()
def round_by_hand(core, state, memory, may, query_age, age):
    "S -> S', with what each slot read: (S', R)."
    values = (memory @ core.attention.v_proj.weight.T).unflatten(-1, (g, d))
    weight, R = weights_by_hand(core, state, memory, may, query_age, age), torch.zeros_like(state)
    for b, q, i, l in weight.nonzero().tolist():
        R[b, q, i] += weight[b, q, i, l] * values[b, l, i]
    U = state + core.attn_scale * R
    return U + core.mixer_scale * mix_by_hand(core.mixer, normalised(U, core.mixer_norm)), R


def calls(model, *names):
    "How often each of the submodules runs in one forward."
    counts = dict.fromkeys(names, 0)

    def counting(name):
        return lambda *_: counts.update({name: counts[name] + 1})

    hooks = [model.get_submodule(name).register_forward_hook(counting(name)) for name in names]
    with torch.no_grad():
        model(three_lives())
    for hook in hooks:
        hook.remove()
    return list(counts.values())


@torch.no_grad()
def test_et_1():
    """One core, applied as often as there are rounds, twelve by default, and equal to preparing
    everything anew for every round."""
    assert (
        event_trajectory_shared_v2(vocab_size=9).n_reasoning_rounds
        == 12
        == EventTrajectoryConfig(9).n_reasoning_rounds
    )
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode, rounds=12), three_lives()
        state = model.prepare(batch)[0]
        for _ in range(12):
            state = model.reasoning_core(state, **model.prepare(batch)[1])
        H = model.final_norm(state.flatten(2))
        assert close(model(batch), H if mode == 'next_token' else H[:, 0], 1e-12) and calls(
            model, 'reasoning_core'
        ) == [12]
    assert calls(a_model(rounds=5), 'reasoning_core') == [5]
    for kind in (SharedEventTrajectoryCore, TrajectoryAttention, TrajectoryMixer):
        assert [name for name, m in model.named_modules() if isinstance(m, kind)] == [
            {
                SharedEventTrajectoryCore: 'reasoning_core',
                TrajectoryAttention: 'reasoning_core.attention',
            }.get(kind, 'reasoning_core.mixer')
        ]
    assert not [
        m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
    ]


def test_et_2():
    """The five sizes, width = slots times their width, hidden = 4 slots; rounds are free; other
    numbers under a size's name are refused."""
    table = dict(
        nano=(120, 6, 20, 24),
        tiny=(256, 8, 32, 32),
        small=(512, 8, 64, 32),
        medium=(768, 12, 64, 48),
        huge=(1024, 16, 64, 64),
    )
    names = ('d_model', 'n_trajectory', 'trajectory_dim', 'traj_hidden')
    assert list(SIZES) == list(table)
    for size, numbers in table.items():
        for rounds in (1, 12, 30):
            config = event_trajectory_shared_v2(size, rounds, vocab_size=9)
            assert tuple(getattr(config, n) for n in names) == numbers and (
                config.size,
                config.n_reasoning_rounds,
            ) == (size, rounds)
        assert numbers[0] == numbers[1] * numbers[2]
        for name in names:
            with pytest.raises(ValueError, match=name):
                event_trajectory_shared_v2(size, vocab_size=9, **{name: 2 * getattr(config, name)})
    default = EventTrajectoryConfig(9)
    assert (
        tuple(getattr(default, n) for n in names) == table['nano']
        and default.size == 'nano' == event_trajectory_shared_v2(vocab_size=9).size
    )
    for wrong in (dict(size='giant'), dict(size=None, d_model=121), dict(n_reasoning_rounds=0)):
        with pytest.raises(ValueError):
            EventTrajectoryConfig(9, **wrong)


@torch.no_grad()
def test_et_3():
    """X_E[b, l] = row of the token + waves and curve of the age + row of the sex, term by term; a
    covariate is an event like any other."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        assert close(model.embed(batch), events_by_hand(model, batch), 1e-12)
    assert VOCAB.kinds[batch.token[0, 1]] == 'lifestyle'


@every_mode
def test_et_4(mode, time_mode):
    """E = EventNorm(EventProjection(X_E)); encoded, projected and rotated once for twelve rounds,
    and unchanged by them."""
    model, batch = a_model(mode, time_mode, rounds=12), three_lives()
    core, made = model.reasoning_core, []
    with torch.no_grad():
        assert close(
            model.encode_events(model.embed(batch)),
            memory_by_hand(model, events_by_hand(model, batch)),
        )
        once = [
            'event_projection',
            'event_norm',
            'reasoning_core.attention.k_proj',
            'reasoning_core.attention.v_proj',
        ]
        if time_mode == 'relative':
            once += ['rbf', 'reasoning_core.time_bias']
        assert calls(model, *once, 'reasoning_core') == [1] * len(once) + [12]
    turn = None if time_mode == 'absolute' else model.rotation(batch.age)
    project, given = core.project_event_memory, []
    before = [t.clone() for t in project(model.encode_events(model.embed(batch)), turn)]
    core.project_event_memory = lambda *args: made.append(project(*args)) or made[-1]
    core.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs['memory']), with_kwargs=True
    )
    model(batch)
    assert len(made) == 1 and len(given) == 12 and all(memory is made[0] for memory in given)
    assert all(map(close, made[0], before))  # computed twice: equal to rounding on any machine


@every_mode
def test_et_4_gradient(mode, time_mode):
    """With the queries detached, the codes that learn are those that were read: their gradient
    comes through the memory."""
    model, batch = a_model(mode, time_mode, rounds=12), three_lives()
    if mode == 'next_token':
        model.query = lambda b, x: (x.detach(), b.age)
    leaves = model.token_embedding.weight, model.event_projection.weight
    codes, projection = torch.autograd.grad(
        model(batch).pow(2).sum(), leaves, allow_unused=True, materialize_grads=True
    )
    read = batch.token[torch.tensor(may_read(batch, mode)).any(1)]
    assert (
        set(codes.any(1).nonzero()[:, 0].tolist()) == set(read.tolist())
        and projection.abs().min() > 0
    )


@torch.no_grad()
def test_et_5():
    """S0[b, q, i, r] = P[i, r] + sum_c W[i d + r, c] f[b, q, c]: learnable prototypes and the
    query's context."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        features, (W, P) = (
            queries_by_hand(model, batch)[0],
            (model.query_projection.weight, model.prototypes),
        )
        S = torch.empty(*features.shape[:2], g, d).double()
        for b, q, i, r in torch.cartesian_prod(*map(torch.arange, S.shape)).tolist():
            S[b, q, i, r] = P[i, r] + W[i * d + r] @ features[b, q]
        assert close(model.prepare(batch)[0], S)
    assert isinstance(P, nn.Parameter) and P.shape == (g, d)
    assert shapes(EventTrajectory(event_trajectory_shared_v2(vocab_size=9)))['prototypes'] == (
        6,
        20,
    )


@torch.no_grad()
def test_et_6():
    """All-future: one query of token, landmark age and sex. Next-token: one for each position, of
    its X_E, all at once and each as if alone."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        features, age = model.query(batch, model.embed(batch))
        assert all(map(close, (features, age), queries_by_hand(model, batch))) and age.shape == (
            3,
            1 if mode == 'all_future' else 5,
        )
        assert isinstance(model.query_token, nn.Parameter) == (
            mode == 'all_future'
        ) and model.prepare(batch)[0].shape == (*age.shape, g, d)
        if mode == 'all_future':
            continue
        state, shared = model.prepare(batch)
        H = model(batch)
        for q in range(5):  # the rounds of this query alone
            one = dict(shared, mask=shared['mask'][:, [q]])
            if time_mode == 'relative':
                one.update(rotation=model.rotation(age[:, [q]]), bias=shared['bias'][:, :, [q]])
            S = state[:, [q]]
            for _ in range(3):
                S = model.reasoning_core(S, **one)
            assert close(model.final_norm(S.flatten(2)), H[:, [q]], 1e-12)


@torch.no_grad()
def test_et_7():
    """score[b, q, i, l] = <q, k> / sqrt(d) with a query map of its own for every slot, and R =
    softmax(score) V over all that may be read."""
    attention = redraw(TrajectoryAttention(g, d).double())
    S = draw(2, 3, g, d)
    E = draw(2, 5, g * d, seed=1)
    mask = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    memory = attention.project_event_memory(E)
    weight, R = attention.weights(S, memory, mask), attention(S, memory, mask)
    for b, q, i in torch.cartesian_prod(*map(torch.arange, (2, 3, g))).tolist():
        W_Q, W_K, W_V = (
            attention.q_proj[i],
            *(p.weight[i * d : (i + 1) * d] for p in (attention.k_proj, attention.v_proj)),
        )
        query = [sum((S[b, q, i, r] * W_Q[r, s]).item() for r in range(d)) for s in range(d)]
        score = {
            l: sum(x * y for x, y in zip(query, (W_K @ E[b, l]).tolist(), strict=True))
            / math.sqrt(d)
            for l in range(5)
            if mask[b, q, l]
        }
        total = sum(map(math.exp, score.values()))
        wanted = torch.tensor(
            [math.exp(score[l]) / total if l in score else 0 for l in range(5)], dtype=torch.float64
        )
        assert close(weight[b, i, q], wanted) and close(
            R[b, q, i], sum(wanted[l] * (W_V @ E[b, l]) for l in range(5))
        )
    assert mask.any(-1).all() and shapes(attention) == {
        'q_proj': (g, d, d),
        'k_proj.weight': (g * d, g * d),
        'v_proj.weight': (g * d, g * d),
    }


@torch.no_grad()
def test_et_8():
    """Attention of one slot knows nothing of the others, through all rounds while the mixer is
    silent; with the mixer it does."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        state, shared = model.prepare(batch)
        other = state.clone()
        other[:, :, 2] = draw(*other[:, :, 2].shape)
        scale = model.reasoning_core.mixer_scale.item()
        for loud in (0.0, scale):
            model.reasoning_core.mixer_scale.fill_(loud)
            one, two = state, other
            for _ in range(3):
                one, two = (model.reasoning_core(s, **shared) for s in (one, two))
            moved = (one - two).abs().amax((0, 1, 3)) > 0
            assert moved.tolist() == ([True] * g if loud else [i == 2 for i in range(g)])
    assert {n.split('.')[0] for n in shapes(model.reasoning_core.attention)} == {
        'q_proj',
        'k_proj',
        'v_proj',
    }  # no output projection


@torch.no_grad()
def test_et_9():
    """True is valid: a valid event is read and a padded one is not, whatever stands there; a mask
    of another type is refused."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        H, rounds = model(batch, return_rounds=True)
        padding = ~batch.valid[:, None, None].expand(rounds.weight.shape[1:])  # [b g q l]
        assert (
            not rounds.weight[:, padding].any()
            and (rounds.weight.sum(-1)[:, 0] - 1).abs().max() < 1e-12
        )
        odd = replace(batch, token=torch.where(batch.valid, batch.token, 7))
        real = batch.valid if mode == 'next_token' else torch.tensor([True, True, True])
        assert torch.equal(model(odd)[real], H[real])
        hidden = replace(batch, valid=batch.valid & (torch.arange(5) != 0))
        assert (model(hidden) - H)[0, -1].abs().max() > 1e-9
    for number in (batch.valid.int(), batch.valid.double()):
        for masked in (
            lambda: next_token_mask(number, batch.age),
            lambda: all_future_mask(number, batch.age, batch.query_age),
        ):
            with pytest.raises(ValueError, match='True = valid'):
                masked()


@torch.no_grad()
def test_et_10():
    """All-future: [b, q, l] is read if and only if l is valid and t_l <= t_q, pair by pair;
    covariates of the future are hidden too."""
    rng = torch.Generator().manual_seed(0)
    age, when, valid = (torch.randint(0, 6, (20, n), generator=rng).double() for n in (7, 4, 7))
    mask = all_future_mask(valid > 1, age, when)
    for b, q, l in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        assert mask[b, q, l].item() == (
            valid[b, l].item() > 1 and age[b, l].item() <= when[b, q].item()
        )
    batch = three_lives()
    for time_mode in ('absolute', 'relative'):
        check_covariate(a_model('all_future', time_mode), batch, [0])


def check_covariate(model, batch, blind):
    """The model reads as `may_read` says; the covariate at (0, 1), of age 15,000, moves no query of
    `blind`."""
    assert model.prepare(batch)[1]['mask'].tolist() == may_read(batch, model.config.mode)
    other = replace(batch, token=batch.token.clone(), age=batch.age.clone())
    other.token[0, 1], other.age[0, 1] = 8, 12_345
    here, there = (
        model(b) if model.config.mode == 'next_token' else model(b)[:, None] for b in (batch, other)
    )
    assert torch.equal(here[:, blind], there[:, blind])

    def late(b):
        return replace(b, query_age=b.query_age + 30_000)

    if model.config.mode == 'all_future':
        assert not torch.equal(model(late(batch)), model(late(other)))
    else:
        assert not torch.equal(here, there)


@torch.no_grad()
def test_et_11():
    """Next-token: [b, q, l] is read if and only if l is valid and t_l < t_q, or t_l = t_q and l <=
    q; a covariate placed before its time is hidden."""
    rng = torch.Generator().manual_seed(0)
    age, valid = (torch.randint(0, 5, (20, 7), generator=rng).double() for _ in range(2))
    mask = next_token_mask(valid > 1, age)
    for b, q, l in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        earlier, tied = age[b, l].item() < age[b, q].item(), age[b, l].item() == age[b, q].item()
        assert mask[b, q, l].item() == (valid[b, l].item() > 1 and (earlier or (tied and l <= q)))
    for time_mode in ('absolute', 'relative'):
        check_covariate(a_model(time_mode=time_mode), three_lives(), [0, 2, 3, 4])
    with pytest.raises(ValueError, match='query_age'):
        next_token_mask(valid > 1, age, age[:, :1])


@every_mode
def test_et_12(mode, time_mode):
    """With nothing to read every slot reads exactly zero in every round, the state moves by the
    mixer alone, and no gradient is NaN."""
    model, batch = a_model(mode, time_mode), three_lives()
    batch.query_age[1] = 10.0  # before her first event
    empty = ~torch.tensor(may_read(batch, mode)).any(-1)  # [b q]
    assert empty[2].all() and (mode == 'next_token' or empty[1].all()) and not empty.all()
    state, shared = model.prepare(batch)
    core = model.reasoning_core
    R = core.attention(state, **shared)
    assert (
        torch.equal(R[empty], torch.zeros_like(R[empty])) and R[~empty].abs().amax((1, 2)).min() > 0
    )
    hidden, rounds = model(batch, return_rounds=True)
    for r in range(3):  # [b g q l] -> [b q g l]
        assert not rounds.weight[r].transpose(1, 2)[empty].any()
        S = rounds.state[r]
        assert close(
            (S + core.mixer_scale * core.mixer(core.mixer_norm(S)))[empty],
            rounds.state[r + 1][empty],
            1e-12,
        )
    hidden.pow(2).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is None or p.grad.isfinite().all(), name
    alone = replace(
        batch, **{n: getattr(batch, n)[2:] for n in ('token', 'age', 'sex', 'valid', 'query_age')}
    )
    model.zero_grad()
    model(alone).sum().backward()
    for name in ('q_proj', 'k_proj.weight', 'v_proj.weight'):
        assert not core.attention.get_parameter(name).grad.any()


@torch.no_grad()
def test_et_13():
    """Age is in memory and queries in both time modes; relative adds rotation and bumps to every
    score, absolute neither."""
    batch = three_lives()
    for mode, time_mode in MODES:
        model = a_model(mode, time_mode)
        state, bumps = model.prepare(batch)[0], []
        if time_mode == 'relative':
            model.rbf.register_forward_hook(lambda module, args, out: bumps.append(out.shape))
        weight = model(batch, return_rounds=True)[1].weight[0]
        memory, (_, when) = (
            memory_by_hand(model, events_by_hand(model, batch)),
            queries_by_hand(model, batch),
        )
        assert close(
            weight.transpose(1, 2),
            weights_by_hand(
                model.reasoning_core, state, memory, may_read(batch, mode), when, batch.age
            ),
        )
        assert bumps == ([(*when.shape, 5, 12)] if time_mode == 'relative' else [])
        assert (
            (model.rotation is None)
            == (model.rbf is None)
            == (model.reasoning_core.time_bias is None)
            == (time_mode == 'absolute')
        )
        older = replace(
            batch, age=batch.age + 1_000 * batch.valid, query_age=batch.query_age + 1_000
        )
        moved = (
            [model.encode_events(model.embed(b)) for b in (batch, older)],
            [model.query(b, model.embed(b))[0] for b in (batch, older)],
        )
        for before, after in moved:
            assert (before - after)[0].abs().amax(-1).min() > 1e-6
    assert (
        small().time_mode == 'relative'
        and count(a_model()) - count(a_model(time_mode='absolute')) == 12 * g + 1
    )


@torch.no_grad()
def test_et_14():
    """Y_r = (SiLU(U_r W_g) * (U_r W_v)) W_o for every inner coordinate r, by loops; hidden = 4
    slots; no full-width map, no alignment."""
    mixer, U = redraw(TrajectoryMixer(g, d).double()), draw(2, 3, g, d)
    assert (
        close(mixer(U), mix_by_hand(mixer, U))
        and abs(mixer(U)[0, 0, 0, 0] - by_numbers(mixer, U[0, 0], 0, 0)) < 1e-12
    )
    for r in range(d):  # a coordinate moves itself only, and in all slots
        V = U.clone()
        V[..., 1, r] += 1
        assert ((mixer(U) - mixer(V)).abs().amax((0, 1)) > 0).tolist() == [
            [s == r for s in range(d)]
        ] * g
    assert shapes(mixer) == dict(
        gate_proj=(d, g, 4 * g), value_proj=(d, g, 4 * g), output_proj=(d, 4 * g, g)
    )
    for n in ('tiny', 'medium'):
        numbers = SIZES[n]
        assert shapes(SharedEventTrajectoryCore(event_trajectory_shared_v2(n, vocab_size=9)).mixer)[
            'output_proj'
        ] == (numbers['trajectory_dim'], 4 * numbers['n_trajectory'], numbers['n_trajectory'])
    with pytest.raises(ValueError, match='traj_hidden'):
        small(traj_hidden=3 * g)
    names = set(shapes(a_model().reasoning_core))
    assert {n for n in names if n.startswith('mixer.')} == {
        'mixer.gate_proj',
        'mixer.value_proj',
        'mixer.output_proj',
    }
    assert not [n for n in names if 'align' in n or 'ffn' in n]


def by_numbers(mixer, U, i, r):
    "One number of the mixer's output, in Python floats."
    W_g = mixer.gate_proj[r].tolist()
    W_v = mixer.value_proj[r].tolist()
    W_o = mixer.output_proj[r].tolist()
    u = U[:, r].tolist()

    def over(W, c):
        return sum(x * row[c] for x, row in zip(u, W, strict=True))

    return sum(silu(over(W_g, c)) * over(W_v, c) * W_o[c][i] for c in range(len(W_o)))


@torch.no_grad()
def test_et_15():
    """R = A(LN_A(S), E), U = S + a_A Dropout(R), S' = U + a_M Dropout(M(LN_M(U))), by loops, in
    every mode; only the two branches are dropped."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        (_, when), memory = (
            queries_by_hand(model, batch),
            memory_by_hand(model, events_by_hand(model, batch)),
        )
        state, shared = model.prepare(batch)
        wanted, R = round_by_hand(
            model.reasoning_core, state, memory, may_read(batch, mode), when, batch.age
        )
        assert (
            close(model.reasoning_core(state, **shared), wanted)
            and R[:2].abs().amax((1, 2, 3)).min() > 1e-3
        )
    core = a_model(dropout=0.5).reasoning_core
    state = draw(30, 5, g, d)
    shared = dict(
        memory=core.project_event_memory(draw(30, 5, g * d)), mask=torch.ones(30, 5, 5).bool()
    )
    # one branch at a time: halves are lost, the rest doubled
    for silent in (core.mixer_scale, core.attn_scale):
        kept = silent.item()
        silent.fill_(0.0)
        update = core.eval()(state, **shared) - state
        torch.manual_seed(0)
        left = ((core.train()(state, **shared) - state)[update != 0] / update[update != 0]).round(
            decimals=4
        )
        assert set(left.unique().tolist()) == {0.0, 2.0} and 0.45 < left.mean() / 2 < 0.55
        silent.fill_(kept)
    core.dropout.p = 1.0
    assert torch.equal(core(state, **shared), state)


def test_et_16():
    """Names and shapes do not depend on the rounds, and the gradient is the sum of those of as many
    cores with equal weights."""
    wanted = shapes(a_model(rounds=1))
    for rounds in (2, 12, 24):
        assert shapes(a_model(rounds=rounds)) == wanted
    assert (
        len(
            {
                EventTrajectory(
                    event_trajectory_shared_v2('nano', rounds, vocab_size=9)
                ).parameter_count()
                for rounds in (1, 12, 24)
            }
        )
        == 1
    )
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        core = model.reasoning_core
        state, shared = model.prepare(batch)
        state, shared['memory'] = state.detach(), tuple(t.detach() for t in shared['memory'])
        if time_mode == 'relative':
            shared['bias'] = shared['bias'].detach()
        cores = [copy.deepcopy(core) for _ in range(3)]
        one = three = state
        for c in cores:
            one, three = core(one, **shared), c(three, **shared)
        assert close(one, three, 1e-12)  # other tensors in memory may meet other kernels
        model.zero_grad()
        one.pow(2).sum().backward()
        three.pow(2).sum().backward()
        for name, p in core.named_parameters():
            if p.grad is not None:
                assert close(
                    p.grad,
                    sum(c.get_parameter(name).grad for c in cores),
                    1e-9 * (1 + p.grad.abs().max()),
                ), name
        assert core.attn_scale.grad.abs() > 0


@torch.no_grad()
def test_et_17():
    """Both scales start at 1 / sqrt(rounds), are one learnable number each, nothing belongs to a
    round, and no query hears of another."""
    for rounds in (1, 3, 12):
        core = EventTrajectory(small(rounds=rounds)).reasoning_core
        for scale in (core.attn_scale, core.mixer_scale):
            assert (
                isinstance(scale, nn.Parameter)
                and scale.requires_grad
                and scale.shape == ()
                and abs(scale.item() - rounds**-0.5) < 1e-7
            )
    nano = EventTrajectory(event_trajectory_shared_v2(vocab_size=9)).reasoning_core
    assert abs(nano.attn_scale.item() - 0.288675) < 1e-6 and nano.attn_scale is not nano.mixer_scale
    assert sorted(n for n, m in nano.named_modules() if isinstance(m, nn.LayerNorm)) == [
        'attn_norm',
        'mixer_norm',
    ]
    for time_mode in ('absolute', 'relative'):
        model, batch = a_model(time_mode=time_mode), three_lives()
        assert not [m for m in model.modules() if isinstance(m, nn.RNNBase)]
        assert not [n for n in model.state_dict() if 'round' in n or re.search(r'\d', n)]
        state, shared = model.prepare(batch)
        other = state.clone()
        other[:, 2] += 1
        for _ in range(3):
            state, other = (model.reasoning_core(s, **shared) for s in (state, other))
        assert ((state - other).abs().amax((0, 2, 3)) > 0).tolist() == [q == 2 for q in range(5)]


@torch.no_grad()
def test_et_18():
    """H = FinalNorm of the last state, slot after slot: [B, d] or [B, L, d]; log hazards of next
    tokens are products with the embedding."""
    for mode, time_mode in MODES:
        model, batch = a_model(mode, time_mode), three_lives()
        H, rounds = model(batch, return_rounds=True)
        last, queries = rounds.state[-1], 1 if mode == 'all_future' else 5
        flat = torch.empty(3, queries, g * d).double()
        for i in range(g):
            for r in range(d):
                flat[:, :, i * d + r] = last[:, :, i, r]
        wanted = normalised(flat, model.final_norm)
        assert H.shape == ((3, g * d) if mode == 'all_future' else (3, 5, g * d))
        assert close(model(batch), H, 1e-12)
        assert close(H, wanted[:, 0] if mode == 'all_future' else wanted)
        found, base = model.log_hazard(H), model.head.log_base_rate
        table, bias = (
            (model.token_embedding.weight, 0.0)
            if mode == 'next_token'
            else (model.head.scale_proj.weight, model.head.scale_proj.bias)
        )
        assert close(found, H @ table.T + bias + base) and (model.head.scale_proj is None) == (
            mode == 'next_token'
        )


@torch.no_grad()
def test_et_19():
    """With equal weights every head reads the same hidden state, and it is the one that the model
    returns; scales are equal, shapes differ."""
    for mode, time_mode in MODES:
        batch, source = three_lives(), a_model(mode, time_mode, head='weibull')
        H, wanted = source(batch), source.hazards(source(batch))
        for head in ('exponential', 'weibull', 'mixed'):
            model, seen = a_model(mode, time_mode, head=head), []
            model.load_state_dict(
                {n: t for n, t in source.state_dict().items() if n in model.state_dict()},
                strict=False,
            )
            model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
            got = model.hazards(model(batch))
            assert close(seen[0], H, 1e-12)  # two models: equal to rounding
            assert close(got.log_scale, wanted.log_scale, 1e-12)
            if head == 'exponential':
                again = hazards_of(model.log_hazard(H)).log_scale
                assert got.log_shape is None and close(again, got.log_scale, 1e-12)
            if head == 'weibull':
                assert close(got.log_shape, wanted.log_shape, 1e-12)
            if head == 'mixed':
                death = torch.arange(len(VOCAB)) == VOCAB.death
                assert close(got.log_shape, torch.where(death, wanted.log_shape, 0.0), 1e-12)
                assert not got.log_shape[..., ~death].any()


SECTION_11 = dict(
    model_architecture=TAG,
    model_size='nano',
    d_model=120,
    n_trajectory=6,
    trajectory_dim=20,
    traj_hidden=24,
    n_reasoning_rounds=12,
)


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    "A checkpoint of nano whose prototypes are fixed."
    model = redraw(EventTrajectory(event_trajectory_shared_v2(vocab_size=len(VOCAB)), VOCAB))
    model.prototypes.requires_grad_(False)
    return save_checkpoint(tmp_path_factory.mktemp('checkpoints') / 'good', model, VOCAB)


def test_et_20(good):
    """train_config.json holds the seven keys and values of section 11, types included, and both
    parameter counts."""
    stored = json.loads((good / 'train_config.json').read_text())
    model = load_checkpoint(good).model
    for facts in (stored, train_config(model, VOCAB)):
        assert {key: facts[key] for key in SECTION_11} == SECTION_11
        assert all(type(facts[key]) is type(value) for key, value in SECTION_11.items())
        assert (facts['model_parameter_count'], facts['trainable_parameter_count']) == (
            count(model),
            count(model) - 6 * 20,
        )
    assert train_config(EventTrajectory(small(rounds=5), VOCAB), VOCAB)['n_reasoning_rounds'] == 5
    for size, numbers in SIZES.items():
        config = event_trajectory_shared_v2(size, 2, vocab_size=len(VOCAB))
        facts = train_config(type('Model', (nn.Module,), dict(config=config))(), VOCAB)
        assert {n: facts[n] for n in (*numbers, 'model_size', 'n_reasoning_rounds')} == dict(
            numbers, model_size=size, n_reasoning_rounds=2
        )


@pytest.fixture
def refused(good, tmp_path):
    "refused(match, config=..., weights=...): an edited copy of the good checkpoint is not taken."

    def check(match, expect=TAG, **edits):
        path = shutil.copytree(good, tmp_path / 'copy', dirs_exist_ok=True)
        with pytest.raises(CheckpointError, match=match):
            load_checkpoint(edited(path, **edits), expect)

    return check


def test_et_21(good, refused, tmp_path):
    """Tag, size, its numbers, one whole core and the fingerprint are checked; traj_mixer_v2 and a
    changed number of rounds are refused."""
    assert (
        load_checkpoint(
            edited(shutil.copytree(good, tmp_path / 'same')), TAG
        ).model.config.n_reasoning_rounds
        == 12
    )
    refused(
        "'traj_mixer_v2', an older version that is not read",
        config=lambda s: s.update(model_architecture='traj_mixer_v2'),
    )
    for tag in ('traj_mixer_v2', 'traj_mixer_v5', 'nonsense'):
        refused(tag, config=lambda s: s.update(model_architecture=tag))
        refused(
            'a config' if tag == 'traj_mixer_v5' else tag,
            expect=None,
            config=lambda s: s.update(model_architecture=tag),
        )
    with pytest.raises(CheckpointError, match=f"'traj_mixer_v5'.*'{TAG}'"):
        load_checkpoint(
            save_checkpoint(
                tmp_path / 'v5', redraw(Delphi(tiny_config('traj_mixer_v5'), VOCAB)), VOCAB
            ),
            TAG,
        )
    refused(
        'giant',
        config=lambda s: (
            s.update(preset='giant', model_size='giant'),
            s['config'].update(size='giant'),
        ),
    )
    refused('model_size', config=lambda s: s.update(model_size='tiny'))
    for name in ('d_model', 'n_trajectory', 'trajectory_dim', 'traj_hidden'):
        refused(name, config=lambda s: s.update({name: SIZES['tiny'][name]}))
        refused(
            name,
            config=lambda s: (
                s.update({name: SIZES['tiny'][name]}),
                s['config'].update({name: SIZES['tiny'][name]}),
            ),
        )


CORE = [
    'attention.q_proj',
    'attention.k_proj.weight',
    'attention.v_proj.weight',
    'time_bias.rbf_proj.weight',
    'time_bias.time_bias_scale',
    'mixer.gate_proj',
    'mixer.value_proj',
    'mixer.output_proj',
    'attn_norm.weight',
    'attn_norm.bias',
    'mixer_norm.weight',
    'mixer_norm.bias',
    'attn_scale',
    'mixer_scale',
]


def test_et_21_one_core(good, refused):
    "A core without any one of its parts, a second core and a core for a round are refused by name."
    assert {f'reasoning_core.{part}' for part in CORE} == {
        n for n in load_checkpoint(good).model.state_dict() if n.startswith('reasoning_core')
    }
    for part in CORE:
        refused(
            re.escape(f'reasoning_core.{part}'), weights=lambda w: w.pop(f'reasoning_core.{part}')
        )

    def second(w):
        return {f'reasoning_core_2.{part}': w[f'reasoning_core.{part}'].clone() for part in CORE}

    refused('second core, reasoning_core_2', weights=lambda w: w.update(second(w)))
    refused(
        'reasoning_core.1.attn_scale',
        weights=lambda w: w.update({'reasoning_core.1.attn_scale': torch.tensor(0.3)}),
    )


def test_et_21_fingerprint(good, refused):
    """The numbers inside the weights must be there and agree with the JSON; six rounds instead of
    twelve are caught although every shape agrees."""
    inside = safetensors.torch.load((good / 'model.safetensors').read_bytes())
    for name in ('d_model', 'n_trajectory', 'n_reasoning_rounds'):
        assert f'fingerprint.{name}' in inside
        assert inside[f'fingerprint.{name}'].item() == SECTION_11[name]
    for name, value in dict(d_model=240, n_trajectory=5, n_reasoning_rounds=6).items():
        refused(
            f'fingerprint.{name}',
            weights=lambda w: w.update({f'fingerprint.{name}': torch.tensor(value)}),
        )
        refused(f'fingerprint.{name}', weights=lambda w: w.pop(f'fingerprint.{name}'))
    refused('n_reasoning_rounds', config=lambda s: s.update(n_reasoning_rounds=6))
    refused(
        'n_reasoning_rounds',
        config=lambda s: (s.update(n_reasoning_rounds=6), s['config'].update(n_reasoning_rounds=6)),
    )
    six = EventTrajectory(event_trajectory_shared_v2('nano', 6, vocab_size=len(VOCAB)), VOCAB)
    # nothing else would notice
    six.load_state_dict(load_checkpoint(good).model.state_dict(), strict=True)
