"""One test for each statement of the UniMixer notes about the baselines and the unified view, by
loops over the formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from delphi_traj.data.interactions import Field
from delphi_traj.layers.permutation import group_permutation, unimix
from delphi_traj.layers.token_attention import (
    FieldAwareAttention,
    HeterogeneousAttention,
    HiFormerAttention,
    PerTokenFFN,
    RankerBlocks,
)
from delphi_traj.layers.unimixing import UniMixing, UniMixingLite
from delphi_traj.models.baselines import (
    FactorizationMachine,
    ReluRoutedExperts,
    TokenMixing,
    WukongLayer,
)
from delphi_traj.models.rankers import (
    RANKERS,
    make_ranker,
    mixing_output,
    mixing_patterns,
    unified_table,
)
from delphi_traj.models.unimixer import FlattenedTokens

SIZES = [(4, 8, 1), (6, 12, 2), (8, 32, 3)]  # tokens, width, depth
T, D, H = 4, 8, 2
NAMES = {
    'hetero_attention': {},
    'hiformer': dict(rank=3),
    'fat': dict(n_basis=5, meta=3),
    'rankmixer': {},
    'tokenmixer_large': {},
    'wukong': dict(rank=3),
}
VARIANTS = {
    **NAMES,
    'rankmixer, experts': dict(n_expert=4),
    'tokenmixer_large, experts': dict(n_expert=4, top_k=2),
    'wukong, other rows': dict(n_fm=3, n_linear=2, rank=3),
}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b, tolerance=1e-10):
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance)


def count(module):
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def redrawn(module, seed=0, std=0.4):
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.copy_(std * torch.randn(p.shape, generator=generator))
    return module.double()


def build(name, depth=2, **options):
    return redrawn(RANKERS[name.split(',')[0]](T, D, depth, **VARIANTS[name], **options)).eval()


# ---- the formulas in loops, one sample [t d] at a time


def row(x, W):
    return torch.stack([sum(x[i] * W[i, j] for i in range(len(x))) for j in range(W.shape[1])])


def gelu(z):
    return torch.stack([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])


def layer_norm(v, n):
    c = v - v.mean()
    return c / (c.square().mean() + 1e-5).sqrt() * n.weight + n.bias


def rms_norm(v, n):
    return v / (v.square().mean() + 1e-6).sqrt() * n.weight


def each(f, x, *args):
    return torch.stack([f(v, *args) for v in x])


def pffn(m, x, first=0):
    return torch.stack(
        [
            row(gelu(row(v, m.up[first + t]) + m.up_bias[first + t]), m.down[first + t])
            + m.down_bias[first + t]
            for t, v in enumerate(x)
        ]
    )


def pswiglu(m, x):
    out = []
    for t, v in enumerate(x):
        up, gate = row(v, m.up_proj[t]) + m.up_bias[t], row(v, m.gate_proj[t]) + m.gate_bias[t]
        out.append(row(up * gate / (1 + (-gate).exp()), m.down_proj[t]) + m.down_bias[t])
    return torch.stack(out)


def mixed(x):
    n, d = x.shape
    c = d // n
    return torch.stack([torch.cat([x[t, h * c : (h + 1) * c] for t in range(n)]) for h in range(n)])


def attend(q, k, v, factor=None):  # [t e] each
    out = []
    for i in range(len(q)):
        score = [
            (q[i] @ k[j]).item()
            * (1 if factor is None else factor[i, j].item())
            / math.sqrt(q.shape[1])
            for j in range(len(k))
        ]
        p = [math.exp(s - max(score)) for s in score]
        out.append(sum(a / sum(p) * v[j] for j, a in enumerate(p)))
    return torch.stack(out)


def hetero(a, x, h):
    e = x.shape[1] // h
    q, k, v = (
        torch.stack([row(x[t], w[t]) for t in range(len(x))]) for w in (a.query, a.key, a.value)
    )
    heads = [attend(*(m[:, i * e : (i + 1) * e] for m in (q, k, v))) for i in range(h)]
    return each(row, torch.cat(heads, 1), a.output_proj)


def hiformer(a, x, h):
    n, d = x.shape
    e = d // h
    q, flat = torch.stack([row(x[t], a.query[t]) for t in range(n)]), x.flatten()
    heads = []
    for i in range(h):
        k, v = (
            row(row(flat, left[i]), right[i]).reshape(n, e)
            for left, right in ((a.key_in, a.key_out), (a.value_in, a.value_out))
        )
        heads.append(attend(q[:, i * e : (i + 1) * e], k, v))
    return each(row, torch.cat(heads, 1), a.output_proj)


def fat(a, x, h, K):
    n, d = x.shape
    e = d // h
    qkv = []
    for r in range(3):
        rows = []
        for t in range(n):
            score = row(a.meta[t], a.router[r]).tolist()
            best = sorted(range(len(score)), key=lambda m: -score[m])[:K]
            total = sum(math.exp(score[m]) for m in best)
            rows.append(row(x[t], sum(math.exp(score[m]) / total * a.basis[r, m] for m in best)))
        qkv.append(torch.stack(rows))
    heads = [attend(*(m[:, i * e : (i + 1) * e] for m in qkv), a.modulation[i]) for i in range(h)]
    return each(row, torch.cat(heads, 1), a.output_proj)


def wukong_layer(m, x, n_fm):
    n, d = x.shape
    products = torch.stack([torch.stack([x[i] @ x[j] for j in range(n)]) for i in range(n)])
    fm = torch.stack([row(products[i], m.fm.Y) for i in range(n)])
    hidden = row(layer_norm(fm.flatten(), m.fm_norm), m.mlp[0].weight.T) + m.mlp[0].bias
    fmb = (row(hidden.clamp_min(0), m.mlp[2].weight.T) + m.mlp[2].bias).reshape(n_fm, d)
    stacked = torch.cat([fmb, torch.stack([sum(w[i] * x[i] for i in range(n)) for w in m.linear])])
    residual = (
        x
        if m.residual is None
        else torch.stack([sum(w[i] * x[i] for i in range(n)) for w in m.residual])
    )
    return each(layer_norm, stacked + residual, m.norm)


@torch.no_grad()
@pytest.mark.parametrize('heads', [1, 2, 4])
def test_um_1(heads):
    """Each token has its own maps; softmax(QK'/sqrt d)V per head; concatenated; one output
    projection."""
    a, x = redrawn(HeterogeneousAttention(T, D, heads)), draw(3, T, D)
    assert close(a(x), torch.stack([hetero(a, r, heads) for r in x]))
    assert count(a) == 3 * T * D**2 + D**2
    p = torch.tensor([2, 0, 3, 1])
    assert not close(a(x[:, p]), a(x)[:, p], 0.1)
    for w in (a.query, a.key, a.value):
        w[:] = w[0].clone()
    assert close(a(x[:, p]), a(x)[:, p])  # with equal maps the order of the tokens is nothing
    assert close(a.global_pattern(x).sum(-1), torch.ones(3, heads, T).double())
    with pytest.raises(ValueError, match='expects'):
        a(x[:, :3])
    with pytest.raises(ValueError, match='does not divide'):
        HeterogeneousAttention(T, D, 3)


@torch.no_grad()
@pytest.mark.parametrize('n_fm, n_linear', [(2, 2), (3, 2), (1, 1)])
def test_um_3(n_fm, n_linear):
    "FM = XX'Y; FMB above LCB; the residual is projected where the number of rows changes."
    m, x = redrawn(WukongLayer(T, D, n_fm, n_linear, rank=3, hidden=5)), draw(2, T, D)
    assert (m.residual is None) == (n_fm + n_linear == T)
    assert close(m(x)[0], torch.stack([wukong_layer(m, r, n_fm) for r in x])) and m(x)[1] == 0
    fm = m.fm(x)
    assert close(fm, (x @ x.mT) @ m.fm.Y, 3e-14) and close(m.fm(3 * x), 9 * fm)
    n, d, k, h = T, D, 3, 5
    size = (
        n * n_linear
        + n * k
        + 2 * n * k
        + (n * k + 1) * h
        + (h + 1) * n_fm * d
        + 2 * d
        + (n * (n_linear + n_fm) if m.residual is not None else 0)
    )
    assert count(m) == size
    with pytest.raises(ValueError, match='at least one row'):
        WukongLayer(T, D, 0, 4, 3, 5)


def single_head():
    shapes = dict(
        self_attention=HeterogeneousAttention(T, D),
        hetero=HeterogeneousAttention(T, D),
        hiformer=HiFormerAttention(T, D, rank=5),
        fat=FieldAwareAttention(T, D, n_basis=6),
        fm=FactorizationMachine(T, 3),
        token_mixer=TokenMixing(T, D),
        unimixing=UniMixing(T * T, D // T, n_iters=60),
        flattened=FlattenedTokens(UniMixingLite(8, 4, 3, 2, n_iters=60)),
    )
    shapes = {
        name: redrawn(m, i, 0.1 if isinstance(m, (UniMixing, FlattenedTokens)) else 0.4)
        for i, (name, m) in enumerate(shapes.items())
    }
    for w in (
        shapes['self_attention'].query,
        shapes['self_attention'].key,
        shapes['self_attention'].value,
    ):
        w.data[:] = w.data[0].clone()
    return shapes


@torch.no_grad()
def test_um_13():
    """Global pattern times local pattern is what each layer computes; which of the two read the
    input; the identities and no more."""
    x, other, layers = draw(2, T, D), draw(2, T, D, seed=1), single_head()
    for m in layers.values():  # a double sum over the two patterns
        p = mixing_patterns(m, x)
        n, c = p.strength.shape[1], p.local.shape[2]
        y = [
            torch.stack(
                [
                    sum(p.strength[b, i, j] * p.local[b, j] for j in range(p.local.shape[1]))
                    for i in range(n)
                ]
            ).reshape(n * c)
            for b in (0, 1)
        ]
        assert close(torch.stack(y), mixing_output(m, x), 1e-12) and close(
            p.output(), torch.stack(y), 1e-12
        )
    table = unified_table(layers, x, other)
    assert table.global_depends_on_input.tolist() == [True] * 5 + [False] * 3
    assert (
        table.local_reads.tolist()
        == ['own block'] * 2 + ['all blocks', 'own block', 'nothing'] + ['own block'] * 3
    )
    assert table.rows_sum_to_1.tolist() == [True] * 4 + [False] + [True] * 3
    assert table.columns_sum_to_1.tolist() == [False] * 5 + [True] * 3
    assert table.symmetric.tolist() == [False] * 4 + [True] * 4
    assert table.blocks.tolist() == [T] * 5 + [T * T] * 2 + [8] and table.width.tolist() == [
        D
    ] * 4 + [3] + [D // T] * 2 + [4]
    # heterogeneous attention: n = T, B = D, W_B = W_V
    a = layers['hetero']
    p = mixing_patterns(a, x)
    assert torch.equal(p.local, torch.stack([x[:, t] @ a.value[t] for t in range(T)], 1)) or close(
        p.local, torch.stack([x[:, t] @ a.value[t] for t in range(T)], 1), 1e-14
    )

    def frozen(z):
        return unimix(z.flatten(1), p.strength[0], a.value)

    assert close(frozen(x[:1]), mixing_output(a, x[:1]), 1e-12) and not close(
        frozen(other[:1]), mixing_output(a, other[:1]), 1e-2
    )
    # FM: attention with W_Q = W_K = I and V = Y, without softmax and scale
    Y = layers['fm'].Y
    assert close((x @ x.mT) @ Y, layers['fm'](x), 3e-14)
    assert not close((x @ x.mT / D**0.5) @ Y, layers['fm'](x), 0.1) and not close(
        (x @ x.mT / D**0.5).softmax(-1) @ Y, layers['fm'](x), 0.1
    )
    # TokenMixer: UniMixing(G, I), bit for bit
    eye = torch.eye(D // T, dtype=torch.float64).expand(T * T, -1, -1)
    assert torch.equal(
        unimix(x.flatten(1), group_permutation(T, T).double(), eye), TokenMixing(T, D)(x).flatten(1)
    )
    assert torch.equal(TokenMixing(T, D)(x), torch.stack([mixed(r) for r in x]))
    with pytest.raises(TypeError, match='Linear has no patterns'):
        mixing_patterns(nn.Linear(2, 2), x)
    with pytest.raises(ValueError, match='Found 2 heads'):
        mixing_patterns(HeterogeneousAttention(T, D, 2), x)


@torch.no_grad()
def test_um_23_at_start():
    "Flat on small tokens, sparse on large ones, diagonal only where query and key maps agree."
    torch.manual_seed(0)
    t, d = 16, 32
    a, x = HeterogeneousAttention(t, d), torch.randn(200, t, d)
    assert all(w.std() > 0.5 * (1 / d) ** 0.5 for w in (a.query, a.key, a.value, a.output_proj))

    def spread(size):
        return (1 / a.global_pattern(size * x).square().sum(-1)).mean().item()

    def diagonal(size):
        return a.global_pattern(size * x).diagonal(dim1=-2, dim2=-1).mean().item()

    assert spread(0.01) > 15.99 and 5 < spread(1) < 12 and spread(30) < 1.1
    assert all(abs(diagonal(size) - 1 / t) < 0.02 for size in (0.01, 1, 30))
    a.key.copy_(a.query)
    assert diagonal(3) > 0.9
    G = group_permutation(4, 4)
    assert G.trace() == 4 and G.sum(0).tolist() == G.sum(1).tolist() == [1] * t


@torch.no_grad()
def test_um_19_attentions():
    """HiFormer's composed keys and values, FAT's composed maps and modulated scores, and the block
    around them."""
    x = draw(2, T, D)
    a = redrawn(HiFormerAttention(T, D, H, rank=3))
    assert close(a(x), torch.stack([hiformer(a, r, H) for r in x]))
    assert count(a) == T * D**2 + 2 * H * 3 * (T * D + T * D // H) + D**2
    f = redrawn(FieldAwareAttention(T, D, H, n_basis=6, top_k=3, meta=5))
    assert close(f(x), torch.stack([fat(f, r, H, 3) for r in x]))
    assert count(f) == 3 * (6 * D**2 + 5 * 6) + T * 5 + H * T**2 + D**2
    for name in ('hetero_attention', 'hiformer', 'fat'):
        m = build(name, 1, n_head=H)
        block = m.blocks[0]
        S = torch.stack([each(layer_norm, r, block.attention_norm) for r in x + block.attention(x)])
        assert (
            close(
                m(x)[0],
                torch.stack([each(layer_norm, s + pffn(block.ffn, s), block.ffn_norm) for s in S]),
            )
            and m(x)[1] == 0
        )
    with pytest.raises(ValueError, match='top_k=4 of n_basis=3'):
        FieldAwareAttention(T, D, n_basis=3, top_k=4)


@torch.no_grad()
def test_um_19_special_cases():
    "HiFormer at full rank and FAT with one basis matrix per field are heterogeneous attention."
    a, x = redrawn(HeterogeneousAttention(T, D, H)), draw(2, T, D)
    e = D // H
    full = redrawn(HiFormerAttention(T, D, H, rank=T * D))
    full.query.copy_(a.query), full.output_proj.copy_(a.output_proj)
    for left, right, w in (
        (full.key_in, full.key_out, a.key),
        (full.value_in, full.value_out, a.value),
    ):
        left.copy_(torch.eye(T * D))
        right.copy_(
            torch.stack([torch.block_diag(*w[:, :, i * e : (i + 1) * e]) for i in range(H)])
        )
    assert close(full(x), a(x), 1e-12)
    f = redrawn(FieldAwareAttention(T, D, H, n_basis=T, top_k=1, meta=T))
    f.basis.copy_(torch.stack([a.query, a.key, a.value])), f.output_proj.copy_(a.output_proj)
    f.meta.copy_(torch.eye(T)), f.router.copy_(torch.eye(T)), f.modulation.fill_(1)
    assert close(f(x), a(x), 1e-12)
    fresh = FieldAwareAttention(T, D, H)
    # factors near zero: an average
    assert (fresh.global_pattern(x.float()) - 1 / T).abs().max() < 0.05


def test_um_19_fat_router():
    "Chosen basis matrices have a gradient and no other; with top_k = 1 the router has none."
    x = draw(3, T, D)
    for top_k in (1, 2, 3):
        f = redrawn(FieldAwareAttention(T, D, H, n_basis=9, top_k=top_k, meta=5))
        f(x).square().sum().backward()
        share = f.composition()
        assert ((share > 0).sum(-1) == top_k).all() and close(
            share.sum(-1), torch.ones(3, T).double()
        )
        assert torch.equal(f.basis.grad.abs().amax((-1, -2)) > 0, (share > 0).any(1))
        assert bool(f.router.grad.any()) == bool(f.meta.grad.any()) == (top_k > 1)


@torch.no_grad()
def test_um_19_rankmixer():
    """S = LN(Mix(X) + X), X' = LN(PFFN(S) + S), two blocks deep; the number of tokens must divide
    the width."""
    m, x = build('rankmixer'), draw(2, T, D)
    want = []
    for r in x:
        for block in m.blocks:
            S = each(layer_norm, mixed(r) + r, block.mixing_norm)
            r = each(layer_norm, pffn(block.ffn, S) + S, block.ffn_norm)
        want.append(r)
    assert close(m(x)[0], torch.stack(want)) and m(x)[1] == 0
    with pytest.raises(ValueError, match='Take a width of 12'):
        RANKERS['rankmixer'](T, 10, 1)


@torch.no_grad()
def test_um_19_experts():
    """Gates by the inference router in evaluation, a coin for each row in training; the penalty is
    on the inference gates alone."""
    m, x, E = redrawn(ReluRoutedExperts(T, D, 16, 4)).eval(), draw(5, T, D), 4
    gate = {
        w: torch.stack(
            [
                torch.stack(
                    [
                        row(r[t], getattr(m, f'{w}_router')[t]) + getattr(m, f'{w}_bias')[t]
                        for t in range(T)
                    ]
                )
                for r in x
            ]
        ).clamp_min(0)
        for w in ('train', 'infer')
    }
    out = torch.stack(
        [
            torch.stack([pffn(m.experts, r[t][None].expand(E, D), t * E) for t in range(T)])
            for r in x
        ]
    )  # [b t e d]
    want = {w: (g[..., None] * out).sum(2) for w, g in gate.items()}
    y, balance = m(x)
    assert (
        close(y, want['infer'])
        and close(balance, gate['infer'].sum() / (5 * T))
        and close(m.run_active(x, gate['infer']), y)
    )
    assert 0 < (gate['infer'] > 0).double().mean() < 1
    m.train()
    torch.manual_seed(0)
    from_infer = torch.zeros(5, dtype=torch.long)
    for _ in range(40):
        y, balance = m(x)
        by = [(y[b] - want['infer'][b]).abs().max() < 1e-10 for b in range(5)]
        assert all(
            i or (y[b] - want['train'][b]).abs().max() < 1e-10 for b, i in enumerate(by)
        ) and close(balance, gate['infer'].sum() / (5 * T))
        from_infer += torch.tensor(by)
    assert 60 < from_infer.sum() < 140 and (from_infer > 0).all() and (from_infer < 40).all()
    for share, router in ((0, 'train'), (1, 'infer')):
        m.share = share
        assert close(m(x)[0], want[router])
    assert count(m) == T * E * (2 * D * 4 + 4 + D) + 2 * T * (D * E + E)
    with pytest.raises(ValueError, match='share=2'):
        ReluRoutedExperts(T, D, 16, 4, share=2)


def test_um_19_two_routers():
    """The task's gradient reaches the inference router only through the rows that it sends; without
    them it closes for good."""
    x, y = draw(64, T, D).float(), draw(64, T, D, seed=1).float()
    for share, reaches in ((0, (True, False)), (0.5, (True, True)), (1, (False, True))):
        torch.manual_seed(0)
        m = ReluRoutedExperts(T, D, 16, 4, share)
        out, balance = m(x)
        grads = torch.autograd.grad(
            F.mse_loss(out, y),
            [m.train_router, m.infer_router],
            allow_unused=True,
            retain_graph=True,
        )
        assert tuple(g is not None and bool(g.any()) for g in grads) == reaches
        penalty = torch.autograd.grad(balance, [m.train_router, m.infer_router], allow_unused=True)
        assert penalty[0] is None and penalty[1].any()
    still_open = {}
    for share in (0, 0.5):
        torch.manual_seed(0)
        m = ReluRoutedExperts(T, D, 16, 4, share)
        for step in range(60):
            x = draw(32, T, D, seed=step).float()
            out, balance = m(x)
            loss = F.mse_loss(out, x.abs()) + 0.03 * balance
            grads = torch.autograd.grad(loss, list(m.parameters()), allow_unused=True)
            with torch.no_grad():
                for p, g in zip(m.parameters(), grads, strict=True):
                    if g is not None:
                        p -= 0.02 * g.sign()  # every parameter one small step downhill
        still_open[share] = (m.gates(x, 'infer') > 0).double().mean().item()
    assert still_open[0] < 0.02 and still_open[0.5] > 0.5


@torch.no_grad()
def test_um_19_tokenmixer_large():
    """Mix, pSwiGLU, revert, pSwiGLU; both residuals add a coordinate to itself; a residual over
    every second block."""
    m, x = build('tokenmixer_large', 3), draw(2, T, D)
    want = []
    for r in x:
        kept = r
        for i, block in enumerate(m.blocks):
            mix = mixed(r)
            # H = T: the mixing is its own inverse
            back = mixed(mix + pswiglu(block.mixed_ffn, each(rms_norm, mix, block.mixed_norm)))
            r = r + pswiglu(block.ffn, each(rms_norm, back, block.norm))
            if i == 1:
                r = r + kept
        want.append(r)
    assert close(m(x)[0], torch.stack(want)) and m(x)[1] == 0
    # with experts: the same formula, both balance terms
    block = build('tokenmixer_large, experts', 1).blocks[0]
    mix = torch.stack([mixed(r) for r in x])
    update, first = block.mixed_ffn(torch.stack([each(rms_norm, r, block.mixed_norm) for r in mix]))
    back = torch.stack([mixed(r) for r in mix + update])
    y, second = block.ffn(torch.stack([each(rms_norm, r, block.norm) for r in back]))
    assert (
        close(block(x)[0], x + y) and close(block(x)[1], first + second) and min(first, second) > 0
    )
    fresh = RANKERS['tokenmixer_large'](T, D, 1)
    x = x.float()
    assert 0 < (fresh(x)[0] - x).abs().max() < 0.2
    for block in fresh.blocks:
        block.ffn.down_proj.zero_()
    assert torch.equal(fresh(x)[0], x)
    for options in ({}, dict(n_expert=4)):  # down projections a hundredth of Xavier, the others not
        swiglu = RANKERS['tokenmixer_large'](T, D, 1, **options).blocks[0].ffn
        for m in (swiglu.experts, swiglu.shared) if options else (swiglu,):
            bound = math.sqrt(6 / sum(m.down_proj.shape[-2:]))
            assert (
                0.009 * bound < m.down_proj.abs().max() <= 0.01 * bound
                and 0.9 * bound < m.up_proj.abs().max() <= bound
            )
    with pytest.raises(ValueError, match='without n_expert'):
        RANKERS['tokenmixer_large'](T, D, 1, top_k=2)


@torch.no_grad()
def test_um_19_stack():
    """Balance terms add up over blocks; `interval` adds what went into the blocks since the last
    one."""

    class Times(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, x):
            return self.k * x, torch.tensor(1.0)

    one = torch.tensor(1.0)
    assert [v.item() for v in RankerBlocks(Times(2), Times(3), Times(5))(one)] == [30, 3]
    assert RankerBlocks(*[Times(2)] * 5, interval=2)(one)[0] == ((4 + 1) * 4 + 5) * 2
    assert RankerBlocks(*[Times(2)] * 2, interval=3)(one)[0] == 4
    for name in ('rankmixer, experts', 'tokenmixer_large, experts'):
        m, x = build(name), draw(3, T, D)
        first, second = m.blocks
        y, b1 = first(x)
        z, b2 = second(y)
        assert b1 > 0 and close(m(x)[1], b1 + b2)


@pytest.mark.parametrize('T, D, L', SIZES)
def test_um_19_sizes(T, D, L):
    "Every parameter formula of the notes, for three sizes each."
    k, Hd, r, M, a, E = 4, 4, 16, 64, 16, 4
    around = T * (2 * k * D**2 + k * D + D) + 4 * D  # per-token feed-forward and two LayerNorms
    sizes = {
        'hetero_attention': L * (3 * T * D**2 + D**2 + around),
        'hiformer': L * (T * D**2 + 2 * Hd * r * (T * D + T * D // Hd) + D**2 + around),
        'fat': L * (3 * (M * D**2 + a * M) + T * a + Hd * T**2 + D**2 + around),
        'rankmixer': L * (T * (2 * k * D**2 + k * D + D) + 4 * D),
        'tokenmixer_large': L * 2 * (T * (3 * k * D**2 + 2 * k * D + D) + D),
    }
    for name, size in sizes.items():
        assert count(RANKERS[name](T, D, L)) == size, name
    assert count(RANKERS['rankmixer'](T, D, L, n_expert=E)) == L * (
        T * E * (2 * k * D // E * D + k * D // E + D) + 2 * T * (D * E + E) + 4 * D
    )
    assert count(RANKERS['tokenmixer_large'](T, D, L, n_expert=E)) == L * 2 * (
        T * D * E + T * (E + 1) * (3 * D * D + 2 * D + D) + D
    )
    for n_F, n_L in ((T - T // 2, T // 2), (3, 2), (T, T)):
        n, size, k, h = T, 0, 5, 7
        for _ in range(L):
            size += (
                n * n_L
                + n * k
                + 2 * n * k
                + (n * k * h + h)
                + (h * n_F * D + n_F * D)
                + 2 * D
                + (n * (n_L + n_F) if n != n_L + n_F else 0)
            )
            n = n_L + n_F
        assert count(RANKERS['wukong'](T, D, L, n_fm=n_F, n_linear=n_L, rank=k, hidden=h)) == size


@pytest.mark.parametrize('name', VARIANTS)
def test_um_19_interface(name):
    """Behind one interface: every parameter has a gradient, evaluation is deterministic, no row
    sees another, rows are mixed."""
    fields = (
        Field('user', 'categorical', 'user', 9),
        Field('item', 'categorical', 'item', 7),
        Field('price', 'dense', 'item'),
    )
    base, options = name.split(',')[0], VARIANTS[name]
    torch.manual_seed(0)
    model = make_ranker(base, fields, T, D, 2, **options).double()
    redrawn(model.backbone, std=0.5)
    ids, price, label = torch.randint(1, 7, (24, 2)), draw(24, 1), (draw(24) > 0).double()
    loss = model.loss(ids, price, label)
    loss.total.backward()
    for key, p in model.backbone.named_parameters():
        # a basis matrix that no field chose has none
        moved = p.grad.flatten(2).any(-1) if key.endswith('basis') else p.grad.any()
        assert p.grad is not None and (moved.any() if key.endswith('basis') else moved), key
    if options.get('n_expert'):
        assert loss.parts['balance'] > 0
    else:
        assert loss.parts['balance'] == 0
    model.eval()
    out = model(ids, price)
    assert (
        torch.equal(out, model(ids, price))
        and close(model(ids[5:9], price[5:9]), out[5:9])
        and out.shape == (24,)
    )
    x = draw(3, T, D, seed=4)
    y, balance = model.backbone(x)
    rows = options.get('n_fm', T) + options.get('n_linear', 0)
    assert y.shape == (3, rows if 'n_fm' in options else T, D) and balance.shape == ()
    changed = x.clone()
    changed[1, 0] += 1
    moved = (model.backbone(changed)[0] != y).any(-1)
    with torch.autocast('cpu', torch.bfloat16):
        low, _ = model.float().backbone(x.float())
    assert low.isfinite().all() and (low - y).abs().mean() < 0.1 * y.std()
    # token 0 is heard by every row, in its own sample only
    assert not moved[0].any() and not moved[2].any() and moved[1].all()


def test_um_19_ffn():
    "The per-token layer is the formula for each token and mixes nothing."
    m, x = redrawn(PerTokenFFN(T, D, 5)), draw(2, T, D)
    with torch.no_grad():
        assert close(m(x), torch.stack([pffn(m, r) for r in x]))
    reads = torch.autograd.functional.jacobian(lambda z: m(z[None])[0], x[0]).abs().amax((1, 3)) > 0
    assert torch.equal(reads, torch.eye(T, dtype=torch.bool))
