"""One test for each statement of the UniMixer document about permutations, Kronecker products and
Sinkhorn."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from delphi_traj.layers.permutation import (
    doubly_stochastic_residual,
    generalized_kronecker,
    group_permutation,
    sinkhorn,
    token_mixer,
    token_unmixer,
    unimix,
)
from delphi_traj.layers.unimixing import constrain

# tokens, heads, width of a token
SHAPES = [(2, 2, 6), (3, 4, 8), (4, 3, 6), (16, 8, 8), (1, 5, 5), (5, 1, 3)]


def token_permutation(t, h, d):
    "G kron I, the matrix of the TokenMixer on flattened tokens (UM.5, UM.6)."
    return torch.kron(group_permutation(t, h), torch.eye(d // h))


APPENDIX = [1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b, tol=1e-12):
    assert a.shape == b.shape and (a - b).abs().max() <= tol


def symmetric_scores(n):
    return (normal(n, n) + normal(n, n).T) / 2


@pytest.mark.parametrize('t, h, d', SHAPES)
def test_um_2(t, h, d):
    x, c = normal(t, d), d // h
    S = torch.stack([torch.cat([x[j, i * c : (i + 1) * c] for j in range(t)]) for i in range(h)])
    assert torch.equal(token_mixer(x, h), S) and S.shape == (h, t * d // h)
    assert torch.equal(token_unmixer(S, t), x)
    assert torch.equal(
        token_mixer(normal(2, 3, t, d), h)[1, 2], token_mixer(normal(2, 3, t, d)[1, 2], h)
    )
    with pytest.raises(ValueError, match='does not divide'):
        token_mixer(normal(2, 6), 4)


@pytest.mark.parametrize('t, h, d', SHAPES)
def test_um_5(t, h, d):
    x = normal(t, d)
    W = token_permutation(t, h, d).double()
    assert W.shape == (t * d, t * d) and torch.equal(
        (W @ x.flatten()).reshape(h, -1), token_mixer(x, h)
    )
    twelve = torch.arange(1, 13.0)
    assert (
        (token_permutation(2, 2, 6) @ twelve).tolist()
        == token_mixer(twelve.reshape(2, 6), 2).flatten().tolist()
        == APPENDIX
    )


@pytest.mark.parametrize('t, h, d', SHAPES)
def test_um_6(t, h, d):
    G = torch.zeros(t * h, t * h)
    for j in range(t):
        for i in range(h):
            G[i * t + j, j * h + i] = 1
    assert torch.equal(group_permutation(t, h), G)
    assert torch.equal(token_permutation(t, h, d), torch.kron(G, torch.eye(d // h)))
    assert group_permutation(2, 2).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
    ]


def test_um_7():
    for t in range(1, 9):
        for h in range(1, 9):
            G = group_permutation(t, h)
            assert (
                G.sum(0).unique().tolist() == G.sum(1).unique().tolist() == [1]
                and G.count_nonzero() == t * h
            )
            assert torch.equal(G, G.T) == (t == h or min(t, h) == 1)
            assert doubly_stochastic_residual(G) == 0
    for (t, h), k in {(2, 2): 2, (4, 4): 2, (2, 3): 4, (2, 4): 3, (4, 8): 5, (16, 8): 7}.items():
        powers = [torch.linalg.matrix_power(group_permutation(t, h), i) for i in range(1, k + 1)]
        assert [torch.equal(p, torch.eye(t * h)) for p in powers] == [False] * (k - 1) + [True]


def test_um_7_residual():
    """The distance from doubly stochastic is the largest of all row and column sums, and is not
    always 0."""
    off = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]], dtype=torch.float64)
    assert abs(doubly_stochastic_residual(off).item() - 0.25) < 1e-12  # column 1 sums to 1.25
    assert abs(doubly_stochastic_residual(off.T).item() - 0.25) < 1e-12
    assert abs(doubly_stochastic_residual(2 * group_permutation(2, 3)).item() - 1) < 1e-6
    both = doubly_stochastic_residual(torch.stack([off, group_permutation(3, 1).double()]))
    assert both.shape == (2,) and abs(both[0] - 0.25) < 1e-12 and both[1] == 0


def test_um_8():
    W_G, W_B = normal(5, 4), normal(4, 3, 2, seed=1)
    W = generalized_kronecker(W_G, W_B)
    assert W.shape == (15, 8)
    for i in range(5):
        for j in range(4):
            close(W[i * 3 : i * 3 + 3, j * 2 : j * 2 + 2], W_G[i, j] * W_B[j])


class Largest(TorchDispatchMode):
    "The size of the largest tensor that any operation makes."

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max(
            [self.numel]
            + [
                o.numel()
                for o in (out if isinstance(out, (tuple, list)) else [out])
                if torch.is_tensor(o)
            ]
        )
        return out


def test_um_9():
    x, W_G, W_B = (
        a.requires_grad_() for a in (normal(2, 48), normal(8, 8, seed=1), normal(8, 6, 6, seed=2))
    )
    with Largest() as largest:
        y = unimix(x, W_G, W_B)
    dense, wrong = (x @ generalized_kronecker(W_G, w).T for w in (W_B.mT, W_B))
    close(y, dense)
    assert (y - wrong).abs().max() > 1 and largest.numel < 48 * 48
    for a, b in zip(
        *[torch.autograd.grad(out, (x, W_G, W_B), normal(2, 48, seed=3)) for out in (y, dense)],
        strict=True,
    ):
        close(a, b, 1e-11)
    for t, h, d in SHAPES:
        eye = torch.eye(d // h, dtype=torch.float64).repeat(t * h, 1, 1)
        assert torch.equal(
            unimix(normal(t * d), group_permutation(t, h).double(), eye),
            token_mixer(normal(t * d).view(t, d), h).flatten(),
        )
    with pytest.raises(ValueError, match='expected width 6'):
        unimix(normal(7), normal(2, 2), normal(2, 3, 3))


def test_um_10():
    two = torch.tensor([[1.0, 0], [0, 0]], dtype=torch.float64)
    for symmetric in (False, True):
        P, residual = sinkhorn(two, 100, symmetric=symmetric)
        # rounding of float64 sums
        assert abs(P[0, 0].item() - 0.6224593312) < 1e-10 and residual < 1e-12
        # without symmetry in the scores
        P, residual = sinkhorn(normal(3, 6, 6), 2000, symmetric=symmetric)
        assert residual.shape == (3,) and residual.max() < 1e-12 and P.min() > 0
    assert torch.equal(P, P.mT)
    close(P, sinkhorn((normal(3, 6, 6) + normal(3, 6, 6).mT) / 2, 2000)[0])
    # 20 sweeps are not enough, and it says so
    P, residual = sinkhorn(symmetric_scores(8) / 0.05, 20)
    assert abs(residual.item() - 0.268) < 1e-3 and abs((P - P.T).abs().max().item() - 0.216) < 1e-3
    P, residual = sinkhorn(symmetric_scores(128) / 0.05, 20, symmetric=True)
    assert abs(residual.item() - 0.398) < 1e-3 and torch.equal(P, P.T)
    for symmetric in (False, True):  # it stops as soon as it may
        assert 1e-9 < sinkhorn(symmetric_scores(8), 1000, tol=1e-6, symmetric=symmetric)[1] <= 1e-6


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('symmetric', [False, True])
def test_um_10_is_finite_and_wide(dtype, symmetric):
    W = normal(2, 32, 32).to(dtype).requires_grad_()
    with torch.autocast('cpu', torch.bfloat16):
        P, residual = sinkhorn(W / 0.05, symmetric=symmetric)
    P.square().sum().backward()
    assert (
        P.dtype == torch.float32
        and P.isfinite().all()
        and W.grad.isfinite().all()
        and residual.isfinite().all()
    )
    wide = sinkhorn((W.detach() / 0.05).double(), symmetric=symmetric)[0]
    assert (P - wide).abs().max() < 1e-4


def test_um_11():
    def applied(tau):
        return constrain(symmetric_scores(8), tau, True, True, 2000)

    size = [(1 / applied(tau).square().sum(-1)).mean().item() for tau in (20, 1, 0.3, 0.1, 0.05)]
    assert size == sorted(size, reverse=True) and size[0] > 7.9 and size[-1] < 2.2
    # the temperature itself, not a power of it
    close(applied(0.25), sinkhorn(symmetric_scores(8) / 0.25, 2000, symmetric=True)[0], 1e-9)
    assert sinkhorn(torch.full((5, 5), 7.0))[0].sub(1 / 5).abs().max() < 1e-6
    cycle = 1 - torch.eye(3, dtype=torch.float64)
    assert abs(sinkhorn(cycle / 0.05)[0][0, 1].item() - 0.49999999948) < 5e-12
    # the limit of [[20, 0], [0, 0]]
    moved = torch.tensor([[10.0, 0], [0, 10]], dtype=torch.float64)
    assert abs(sinkhorn(moved, 1)[0][0, 0].item() - 1 / (1 + math.exp(-10))) < 1e-12


def test_um_23():
    tokens = 3 * normal(256, 16, 64, seed=3)
    W_Q, W_K = (normal(16, 64, 64, seed=s) / 8 for s in (4, 5))
    q, k = (torch.einsum('btd,tde->bte', tokens, w) for w in (W_Q, W_K))
    own, tied = ((q @ other.mT / 8).softmax(-1) for other in (k, q))

    def diagonal(A):
        return A.diagonal(dim1=-2, dim2=-1).mean().item()

    assert diagonal(tied) > 0.99 and abs(diagonal(own) - 1 / 16) < 0.01
    assert (
        (1 / own.square().sum(-1)).mean() < 2
        and own.sum(-2).amax(-1).mean() > 2.5
        and own.sum(-2).amin(-1).mean() < 0.1
    )
    assert group_permutation(4, 4).trace() / 16 == 0.25 and group_permutation(4, 4).sum(
        0
    ).unique().tolist() == [1]
