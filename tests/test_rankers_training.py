"""Training of rankers: the same seed gives the same bits, the temperature is on its line, and bad
rows are named."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from delphi_traj.data.interactions import Field, Interactions
from delphi_traj.layers.unimixing import BlockMixing, linear_temperature
from delphi_traj.models.rankers import make_ranker
from delphi_traj.training.devices import make_accelerator
from delphi_traj.training.rankers import (
    RankerOptions,
    batch_order,
    has_temperature,
    predict_interactions,
    ranker_loss,
    ranker_step,
    seeded,
    temperature_at,
    train_ranker,
    warm_start,
)

FIELDS = (
    Field('user', domain='user', size=12),
    Field('item', domain='item', size=9),
    Field('price', 'dense', 'item'),
)
SMALL = RankerOptions(batch_size=16, device='cpu')


def table(n=70, seed=0):
    "Rows whose label depends on the pair of ids."
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, f.size, n) for f in FIELDS[:2]], 1)
    label = (rng.random(n) < 0.2 + 0.6 * (ids.sum(1) % 2)).astype(np.float32)
    return Interactions(
        FIELDS, ids, rng.normal(size=(n, 1)).astype(np.float32), label, user=ids[:, 0]
    )


def ranker(seed=0, name='unimixer', **options):
    with seeded(seed):
        return make_ranker(name, FIELDS, 2, 8, 1, embedding=4, **options)


def noisy():
    "A ranker with dropout before its last layer."
    model = ranker()
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    return model


def bits(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_um_24():
    """Adam at .001 for every parameter, tables included: one step is torch's Adam, and no parameter
    is left out; then cold."""
    data, model, other = table(), ranker(), ranker()
    history = train_ranker(model, data, replace(SMALL, epochs=1, batch_size=70))
    optimiser = torch.optim.Adam(other.parameters(), lr=1e-3)
    at = next(iter(batch_order(70, 70, 1, 0))).numpy()
    columns = [torch.as_tensor(a[at]) for a in (data.categorical, data.dense, data.label)]
    loss = other.loss(*columns)
    loss.total.backward()
    optimiser.step()
    assert history.loss[0] == loss.total.item() and same(bits(model), bits(other))
    start = bits(ranker())
    for name, p in model.named_parameters():
        moved = (p - start[name]).abs().flatten().tolist()
        assert not moved or 0 < max(moved) < 1.01e-3, name  # Adam's first step is the rate
    assert RankerOptions().learning_rate == 1e-3 and RankerOptions().epochs == 2
    two = ranker()
    stages = warm_start(two, data, SMALL)
    assert stages.groupby('stage').tau.unique().map(list).tolist() == [[1.0], [0.05]]


def test_um_17_in_training():
    """The temperature of every step is on the line, is in the model when the step is made, and
    stays at the end's value."""
    data, seen = table(), []
    model = ranker()
    mixing = next(m for m in model.modules() if isinstance(m, BlockMixing))
    model.register_forward_pre_hook(lambda *_: seen.append(mixing.tau.item()))
    model.loss = lambda *columns, loss=model.loss: (seen.append(mixing.tau.item()), loss(*columns))[
        1
    ]
    history = train_ranker(model, data, replace(SMALL, tau_end=0.05, tau_steps=6))
    want = [linear_temperature(j, 6, 1.0, 0.05) for j in range(10)]
    assert (
        history.tau.tolist() == want
        and np.allclose(seen, want, atol=1e-7)
        and want[6:] == [0.05] * 4
    )
    assert abs(mixing.tau.item() - 0.05) < 1e-7
    default = train_ranker(ranker(), data, replace(SMALL, tau_end=0.05)).tau
    assert (
        default.tolist() == [linear_temperature(j, 9, 1.0, 0.05) for j in range(10)]
        and default.iloc[-1] == 0.05
    )
    assert temperature_at(0, 1, replace(SMALL, tau_end=0.05)) == 1.0


def test_same_seed_same_bits():
    """Same seed, same weights; another order of rows, other weights; torch's own generator is left
    as it was."""
    data = table()
    before = torch.get_rng_state()
    runs = [
        (model, train_ranker(model, data, replace(SMALL, seed=s, tau_end=0.05)))
        for s in (0, 0, 1)
        for model in [ranker()]
    ]
    assert torch.equal(torch.get_rng_state(), before)
    (a, one), (b, two), (c, _) = runs
    assert same(bits(a), bits(b)) and one.equals(two) and not same(bits(a), bits(c))
    torch.rand(5)
    d = ranker()
    train_ranker(d, data, replace(SMALL, tau_end=0.05))
    assert same(bits(a), bits(d))


def test_dropout_is_seeded_too():
    "Noise that a model draws in training comes from the seed, whatever was drawn before."
    models = []
    for drawn in (0, 7):
        torch.rand(drawn)
        models.append(noisy())
        train_ranker(models[-1], table(), SMALL)
    assert same(bits(models[0]), bits(models[1]))


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 3), st.integers(0, 1000))
def test_an_epoch_is_every_row_once(n, size, epochs, seed):
    "Whatever the sizes: each epoch holds every row once, all batches are full but the last."
    batches = [b.tolist() for b in batch_order(n, size, epochs, seed)]
    per = math.ceil(n / size)
    assert len(batches) == per * epochs
    for e in range(epochs):
        mine = batches[e * per : (e + 1) * per]
        assert sorted(sum(mine, [])) == list(range(n)) and all(len(b) == size for b in mine[:-1])


def test_epochs_and_seeds_differ():
    def flat(seed):
        return [b.tolist() for b in batch_order(40, 40, 2, seed)]

    assert flat(0)[0] != flat(0)[1] and flat(0) == flat(0) and flat(0) != flat(1)


def test_validation_is_a_look_only():
    """Measuring between epochs changes no weight and leaves the last row of each epoch with a
    number."""
    data, model, quiet = table(), noisy(), noisy()
    history = train_ranker(model, data, SMALL, valid=table(seed=1))
    plain = train_ranker(quiet, data, SMALL)
    assert same(bits(model), bits(quiet)) and history.drop(columns='valid_loss').equals(plain)
    assert history.valid_loss.notna().to_numpy().nonzero()[0].tolist() == [4, 9]
    assert abs(history.valid_loss.iloc[-1] - ranker_loss(model, table(seed=1), batch_size=3)) < 1e-6
    assert not model.training


def test_predictions_do_not_depend_on_the_batch():
    data, model = table(), ranker()
    p = predict_interactions(model, data, 7)
    with torch.no_grad():
        want = model(torch.as_tensor(data.categorical), torch.as_tensor(data.dense)).sigmoid()
    assert p.dtype == np.float64 and np.abs(p - want.numpy()).max() < 1e-6 and model.training
    assert (
        np.abs(p - predict_interactions(model, data)).max() < 1e-6
        and len(predict_interactions(model, data[:0])) == 0
    )


def test_warm_start_is_two_trainings():
    """The second stage is a training from the weights of the first, at .05, with a new optimiser;
    rows carry the stage."""
    data, model, by_hand, rows = table(), ranker(), ranker(), []
    history = warm_start(model, data, SMALL, on_row=rows.append)
    train_ranker(by_hand, data, SMALL)
    hot = bits(by_hand)
    train_ranker(by_hand, data, replace(SMALL, tau_start=0.05, tau_end=0.05))
    assert same(bits(model), bits(by_hand)) and not same(hot, bits(by_hand))
    assert [r['stage'] for r in rows] == history.stage.tolist() == [0] * 10 + [1] * 10


def test_balance_reaches_the_optimiser():
    """A heavier balance loss gives other router weights, and the loss that is minimised is the sum
    of its parts."""
    data = table()
    runs = {w: ranker(n_expert=4, top_k=1, balance_weight=w) for w in (0.0, 10.0)}
    history = {w: train_ranker(m, data, SMALL) for w, m in runs.items()}
    routers = [
        next(p for n, p in m.named_parameters() if n.endswith('router')) for m in runs.values()
    ]
    assert not torch.equal(*routers)
    h = history[10.0]
    assert (
        (h.balance > 1).all()
        and np.allclose(h.loss, h.label + h.balance, atol=1e-5)
        and (history[0.0].balance == 0).all()
    )


def test_models_without_temperature():
    "The same options train a model that has none; its temperature is NaN."
    model = ranker(doubly_stochastic=False)
    history = train_ranker(model, table(), replace(SMALL, tau_end=0.05))
    assert not has_temperature(model) and has_temperature(ranker()) and history.tau.isna().all()


def test_a_real_target():
    data = table()
    data.label = data.label * 3 - 1.5
    model = ranker(target='real')
    history = train_ranker(model, data, replace(SMALL, epochs=30, learning_rate=1e-2))
    assert history.loss.iloc[-5:].mean() < 0.8 * history.loss.iloc[:5].mean()
    assert predict_interactions(model, data).min() < 0


@pytest.mark.parametrize(
    'bad, word',
    [
        (dict(label=(13, 2.0)), 'row 13: found label 2.0; expected 0 or 1'),
        (dict(label=(0, np.nan)), 'row 0: found label nan; expected 0 or 1'),
        (
            dict(label=(69, 0.5)),
            r"row 69: found label 0.5; expected 0 or 1 for target='binary'; 1 such",
        ),
    ],
)
def test_a_label_that_is_none(bad, word):
    "The row is named, in the training part and in the validation part, before a weight moves."
    data, model = table(), ranker()
    row, value = bad['label']
    data.label[row] = value
    start = bits(model)
    for call in (
        lambda: train_ranker(model, data, SMALL),
        lambda: train_ranker(model, table(), SMALL, valid=data),
    ):
        with pytest.raises(ValueError, match=word):
            call()
    assert same(start, bits(model))


def test_other_fields_are_refused():
    "A table encoded with other maps has other ids; no rows at all make no training."
    other = replace(table(), fields=(FIELDS[0], Field('item', domain='item', size=10), FIELDS[2]))
    with pytest.raises(ValueError, match='encode them with the maps'):
        train_ranker(ranker(), other, SMALL)
    with pytest.raises(ValueError, match='found no rows'):
        train_ranker(ranker(), table()[:0], SMALL)


def test_a_loss_that_is_no_number_names_its_step():
    "The step is named and the weights of the step before are kept."
    data, model = table(), ranker()
    data.dense[:] = 1
    rows = []
    bad = list(batch_order(70, 16, 2, 0))[3][0].item()
    data.dense[bad] = np.inf
    with pytest.raises(FloatingPointError, match='step 3: loss nan'):
        train_ranker(model, data, SMALL, on_row=rows.append)
    assert len(rows) == 3 and all(p.isfinite().all() for p in model.parameters())


def test_a_gradient_that_is_no_number_is_caught():
    model = ranker()
    model.head.weight.register_hook(lambda g: g * math.nan)
    accelerator = make_accelerator(SMALL)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    columns = [torch.as_tensor(a) for a in (table().categorical, table().dense, table().label)]
    with pytest.raises(FloatingPointError, match='step 5: loss .*gradient norm nan'):
        ranker_step(accelerator, model, optimiser, columns, 5)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_large_gradient_is_not_clipped():
    "The norm is measured; Adam's moments hold the gradient itself."
    model = ranker()
    columns = [torch.as_tensor(a) for a in (table().categorical, table().dense, table().label)]
    model.loss(*columns).total.backward()
    want = [p.grad.clone() for p in model.parameters()]
    ranker_step(
        make_accelerator(SMALL), model, torch.optim.SGD(model.parameters(), lr=0.0), columns, 0
    )
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), want, strict=True))


@pytest.mark.parametrize(
    'given, word',
    [
        (dict(epochs=0), 'epochs=0'),
        (dict(batch_size=1.5), 'batch_size=1.5'),
        (dict(seed=-1), 'seed=-1'),
        (dict(tau_steps=0), 'tau_steps=0'),
        (dict(learning_rate=0), 'learning_rate=0'),
        (dict(learning_rate=math.nan), 'learning_rate=nan'),
        (dict(tau_end=0.0), 'tau_end=0.0'),
        (dict(tau_start=0.05, tau_end=1.0), 'the temperature falls'),
    ],
)
def test_options_are_checked(given, word):
    with pytest.raises(ValueError, match=word):
        RankerOptions(**given)
