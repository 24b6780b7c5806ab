"""One test for each statement of the UniMixer notes about the whole model: tokens, per-token
SwiGLU, two streams, experts, switches."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from delphi_traj.data.interactions import Field
from delphi_traj.layers.tokens import (
    FeatureTokenizer,
    PerTokenSwiGLU,
    SparsePerTokenMoE,
    balance_loss,
    next_free_slot,
)
from delphi_traj.layers.unimixing import (
    BlockMixing,
    UniMixing,
    UniMixingLite,
    bake,
    set_temperature,
)
from delphi_traj.models.rankers import RANKERS, make_ranker
from delphi_traj.models.unimixer import PostNorm, SiameseNorm, UniMixer, best_block

T, D, M = 3, 4, 2  # tokens, their width and the depth of the small models below
FIELDS = (
    Field('reader', 'categorical', 'user', 9),
    Field('film', 'categorical', 'item', 7),
    Field('region', 'categorical', 'user', 5),
    Field('device', 'categorical', 'context', 4),
    Field('age', 'dense', 'user'),
    Field('length', 'dense', 'item'),
)
BY_DOMAIN = ['reader', 'region', 'age', 'film', 'length', 'device']
WIDTHS = dict(user=2, item=5, context=2)  # 3*2 + 2*5 + 1*2 = 18 coordinates


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b, tolerance=1e-10):
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance)


def far(a, b, least=1e-4):
    return bool((a - b).abs().max() > least)


def count(module):
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def redrawn(module, seed=0, std=0.5):
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.copy_(std * torch.randn(p.shape, generator=generator))
    return module.double()


def rows(n=16, seed=0, fields=FIELDS):
    g = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, f.size, (n,), generator=g) for f in fields if f.kind == 'categorical']
    numbers = [
        torch.randn(n, generator=g, dtype=torch.float64) for f in fields if f.kind == 'dense'
    ]
    return [
        torch.stack(x, 1) if x else torch.zeros(n, 0, dtype=d)
        for x, d in ((ids, torch.long), (numbers, torch.float64))
    ]


def product(vector, matrix):  # in Python numbers
    return [
        sum(float(v) * float(row[j]) for v, row in zip(vector, matrix, strict=True))
        for j in range(matrix.shape[1])
    ]


def token_by_hand(m, ids, numbers, fields, order, cut):
    """Row, or value times slope plus offset, of each field in `order`; cut; one projection for each
    cut."""
    tables, pieces = {}, {}
    for domain in m.domains:
        mine = [f for f in fields if f.name in domain.names]
        start = 0
        for f in [f for f in mine if f.kind == 'categorical']:
            tables[f.name], start = domain.table.weight[start : start + f.size], start + f.size
        assert start == len(domain.table.weight)
        for s, o, f in zip(
            domain.slope, domain.offset, [f for f in mine if f.kind == 'dense'], strict=True
        ):
            tables[f.name] = (s, o)
    for kind, values in (('categorical', ids), ('dense', numbers)):
        for f, v in zip([f for f in fields if f.kind == kind], values, strict=True):
            pieces[f.name] = (
                tables[f.name][v]
                if kind == 'categorical'
                else v * tables[f.name][0] + tables[f.name][1]
            )
    e = torch.cat([pieces[name] for name in order]).tolist()
    return torch.tensor(
        [
            [
                a + float(b)
                for a, b in zip(
                    product(e[cut * t : cut * (t + 1)], m.weight[t]), m.bias[t], strict=True
                )
            ]
            for t in range(len(m.weight))
        ],
        dtype=torch.float64,
    )


@torch.no_grad()
@pytest.mark.parametrize('order', [None, ['age', 'device', 'film', 'reader', 'length', 'region']])
@pytest.mark.parametrize('embedding, n_token', [(WIDTHS, 2), (WIDTHS, 9), (5, 6), (1, 1)])
def test_um_4(order, embedding, n_token):
    "Embed, concatenate by domain, cut evenly, project each cut with its own weight and bias."
    m = redrawn(FeatureTokenizer(FIELDS, n_token, D, embedding, order))
    (ids, numbers), total = rows(), 18 if embedding == WIDTHS else 6 * embedding
    tokens = m(ids, numbers)
    for b in range(4):
        assert close(
            tokens[b],
            token_by_hand(m, ids[b], numbers[b], FIELDS, order or BY_DOMAIN, total // n_token),
        )
    rows_of_tables = 14 * 2 + 7 * 5 + 4 * 2 if embedding == WIDTHS else 25 * embedding
    dense = 2 * (2 + 5) if embedding == WIDTHS else 4 * embedding
    assert count(m) == rows_of_tables + dense + n_token * (total // n_token * D + D)
    assert m.order == (order or BY_DOMAIN)


def test_um_4_domains_by_tokens():
    """Three domains of equal width, three tokens: a field reaches its domain's token only. Id 0
    starts as nothing, other rows as N(0, 0.01)."""
    m = FeatureTokenizer(FIELDS, 3, D, dict(user=2, item=3, context=6))
    ids, numbers = rows()
    reach = {}
    for f in FIELDS:
        a, v = ids.clone(), numbers.clone()
        column = [g for g in FIELDS if g.kind == f.kind].index(f)
        if f.kind == 'dense':
            v[:, column] += 1
        else:
            a[:, column] = (a[:, column] + 1) % f.size
        reach[f.name] = (m(a, v.float()) != m(ids, numbers.float())).any(-1).any(0).tolist()
    place = dict(user=0, item=1, context=2)
    assert reach == {f.name: [place[f.domain] == t for t in range(3)] for f in FIELDS}
    assert (
        not m.embed(torch.zeros_like(ids), torch.zeros(16, 2)).any()
        and m.embed(ids, numbers.float()).any()
    )
    assert [
        t.table.weight.std().item()
        for t in FeatureTokenizer((Field('a', size=5_000),), 1, 2).domains
    ] == [pytest.approx(0.01, rel=0.02)]


def test_um_4_refusals():
    ids, numbers = rows()
    for n_token, said in (
        (5, r'18 wide.*n_token from \[3, 6\].*sum to one of \[15, 20\]'),
        (20, r'\[9, 18\].*\[20\]'),
        (0, 'n_token from'),
    ):
        with pytest.raises(ValueError, match=said):
            FeatureTokenizer(FIELDS, n_token, D, WIDTHS)
    for order in (BY_DOMAIN[1:], BY_DOMAIN + ['age'], ['reader'] * 6):
        with pytest.raises(ValueError, match='each of the field names once'):
            FeatureTokenizer(FIELDS, 2, D, WIDTHS, order)
    for embedding in (0, dict(user=2, item=5), WIDTHS | dict(query=2), WIDTHS | dict(user=0)):
        with pytest.raises(ValueError, match='expected a width of at least 1'):
            FeatureTokenizer(FIELDS, 2, D, embedding)
    with pytest.raises(ValueError, match='names repeat'):
        FeatureTokenizer(FIELDS + FIELDS[:1], 2, D, WIDTHS)
    m = FeatureTokenizer(FIELDS, 2, D, WIDTHS)
    for column, bad in ((0, 9), (1, -1), (2, 5)):
        wrong = ids.clone()
        wrong[3, column] = bad
        with pytest.raises(
            ValueError,
            match=f"Field '{FIELDS[column].name}' has ids 0 to {FIELDS[column].size - 1}",
        ):
            m(wrong, numbers.float())


@given(st.permutations(range(6)), st.integers(1, 3))
def test_um_4_any_order(permutation, width):
    """The order moves fields, it never loses or mixes them: the embeddings of two orders are
    permutations of each other."""
    order = [FIELDS[i].name for i in permutation]
    one, two = FeatureTokenizer(FIELDS, 3, D, width), FeatureTokenizer(FIELDS, 3, D, width, order)
    two.load_state_dict(one.state_dict())
    a, b = (
        m.embed(*[x if x.dtype == torch.long else x.float() for x in rows()]).unflatten(
            -1, (6, width)
        )
        for m in (one, two)
    )
    assert torch.equal(b, a[:, [BY_DOMAIN.index(name) for name in order]])


def swiglu_by_hand(m, t, x):
    "One token in Python numbers."
    up, gate = (
        [a + float(b) for a, b in zip(product(x, w[t]), bias[t], strict=True)]
        for w, bias in ((m.up_proj, m.up_bias), (m.gate_proj, m.gate_bias))
    )
    hidden = [u * g / (1 + math.exp(-g)) for u, g in zip(up, gate, strict=True)]
    return torch.tensor(
        [
            a + float(b)
            for a, b in zip(product(hidden, m.down_proj[t]), m.down_bias[t], strict=True)
        ],
        dtype=torch.float64,
    )


@torch.no_grad()
def test_um_15():
    """Swish on the gate, biases everywhere, weights of its own for each token, width D: T (3 D h +
    2 h + D) of them."""
    m, x = redrawn(PerTokenSwiGLU(T, D, 5)), draw(6, T, D)
    assert close(
        m(x),
        torch.stack(
            [torch.stack([swiglu_by_hand(m, t, x[b, t]) for t in range(T)]) for b in range(6)]
        ),
    )
    for t, d, h in ((3, 4, 5), (16, 128, 341), (8, 6, 1)):
        assert count(PerTokenSwiGLU(t, d, h)) == t * (3 * d * h + 2 * h + d)
    moved = x.clone()
    moved[:, 1] += 1
    assert ((m(moved) != m(x)).any(-1) == torch.tensor([False, True, False])).all()
    assert close(m(x.expand(2, 3, 6, T, D)), m(x).expand(2, 3, 6, T, D))
    for sizes in ((0, 4, 5), (3, 0, 5), (3, 4, 0)):
        with pytest.raises(ValueError, match='at least 1'):
            PerTokenSwiGLU(*sizes)
    block = UniMixer(16, 128, 1, lite=True, block=2, n_basis=2, rank=128).body.blocks[0]
    assert count(block) - count(block.mix.norm) == 2_372_264


class Maps(nn.Module):
    "A block without learning: tanh of a fixed map of a token, and a balance loss of its own."

    def __init__(self, seed, balance=0.0):
        super().__init__()
        self.register_buffer('w', draw(D, D, seed=seed))
        self.balance = balance

    def forward(self, x):
        return (x @ self.w).tanh(), x.new_tensor(self.balance)


def rms(x, gain, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


@torch.no_grad()
@pytest.mark.parametrize('input_norm', [False, True])
@pytest.mark.parametrize('depth_scale', [False, True])
def test_um_16(input_norm, depth_scale):
    """The two streams letter by letter, with the original's options: the block's input normed, its
    share of X over sqrt(2 (l + 1))."""
    m = redrawn(
        SiameseNorm(
            [Maps(l + 1, balance=l + 1.0) for l in range(4)],
            D,
            input_norm=input_norm,
            depth_scale=depth_scale,
        )
    )
    x = draw(5, T, D)
    X = Y = x
    for l in range(4):
        z = X + rms(Y, m.pre_norm[l].weight)
        if input_norm:
            z = rms(z, m.input_norm[l].weight)
        O = (z @ m.blocks[l].w).tanh()
        X, Y = (
            rms(X + (O / math.sqrt(2 * l + 2) if depth_scale else O), m.post_norm[l].weight),
            Y + O,
        )
    y, balance = m(x)
    assert close(y, X + rms(Y, m.output_norm.weight)) and balance == 10
    assert count(m) == (9 + 4 * input_norm) * D


class Silent(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x), x.new_zeros(())


@torch.no_grad()
def test_um_16_closed_forms():
    """Silent blocks: X + RMSNorm(X) at M = 0, twice the RMSNorm after; zero gains leave pre-norm or
    post-norm alone."""
    x = draw(64, T, 16)
    for depth in (0, 1, 2, 5):
        y, _ = SiameseNorm([Silent() for _ in range(depth)], 16, eps=1e-8).double()(x)
        assert close(
            y, 2 * rms(x, 1, 1e-8) if depth else x + rms(x, 1, 1e-8), 1e-7 if depth > 1 else 1e-15
        )
    x, blocks = draw(5, T, D), [Maps(l) for l in range(3)]
    m = redrawn(SiameseNorm(blocks, D))
    post = PostNorm(blocks, D).double()
    post.post_norm.load_state_dict(m.post_norm.state_dict())
    for norm in [*m.pre_norm, m.output_norm]:
        norm.weight.zero_()
    assert torch.equal(m(x)[0], post(x)[0])
    X = x
    for l in range(3):
        X = rms(X + (X @ blocks[l].w).tanh(), post.post_norm[l].weight)
    assert close(post(x)[0], X)
    m = redrawn(SiameseNorm(blocks, D))
    Y = x
    for norm in m.post_norm:
        norm.weight.zero_()
    for l in range(3):
        Y = Y + (((x if l == 0 else 0) + rms(Y, m.pre_norm[l].weight)) @ blocks[l].w).tanh()
    assert close(m(x)[0], rms(Y, m.output_norm.weight))


def moe_by_hand(m, x):
    y = torch.zeros_like(x)
    for b in range(len(x)):
        for t in range(m.n_token):
            logit = [math.exp(v) for v in product(x[b, t], m.router[t])]
            gate = [v / sum(logit) for v in logit]
            for j in sorted(range(m.n_expert), key=lambda j: -gate[j])[: m.top_k]:
                y[b, t] += (
                    m.alpha * gate[j] * swiglu_by_hand(m.experts, t * m.n_expert + j, x[b, t])
                )
            if m.shared is not None:
                y[b, t] += swiglu_by_hand(m.shared, t, x[b, t])
    return y


@torch.no_grad()
@pytest.mark.parametrize(
    'E, k, shared, alpha',
    [
        (4, 2, True, None),
        (4, 1, False, None),
        (3, 3, True, 0.5),
        (1, 1, True, None),
        (6, 5, False, 2.0),
    ],
)
def test_um_18(E, k, shared, alpha):
    """alpha times the k largest gates' experts, not rescaled, and the shared one; both ways of
    running."""
    m, x = redrawn(SparsePerTokenMoE(T, D, 2 * E, E, k, shared=shared, alpha=alpha)), draw(8, T, D)
    assert m.alpha == (E / k if alpha is None else alpha)
    y, balance = m(x)
    assert close(y, moe_by_hand(m, x))
    gate, best, chosen = m.route(x)
    assert close(m.run_all(x, best, chosen), m.run_chosen(x, best, chosen))
    share = torch.stack([(chosen == j).double().mean((0, 2)) for j in range(E)], -1)
    assert close(
        balance,
        torch.stack(
            [E * sum(share[t, j] * gate[:, t, j].mean() for j in range(E)) for t in range(T)]
        ).mean(),
    )
    expert = 3 * D * 2 + 2 * 2 + D
    assert count(m) == T * ((E + shared) * expert + D * E)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_um_18_slots(experts):
    "A slot is the number of earlier choices of the same expert."
    slot, length = next_free_slot(torch.tensor(experts), 5)
    assert slot.tolist() == [experts[:i].count(e) for i, e in enumerate(experts)] and length == max(
        experts.count(e) for e in experts
    )


def test_um_18_balance():
    """1 when even, E when one expert takes all with a sure gate; reaches the router, never an
    expert; changes the ranker's gradient."""
    even = torch.full((4, 1, 4), 0.25, dtype=torch.float64)
    assert balance_loss(even, torch.arange(4).view(4, 1, 1)) == 1
    assert balance_loss(even, torch.zeros(4, 1, 1, dtype=torch.long)) == 1
    assert (
        balance_loss(
            F.one_hot(torch.zeros(4, 1, dtype=torch.long), 4).double(),
            torch.zeros(4, 1, 1, dtype=torch.long),
        )
        == 4
    )
    m, x = redrawn(SparsePerTokenMoE(T, D, 8, 4, 2)), draw(8, T, D)
    balance = m(x)[1]
    assert balance.requires_grad
    balance.backward()
    assert m.router.grad.abs().amax((1, 2)).min() > 1e-4
    assert all(p.grad is None for name, p in m.named_parameters() if name != 'router')
    ids, numbers = rows()
    label = (torch.arange(16) % 2).double()

    def gradients(weight):
        model = redrawn(
            make_ranker(
                'unimixer', FIELDS, 3, D, M, embedding=2, n_expert=4, top_k=2, balance_weight=weight
            )
        )
        loss = model.loss(ids, numbers, label)
        loss.total.backward()
        assert torch.equal(loss.total, loss.parts['label'] + loss.parts['balance'])
        return [block.feed.router.grad for block in model.backbone.body.blocks], loss

    (without, bare), (given_, paid) = gradients(0.0), gradients(0.1)
    for a, b in zip(without, given_, strict=True):
        assert far(a, b, 1e-6)
    assert (
        bare.parts['balance'] == 0
        and bare.parts['label'] == paid.parts['label']
        and paid.parts['balance'] >= 0.1 * M * 0.9
    )


def test_um_18_gradients_agree():
    "The two ways of running have the same gradients, for the input too."
    m, x = redrawn(SparsePerTokenMoE(T, D, 8, 4, 2)), draw(8, T, D).requires_grad_()
    _, best, chosen = m.route(x)
    one, two = (
        torch.autograd.grad(
            (run(x, best, chosen) * draw(8, T, D, seed=1)).sum(),
            [x, m.router, *m.experts.parameters()],
            retain_graph=True,
        )
        for run in (m.run_all, m.run_chosen)
    )
    assert all(close(a, b) for a, b in zip(one, two, strict=True))
    for bad, said in (
        (dict(top_k=0), 'top_k'),
        (dict(top_k=5), 'top_k'),
        (dict(hidden=9), 'does not divide'),
        (dict(hidden=0), 'does not divide'),
    ):
        with pytest.raises(ValueError, match=said):
            SparsePerTokenMoE(**(dict(n_token=T, width=D, hidden=8, n_expert=4, top_k=2) | bad))


@torch.no_grad()
def test_um_12_block():
    "norm(x + mixing of the flattened tokens), then the SwiGLU, and no residual around it."
    model, x = redrawn(UniMixer(T, D, 1, block=2)), draw(5, T, D)
    block = model.body.blocks[0]
    O = rms(
        x + block.mix.mixing.mixing(x.reshape(5, T * D)).reshape(5, T, D), block.mix.norm.weight
    )
    y, balance = block(x)
    assert (
        close(
            y,
            torch.stack(
                [
                    torch.stack([swiglu_by_hand(block.feed, t, O[b, t]) for t in range(T)])
                    for b in range(5)
                ]
            ),
        )
        and balance == 0
    )
    for p in block.feed.parameters():
        p.zero_()
    assert not block(x)[0].any()


SWITCHES = {
    'symmetry': dict(symmetric=False),
    'double stochasticity': dict(doubly_stochastic=False),
    'temperature': dict(tau=0.05),
    'block-specific': dict(block_specific=False),
    'two streams': dict(norm='post'),
    'input norm': dict(input_norm=True),
    'depth scale': dict(depth_scale=True),
}


@torch.no_grad()
@pytest.mark.parametrize('name', SWITCHES)
@pytest.mark.parametrize('lite', [False, True])
def test_um_21_model(name, lite):
    """Every switch reaches every block, changes the output with equal weights, and still bakes to
    the same bits."""
    options = dict(lite=True, rank=2, n_basis=3) if lite else {}
    full, x = redrawn(UniMixer(T, D, M, block=3, **options)), draw(6, T, D)
    other = UniMixer(T, D, M, block=3, **options, **SWITCHES[name]).double()
    kept = {
        k: v
        for k, v in full.state_dict().items()
        if not k.endswith('tau')
        and k in other.state_dict()
        and other.state_dict()[k].shape == v.shape
    }
    other.load_state_dict(kept, strict=False)
    assert far(other(x)[0], full(x)[0]) and close(bake(other)(x)[0], other(x)[0], 0)
    mixings = [m for m in other.modules() if isinstance(m, BlockMixing)]
    assert len(mixings) == M and all(
        isinstance(m, UniMixingLite if lite else UniMixing) for m in mixings
    )
    for m in mixings:
        assert (m.symmetric, m.doubly_stochastic, m.block_specific) == (
            name != 'symmetry',
            name != 'double stochasticity',
            name != 'block-specific',
        )
        assert math.isclose(m.tau.item(), 0.05 if name == 'temperature' else 1, rel_tol=1e-6)
    n, B, D2 = 4, 3, M * D
    local = (3 * 3**2 + n * 3 if lite else n * B**2, 3 * 3**2 + 3 if lite else B**2)[
        name == 'block-specific'
    ]
    streams = {'two streams': D2, 'input norm': 3 * D2 + D}.get(name, 2 * D2 + D)
    assert (
        count(other)
        == M * ((2 * n * 2 if lite else n**2) + local + T * (3 * D * 10 + 2 * 10 + D) + D) + streams
    )


@torch.no_grad()
def test_um_21_temperature_of_a_model():
    """Cooling from outside changes outputs, no weight, no shape; a baked model has no temperature
    and equals the eager one."""
    model, x = redrawn(UniMixer(T, D, M)), draw(6, T, D)
    before, warm = copy.deepcopy(model.state_dict()), model(x)[0]
    set_temperature(model, 0.05)
    assert far(model(x)[0], warm) and all(
        torch.equal(v, before[k]) for k, v in model.state_dict().items() if not k.endswith('tau')
    )
    baked = bake(model)
    assert torch.equal(baked(x)[0], model(x)[0])
    with pytest.raises(ValueError, match='nothing to set'):
        set_temperature(baked, 1.0)


@torch.no_grad()
@pytest.mark.parametrize(
    'options',
    [
        dict(),
        dict(norm='post'),
        dict(hidden=8, n_expert=4, top_k=2),
        dict(lite=True, rank=2, n_basis=3),
    ],
)
def test_renamed_tokens(options):
    "Tokens renamed together with their weights: outputs renamed and nothing else."
    model, x, order = redrawn(UniMixer(T, D, M, block=2, **options)), draw(6, T, D), [2, 0, 1]
    blocks = [2 * t + i for t in order for i in range(2)]
    renamed = copy.deepcopy(model)
    for block in renamed.body.blocks:
        m, E = block.mix.mixing.mixing, options.get('n_expert')
        if options.get('lite'):
            m.left.copy_(m.left[blocks])
            m.right.copy_(m.right[:, blocks])
            m.omega.copy_(m.omega[blocks])
        else:
            m.global_score.copy_(m.global_score[blocks][:, blocks])
            m.local_score.copy_(m.local_score[blocks])
        experts = [E * t + i for t in order for i in range(E)] if E else None
        for name, p in block.feed.named_parameters():
            p.copy_(p[experts if name.startswith('experts') else order])
    assert close(renamed(x[:, order])[0], model(x)[0][:, order]) and far(
        model(x[:, order])[0], model(x)[0][:, order]
    )


@torch.no_grad()
def test_um_21_norms():
    """SiameseNorm has two streams that add up at the end, post-norm one; neither can stand for the
    other."""
    x = draw(6, T, D)
    two, one = (redrawn(UniMixer(T, D, M, block=3, norm=norm)) for norm in ('siamese', 'post'))
    assert isinstance(two.body, SiameseNorm) and isinstance(one.body, PostNorm)
    assert [n for n, _ in two.named_parameters() if 'pre_norm' in n or 'output_norm' in n]
    assert not [n for n, _ in one.named_parameters() if 'pre_norm' in n or 'output_norm' in n]
    z = x
    for block, norm in zip(one.body.blocks, one.body.post_norm, strict=True):
        z = norm(z + block(z)[0])
    assert close(one(x)[0], z)


def test_rankers_are_known_without_an_import():
    "All eight stand in the table and are built in a process that has imported one module only."
    code = (
        "from delphi_traj.data.interactions import Field\n"
        "from delphi_traj.models.rankers import RANKERS, make_ranker\n"
        "fields = [Field('a', size=5), Field('b', size=5)]\n"
        "print([make_ranker(n, fields, 2, 8, 1, embedding=4).parameter_count() > 0\n"
        "       for n in RANKERS], list(RANKERS))"
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    names = [
        'unimixer',
        'unimixer_lite',
        'hetero_attention',
        'hiformer',
        'fat',
        'rankmixer',
        'tokenmixer_large',
        'wukong',
    ]
    assert run.stdout.strip() == f'{[True] * 8} {names}'


def test_refusals_and_blocks():
    "Only B | T D is asked for; the default block multiplies least."
    for block in (1, 2, 3, 4, 6, 12):
        assert UniMixer(T, D, 1, block=block)(torch.zeros(2, T, D))[0].shape == (2, T, D)
    for L in range(1, 60):
        assert L**2 / best_block(L) + L * best_block(L) == min(
            L**2 / B + L * B for B in range(1, L + 1) if L % B == 0
        )
    assert UniMixer(5, 4, 1)(torch.zeros(2, 5, 4))[0].shape == (2, 5, 4)  # T does not divide D
    for options, said in (
        (dict(block=5), '12 coordinates, which do not cut into blocks of 5'),
        (dict(block=0), 'blocks of 0'),
        (dict(norm='pre'), "'siamese' or 'post'"),
        (dict(norm='post', depth_scale=True), "norm='siamese'"),
        (dict(norm='post', input_norm=True), "norm='siamese'"),
        (dict(top_k=2), 'without n_expert'),
        (dict(shared=False), 'without n_expert'),
        (dict(doubly_stochastic=False, tau=0.5), 'no effect'),
    ):
        with pytest.raises(ValueError, match=said):
            UniMixer(T, D, 1, **options)
    with pytest.raises(ValueError, match='depth=-1'):
        UniMixer(T, D, -1)
    with pytest.raises(TypeError, match='rank'):
        UniMixer(T, D, 1, rank=2)


@pytest.mark.parametrize(
    'options',
    [
        dict(),
        dict(norm='post'),
        dict(n_expert=4, top_k=2),
        dict(input_norm=True, depth_scale=True, tau=0.05),
        dict(symmetric=False),
    ],
)
@pytest.mark.parametrize('name', ['unimixer', 'unimixer_lite'])
def test_ranker_trains_in_bf16_and_is_repeatable(name, options):
    """Autocast keeps loss and gradients finite and near float32; prediction is repeatable and a row
    does not depend on the others."""
    torch.manual_seed(0)
    model, (ids, numbers) = make_ranker(name, FIELDS, 3, 8, M, embedding=4, **options), rows()
    numbers, label = numbers.float(), (torch.arange(16) % 2).float()
    with torch.autocast('cpu', torch.bfloat16):
        loss = model.loss(ids, numbers, label)
    loss.total.backward()
    assert loss.total.isfinite() and all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )
    if 'n_expert' not in options:
        # a router may choose otherwise
        assert abs(loss.total - model.loss(ids, numbers, label).total) < 0.05
    p = model.predict(ids, numbers)
    assert (
        torch.equal(p, model.predict(ids, numbers)) and model.training and ((0 < p) & (p < 1)).all()
    )
    assert close(
        torch.cat([model.predict(ids[i : i + 5], numbers[i : i + 5]) for i in range(0, 16, 5)]),
        p,
        1e-5,
    )


@torch.no_grad()
def test_ranker_head():
    """The mean over tokens, one linear output; cross-entropy or squared error; weights counted with
    and without tables."""
    ids, numbers = rows()
    for target in ('binary', 'real'):
        m = redrawn(make_ranker('unimixer', FIELDS, 3, D, M, embedding=2, target=target))
        x, _ = m.backbone(m.tokenizer(ids, numbers))
        out = torch.tensor(
            [
                sum(float(x[b, :, d].mean()) * float(m.head.weight[0, d]) for d in range(D))
                + float(m.head.bias)
                for b in range(16)
            ],
            dtype=torch.float64,
        )
        label = (torch.arange(16) % 2).double()
        assert close(m(ids, numbers), out)
        p = 1 / (1 + (-out).exp())
        expected = (
            (out - label).square()
            if target == 'real'
            else -(label * p.log() + (1 - label) * (1 - p).log())
        )
        loss = m.loss(ids, numbers, label)
        assert (
            close(loss.total, expected.mean())
            and loss.count == 16
            and close(m.predict(ids, numbers), out if target == 'real' else p)
        )
        assert m.parameter_count(embeddings=True) == count(m) == m.parameter_count() + 25 * 2
    with pytest.raises(ValueError, match="'binary' or 'real'"):
        make_ranker('unimixer', FIELDS, 3, D, M, embedding=2, target='count')
    with pytest.raises(ValueError, match='no ranker'):
        make_ranker('unimixr', FIELDS, 3, D, M)
    assert RANKERS['unimixer_lite'](T, D, 1).body.blocks[0].mix.mixing.mixing.left.shape == (4, 16)


@pytest.mark.slow
def test_ranker_exports():
    """A baked ranker with experts as an exported program, at another batch size than it was traced
    with."""
    m, (ids, numbers) = (
        bake(make_ranker('unimixer', FIELDS, 3, D, 1, embedding=2, n_expert=2)).eval(),
        rows(),
    )
    batch = torch.export.Dim('b')
    program = torch.export.export(
        m, (ids, numbers.float()), dynamic_shapes=({0: batch}, {0: batch})
    ).module()
    assert close(program(ids[:5], numbers[:5].float()), m(ids[:5], numbers[:5].float()), 1e-6)
