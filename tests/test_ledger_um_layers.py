"""One test for each statement of the UniMixer notes about the two mixing layers, by loops over the
formulas."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from delphi_traj.layers.stages import MIXERS, STAGE_DEFAULTS, make_stage, stage_options
from delphi_traj.layers.unimixing import (
    BlockMixing,
    PostNormResidual,
    UniMixing,
    UniMixingLite,
    bake,
    constrain,
    linear_temperature,
    set_temperature,
)

n, B, r, b = 5, 3, 2, 4  # blocks, their width, rank and basis of the small mixings below
SIZES = [(8, 6, 3, 4), (10, 12, 2, 4), (128, 6, 16, 4)]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b, tolerance=1e-10):
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance)


def count(module):
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def redrawn(module, seed=0, std=0.5):
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.copy_(std * torch.randn(p.shape, generator=generator))
    return module.double()


def mixed(x, G, local):
    """Every output coordinate as a double sum: y[i, c] = sum over j, k of G[i, j] x[j, k]
    local[j][k, c]."""
    y = torch.zeros_like(x)
    for i in range(n):
        for c in range(B):
            y[i * B + c] = sum(
                G[i][j] * x[j * B + k] * local[j][k][c] for j in range(n) for k in range(B)
            )
    return y


def scaled(scores, tau, sweeps=400):
    "exp(scores / tau), rows and columns divided by their sums in turn, in Python numbers."
    P = [[math.exp(v / tau) for v in row] for row in scores.tolist()]
    for _ in range(sweeps):
        P = [[v / sum(row) for v in row] for row in P]
        sums = [sum(column) for column in zip(*P, strict=True)]
        P = [[v / t for v, t in zip(row, sums, strict=True)] for row in P]
    return torch.tensor(P, dtype=torch.float64)


@torch.no_grad()
def test_um_9():
    """The pipeline is the double sum; n^2 + n B^2 weights; the Kronecker form needs the transposed
    local matrices."""
    m = redrawn(UniMixing(n, B, symmetric=False, doubly_stochastic=False))
    x = draw(n * B)
    assert close(m(x), mixed(x, m.global_score, m.local_score))
    blocks = [[m.global_score[i, j] * m.local_score[j].T for j in range(n)] for i in range(n)]
    assert close(m(x), torch.cat([torch.cat(row, 1) for row in blocks]) @ x)
    assert close(m(x.repeat(2, 3, 1)), m(x).repeat(2, 3, 1))
    for blocks, width, *_ in SIZES:
        assert count(UniMixing(blocks, width)) == blocks**2 + blocks * width**2
    assert count(UniMixing(128, 6)) == 20_992
    with pytest.raises(ValueError, match='5 blocks of 3 need 15'):
        m(draw(16))


@torch.no_grad()
def test_um_10():
    "Symmetrize, divide by tau, scale rows and columns to one; for W_G and for every W_B."
    m = redrawn(UniMixing(n, B, tau=0.5, n_iters=200))
    G, local = m.matrices()
    for W, S in [(G, m.global_score), *zip(local, m.local_score, strict=True)]:
        assert close(W, scaled((S + S.T) / 2, 0.5)) and close(W, W.T)
        assert close(W.sum(0), torch.ones(len(W)).double()) and close(
            W.sum(1), torch.ones(len(W)).double()
        )
    assert m.residual() < 1e-12
    x = draw(n * B)
    assert (
        close(m(x), mixed(x, G, local)) and close(m(x).sum(), x.sum()) and m(x).norm() <= x.norm()
    )


def test_um_11():
    """The closed form of 2 x 2, flat when hot, sharper when cold, and the 3-cycle that never
    becomes a permutation."""
    two = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    for tau in (4.0, 1.0, 0.5):
        assert close(
            constrain(two, tau, True, True, 200)[0, 0],
            torch.sigmoid(torch.tensor(1 / (2 * tau)).double()),
            1e-7,
        )
    scores = draw(6, 6)
    largest = [
        constrain(scores, tau, True, True, 2000).amax(1).mean() for tau in (100.0, 1.0, 0.2, 0.05)
    ]
    assert largest == sorted(largest) and abs(largest[0] - 1 / 6) < 0.01 and largest[-1] > 0.9
    ring = 1 - torch.eye(3).double()
    assert close(constrain(ring, 0.05, True, True, 50), ring / 2, 1e-8)


@pytest.mark.parametrize(
    'make', [UniMixing, lambda *a, **k: UniMixingLite(*a, r, b, **k)], ids=['full', 'lite']
)
@torch.no_grad()
def test_um_11_in_a_layer(make):
    "The layers of the models divide their scores by `tau` itself, and follow when it is set."
    m = redrawn(make(n, B, n_iters=400))
    for tau in (4.0, 0.5, 0.25):
        set_temperature(m, tau)
        G, local = m.matrices()
        S, Z = m.scores()
        assert close(G, scaled((S + S.T) / 2, tau), 1e-8)
        for W, z in zip(local, Z, strict=True):
            assert close(W, scaled((z + z.T) / 2, tau), 1e-8)
    flat, sharp = (set_temperature(m, tau) or m.matrices()[0].amax(1).mean() for tau in (1e4, 0.02))
    assert abs(flat - 1 / n) < 1e-3 and sharp > 0.6


@torch.no_grad()
def test_um_12():
    "The residual first, then the root mean square."
    m = redrawn(UniMixing(n, B))
    x = draw(4, n * B)
    s = x + m(x)
    block = PostNormResidual(nn.RMSNorm(n * B, eps=1e-12).double(), m)
    for got, row in zip(block(x), s.tolist(), strict=True):
        size = math.sqrt(sum(v * v for v in row) / len(row))
        assert close(got, torch.tensor([v / size for v in row]).double(), 1e-6)


@torch.no_grad()
def test_um_14():
    "Rank r before Sinkhorn, local scores from the basis; b B^2 + n b + 2 n r weights."
    m = redrawn(UniMixingLite(n, B, r, b, symmetric=False, n_iters=300))
    G, local = m.matrices()
    S = torch.tensor(
        [[sum(m.left[i, q] * m.right[q, j] for q in range(r)) for j in range(n)] for i in range(n)]
    )
    assert torch.linalg.matrix_rank(S) == r and close(G, scaled(S, 1))
    for i in range(n):
        assert close(local[i], scaled(sum(m.omega[i, k] * m.basis[k] for k in range(b)), 1))
    x = draw(n * B)
    assert close(m(x), mixed(x, G, local))
    for blocks, width, rank, basis in SIZES:
        assert (
            count(UniMixingLite(blocks, width, rank, basis))
            == basis * width**2 + blocks * basis + 2 * blocks * rank
        )
    assert count(UniMixingLite(128, 6, 16, 4)) == 4752
    assert 16 * (3 * 128 * 341 + 2 * 341 + 128) + count(UniMixingLite(1024, 2, 128, 2)) == 2_372_264


def test_um_17():
    """The schedule, exact at its end; a warm start loads the weights, then sets the temperature of
    every mixing."""
    for j, tau in ((0, 1), (25, 0.7625), (50, 0.525)):
        assert abs(linear_temperature(j, 100, 1.0, 0.05) - tau) < 1e-12
    assert (
        linear_temperature(100, 100, 1.0, 0.05) == linear_temperature(500, 100, 1.0, 0.05) == 0.05
    )
    hot = nn.Sequential(redrawn(UniMixing(n, B)), redrawn(UniMixingLite(n, B, r, b), 1))
    warm = copy.deepcopy(hot)
    warm.load_state_dict(hot.state_dict())
    set_temperature(warm, 0.05)
    assert all(
        abs(m.tau.item() - 0.05) < 1e-7 for m in warm.modules() if isinstance(m, BlockMixing)
    )
    assert all(m.tau == 1 for m in hot.modules() if isinstance(m, BlockMixing))
    assert all(torch.equal(p, q) for p, q in zip(hot.parameters(), warm.parameters(), strict=True))
    assert warm[0].matrices()[0].max() > hot[0].matrices()[0].max()
    x = draw(n * B)
    assert torch.equal(bake(warm)(x), warm(x)) and not close(warm(x), hot(x), 1e-3)
    with pytest.raises(ValueError, match='nothing to set'):
        set_temperature(bake(warm), 1.0)
    with pytest.raises(ValueError, match='must be positive'):
        set_temperature(warm, 0.0)


@pytest.mark.parametrize(
    'make', [UniMixing, lambda *a, **k: UniMixingLite(*a, r, b, **k)], ids=['full', 'lite']
)
def test_um_21(make):
    "Each switch takes off its own constraint and leaves the others."

    def of(**switches):
        return redrawn(make(n, B, n_iters=200, **switches))

    def asymmetry(m):
        return (m.matrices()[0] - m.matrices()[0].T).abs().max()

    def differ(m):
        return (m.matrices()[1] - m.matrices()[1][:1]).abs().max()

    assert asymmetry(of()) < 1e-12 and of().residual() < 1e-12 and differ(of()) > 0.01
    loose = of(symmetric=False)
    free = of(doubly_stochastic=False)
    one = of(block_specific=False)
    cold = of(tau=0.2)
    assert asymmetry(loose) > 0.01 and loose.residual() < 1e-10 and differ(loose) > 0.01
    assert asymmetry(free) < 1e-12 and free.residual() > 0.1 and differ(free) > 0.01
    assert (
        asymmetry(one) < 1e-12
        and one.residual() < 1e-12
        and differ(one) == 0
        and count(one) < count(of())
    )
    assert cold.matrices()[0].max() > of().matrices()[0].max() and count(cold) == count(
        of()
    ) == count(loose) == count(free)
    with pytest.raises(ValueError, match='no effect'):
        of(doubly_stochastic=False, tau=0.05)


@torch.no_grad()
def test_um_22():
    """Figure 5: L = 768, B = 6, r = 16; scores of rank 16, matrices of rank 128 and 6 at both
    temperatures."""
    generator = torch.Generator().manual_seed(0)
    m = UniMixingLite(128, 6, 16, 4, symmetric=False).double()
    for w, std in ((m.left, 0.1), (m.right, 0.1), (m.basis, 0.3), (m.omega, 0.3)):
        w.normal_(0, std, generator=generator)
    assert torch.linalg.matrix_rank(m.scores()[0]) == 16
    for tau, smallest in ((1.0, 2.0e-7), (0.05, 2.0e-4)):
        m.tau = torch.tensor(tau).double()
        G, local = m.matrices()
        assert (
            torch.linalg.matrix_rank(G) == 128
            and torch.linalg.matrix_rank(local).tolist() == [6] * 128
        )
        assert abs(torch.linalg.svdvals(G)[-1] / smallest - 1) < 0.05
    for basis, rank, depth in ((2, 2, 2), (8, 64, 4), (4, 16, 8)):
        stack = nn.Sequential(*[UniMixingLite(128, 6, rank, basis) for _ in range(depth)])
        assert count(stack) == depth * (basis * 36 + 128 * basis + 256 * rank)


NAMES = [
    'ffn',
    'swiglu',
    'traj_mixer_v1',
    'traj_mixer_v5',
    'token_mixer',
    'unimixing',
    'unimixing_lite',
]


def test_mixers_are_known_without_an_import():
    "All seven are built where one module was imported; a later import changes nothing."
    code = (
        "from delphi_traj.layers.stages import MIXERS, make_stage; before = dict(MIXERS)\n"
        "print([make_stage(name, 24, 4).training for name in MIXERS], list(MIXERS))\n"
        "import delphi_traj.layers.unimixing, delphi_traj.training.loop; assert MIXERS == before"
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    said = run.stdout
    assert said.strip() == f'{[True] * 7} {NAMES}'


# none of them a default
OTHER = dict(hidden_group=7, hidden=9, dropout=0.25, group_wise_layer_norm=True)


@pytest.mark.parametrize('option', OTHER)
@pytest.mark.parametrize('name', NAMES)
def test_an_option_is_used_or_refused(name, option):
    "An option of a mixer changes its stage; another one is an error, unless it is at its default."
    plain = make_stage(name, 24, 4)
    if option in stage_options(name):
        other = make_stage(name, 24, 4, **{option: OTHER[option]})
        assert (repr(other), count(other)) != (repr(plain), count(plain))
    else:
        said = f"{option}={OTHER[option]!r} was given, but the mixer '{name}' has no such option"
        with pytest.raises(ValueError, match=said):
            make_stage(name, 24, 4, **{option: OTHER[option]})
    for same in (STAGE_DEFAULTS[option], None):
        assert repr(make_stage(name, 24, 4, **{option: same})) == repr(plain)
    with pytest.raises(ValueError, match='widht=0 was given'):
        make_stage(name, 24, 4, widht=0)


def test_a_mixer_of_ones_own():
    "A builder put into the table is found, with the options of its signature, also as **."
    try:
        MIXERS['mine'] = lambda d_model, n_head, scale=1.0, dropout=0.0: nn.Dropout(dropout * scale)
        assert stage_options('mine') == ('scale', 'dropout')
        assert make_stage('mine', 8, 2, scale=0.5, dropout=0.5).p == 0.25
        with pytest.raises(ValueError, match='hidden=3'):
            make_stage('mine', 8, 2, hidden=3)
        MIXERS['all'] = lambda d_model, n_head, **options: nn.Linear(d_model, options['hidden'])
        assert make_stage('all', 8, 2, hidden=3).out_features == 3
    finally:
        for name in ('mine', 'all'):
            MIXERS.pop(name, None)


@pytest.mark.parametrize('name', ['token_mixer', 'unimixing', 'unimixing_lite'])
@torch.no_grad()
def test_stage_keeps_positions_apart(name):
    "One norm, one residual, and no way from one event to another."
    stage = redrawn(make_stage(name, 24, 4)).eval()
    x = draw(2, 6, 24)
    other = x.clone()
    other[:, 3] += draw(24, seed=1)
    assert ((stage(other) != stage(x)).any(-1).nonzero()[:, 1] == 3).all() and not close(
        stage(other), stage(x), 1e-3
    )
    stage.branch.output_proj.zero_()
    assert torch.equal(stage(x), x)


def test_baked_and_exported_equal_eager():
    "The matrices of training are those of inference."
    model = PostNormResidual(nn.RMSNorm(n * B), UniMixingLite(n, B, r, b, tau=0.05))
    x, fixed = torch.randn(4, n * B), bake(model)
    assert torch.equal(fixed(x), model(x))
    assert (torch.export.export(fixed, (x,)).module()(x) - model(x)).abs().max() < 1e-6
