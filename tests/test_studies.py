"""The saved results of the slow studies are whole, and are what their notebooks say that they
are."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from delphi_traj.data.clicks import simulate_interactions
from delphi_traj.data.interactions import Interactions
from delphi_traj.data.public_tables import MOVIELENS_FIELDS
from delphi_traj.evaluation.ranking import count_flops
from delphi_traj.layers.stages import MIXERS
from delphi_traj.layers.tokens import FeatureTokenizer
from delphi_traj.models.rankers import make_ranker
from delphi_traj.training.studies import missing_jobs

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / 'data' / 'results'


def cells(name):
    "Code cells of a notebook."
    text = (ROOT / 'nbs' / f'{name}.ipynb').read_text(encoding='utf8')
    return [''.join(c['source']) for c in json.loads(text)['cells'] if c['cell_type'] == 'code']


def defined(name, *functions):
    "Some functions and constants of a study, run without the rest of it."
    scope = dict(np=np, pd=pd, torch=torch)
    for source in cells(name):
        wanted = [
            node
            for node in ast.parse(source).body
            if getattr(node, 'name', None) in functions
            or isinstance(node, ast.Assign)
            and any(getattr(t, 'id', None) in functions for t in node.targets)
        ]
        for node in wanted:
            exec(ast.unparse(node), scope)
    return [scope[f] for f in functions]


def test_movielens_is_whole():
    "One row for every job, none twice, and no number outside its range."
    MODELS, jobs, *_ = defined('62_movielens', 'MODELS', 'jobs', 'PARTS', 'SIZES', 'VARIANTS')
    found, wanted = pd.read_csv(RESULTS / 'movielens.csv'), pd.DataFrame(jobs())
    keys = ['model', 'variant', 'seed']
    assert not wanted.duplicated().any() and not found.duplicated(keys).any()
    assert set(map(tuple, found[keys].to_numpy())) == set(map(tuple, wanted.to_numpy()))
    assert (
        found[['auc', 'user_auc', 'user_auc_weighted', 'tuning_auc']]
        .apply(lambda c: c.between(0.6, 0.9))
        .all(None)
    )
    assert set(found.model) == set(MODELS) and len(MODELS) == 8
    full = found[found.variant == 'full']
    assert (full.groupby('model').seed.nunique() == 5).all() and full.parameters.max() <= 150_000
    assert full.groupby('model').parameters.nunique().eq(1).all()


def test_um_25():
    """Both questions have three seeds on each side, and the order of the fields changes which of
    them meet in a token, and nothing else."""
    found = pd.read_csv(RESULTS / 'movielens.csv')
    for model in ('unimixer', 'rankmixer'):
        for variant in ('full', 'shuffled fields', 'two stages'):
            assert set(found[(found.model == model) & (found.variant == variant)].seed) >= {0, 1, 2}
    fields = [replace(f, size=5) for f in MOVIELENS_FIELDS]
    names = [f.name for f in fields]
    ordered = FeatureTokenizer(fields, 8, 16)
    shuffled = FeatureTokenizer(fields, 8, 16, order=names[::-1])
    assert sum(p.numel() for p in ordered.parameters()) == sum(
        p.numel() for p in shuffled.parameters()
    )
    reach = []
    for tokenizer in (ordered, shuffled):
        base = torch.zeros(1, len(fields), dtype=torch.long)
        first = torch.zeros(1, len(fields), dtype=torch.long)
        first[0, 0] = 1
        reach.append(
            (tokenizer(base, torch.zeros(1, 0)) != tokenizer(first, torch.zeros(1, 0)))
            .any(-1)[0]
            .nonzero()[:, 0]
            .tolist()
        )
    assert reach[0][0] == 0 and reach[1][-1] == 7
    # domains interleaved: without an order they are put together again
    mixed = fields[::2] + fields[1::2]
    domain = {f.name: f.domain for f in fields}
    met = [domain[name] for name in FeatureTokenizer(mixed, 8, 16).order]
    assert met == sorted(met, key=['user', 'item', 'context'].index) != [f.domain for f in mixed]


def test_um_22_sweeps():
    "Lite over basis, rank and depth, three seeds each, with as many weights as the shapes say."
    found = pd.read_csv(RESULTS / 'movielens.csv')
    for variant in ('b = 2', 'b = 8', 'r = 2', 'r = 64', 'depth = 1', 'depth = 4'):
        assert set(found[(found.model == 'unimixer_lite') & (found.variant == variant)].seed) >= {
            0,
            1,
            2,
        }
    size = found[found.model == 'unimixer_lite'].groupby('variant').parameters.first()
    n, B = 8 * 16 // 8, 8  # blocks of the flattened tokens and their width; two layers
    assert size['b = 8'] - size['b = 2'] == 2 * 6 * (B**2 + n)
    assert size['r = 64'] - size['r = 2'] == 2 * 62 * 2 * n


@pytest.mark.parametrize(
    'study, shape',
    [
        ('movielens', dict(n_token=8, width=16, depth=2)),
        ('scaling', dict(n_token=8, width=8, depth=2)),
    ],
)
def test_saved_operations_are_those_of_the_models(study, shape):
    "The saved counts of a forward pass are today's, whatever the size of the tables of ids."
    found = pd.read_csv(RESULTS / f'{study}.csv')
    if study == 'movielens':
        (models,) = defined('62_movielens', 'MODELS')
        fields = [replace(f, size=5) for f in MOVIELENS_FIELDS]
        found, options = found[found.variant == 'full'], models
    else:
        sim = simulate_interactions(60)
        fields = sim.encode(train=np.arange(60)).fields
        found, options = found[found.model == 'hetero_attention'], dict(hetero_attention={})
    for name, own in options.items():
        model = make_ranker(name, fields, **shape, **own)
        ids = np.zeros((3, sum(f.kind == 'categorical' for f in fields)), dtype=int)
        dense = np.zeros((3, len(fields) - ids.shape[1]), dtype=np.float32)
        rows = Interactions(tuple(fields), ids, dense, np.zeros(3, dtype=np.float32))
        assert found[found.model == name].flops.unique().tolist() == [
            count_flops(model, rows, 256)
        ], name
        assert found[found.model == name].parameters.unique().tolist() == [
            model.parameter_count()
        ], name


def test_the_study_of_the_mixing():
    "Five seeds of four variants; flat weights end sharper, with faster scores sharper still."
    found = pd.read_csv(RESULTS / 'movielens_mixing.csv')
    assert len(found) == 20 and not found.duplicated(['variant', 'seed']).any()
    table = found.pivot(index='seed', columns='variant')
    assert table.start['full'].between(1 / 16, 0.08).all()
    assert (table.end['fast scores'] > 2 * table.end['full']).all()
    assert table.start['permutation start'].between(0.45, 0.55).all()


ROUNDS = ['TrajMixer v5', *(f'next token, {r} rounds' for r in (1, 4, 12))]
STAGES = [f'stage {m}' for m in MIXERS]
SAVED = {
    'movielens': defined('62_movielens', 'MODELS', 'jobs', 'PARTS', 'SIZES', 'VARIANTS')[1](),
    'movielens_mixing': defined('62_movielens', 'MIXING', 'mixing_jobs')[1],
    'rounds_and_heads': [dict(model=name) for name in ROUNDS + STAGES],
    'rounds_paired': [dict(seed=0, model=name) for name in ROUNDS[1:3]],
    'rounds_speed': [dict(model=name, round=r) for r in range(9) for name in ROUNDS],
    'stages_speed': [dict(model=name, round=r) for r in range(9) for name in STAGES],
}


@pytest.mark.parametrize('study', SAVED)
def test_a_saved_study_is_found_finished(study):
    "The runner finds a row for every job, misses one that is new, and changes no byte."
    path, jobs = RESULTS / f'{study}.csv', SAVED[study]
    before, new = path.read_bytes(), {name: 'new' for name in jobs[0]}
    assert missing_jobs(path, [*jobs, new]) == [new] and path.read_bytes() == before


@pytest.mark.parametrize('path', sorted(RESULTS.glob('*.csv')), ids=lambda p: p.stem)
def test_every_result_is_a_finished_table(path):
    "Ends with a line end, parses, has no duplicate columns and at least one row."
    text = path.read_bytes()
    assert text.endswith(b'\n')
    table = pd.read_csv(path)
    assert (
        len(table)
        and not table.columns.duplicated().any()
        and not any(c.startswith('Unnamed') for c in table.columns)
    )
