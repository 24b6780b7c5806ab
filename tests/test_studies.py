"""The saved results of the slow studies are whole, and are what their notebooks say that they are."""
import ast
from dataclasses import replace
from pathlib import Path
import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from delphi_traj.data.interactions import MOVIELENS_FIELDS
from delphi_traj.models.unimixer import FeatureTokenizer

ROOT = Path(__file__).parent.parent
RESULTS = ROOT/'data'/'results'


def cells(name):
    "Code cells of a notebook."
    return [c.source for c in nbformat.read(ROOT/'nbs'/f'{name}.ipynb', 4).cells if c.cell_type == 'code']


def defined(name, *functions):
    "Some functions and constants of a study, run without the rest of it."
    scope = dict(np=np, pd=pd, torch=torch)
    for source in cells(name):
        wanted = [node for node in ast.parse(source).body if getattr(node, 'name', None) in functions
                  or isinstance(node, ast.Assign) and any(getattr(t, 'id', None) in functions for t in node.targets)]
        for node in wanted: exec(ast.unparse(node), scope)
    return [scope[f] for f in functions]


def test_movielens_is_whole():
    "One row for every job, none twice, and no number outside its range."
    MODELS, jobs = defined('52_movielens', 'MODELS', 'jobs')
    found, wanted = pd.read_csv(RESULTS/'movielens.csv'), pd.DataFrame(jobs())
    keys = ['model', 'variant', 'seed']
    assert not wanted.duplicated().any() and not found.duplicated(keys).any()
    assert set(map(tuple, found[keys].to_numpy())) == set(map(tuple, wanted.to_numpy()))
    assert found[['auc', 'user_auc', 'user_auc_weighted', 'tuning_auc']].apply(lambda c: c.between(.6, .9)).all(None)
    assert set(found.model) == set(MODELS) and len(MODELS) == 8
    full = found[found.variant == 'full']
    assert (full.groupby('model').seed.nunique() == 5).all() and full.parameters.max() <= 150_000
    assert full.groupby('model').parameters.nunique().eq(1).all()


def test_um_25():
    "Both questions have three seeds on each side, and the order of the fields changes which of them meet in a token, and nothing else."
    found = pd.read_csv(RESULTS/'movielens.csv')
    for model in ('unimixer', 'rankmixer'):
        for variant in ('full', 'shuffled fields', 'two stages'):
            assert set(found[(found.model == model) & (found.variant == variant)].seed) >= {0, 1, 2}
    fields = [replace(f, size=5) for f in MOVIELENS_FIELDS]
    names = [f.name for f in fields]
    ordered, shuffled = FeatureTokenizer(fields, 8, 16), FeatureTokenizer(fields, 8, 16, order=names[::-1])
    assert sum(p.numel() for p in ordered.parameters()) == sum(p.numel() for p in shuffled.parameters())
    reach = []
    for tokenizer in (ordered, shuffled):
        base, first = torch.zeros(1, len(fields), dtype=torch.long), torch.zeros(1, len(fields), dtype=torch.long)
        first[0, 0] = 1
        reach.append((tokenizer(base, torch.zeros(1, 0)) != tokenizer(first, torch.zeros(1, 0))).any(-1)[0].nonzero()[:, 0].tolist())
    assert reach[0][0] == 0 and reach[1][-1] == 7


@pytest.mark.parametrize('path', sorted(RESULTS.glob('*.csv')), ids=lambda p: p.stem)
def test_every_result_is_a_finished_table(path):
    "Ends with a line end, parses, has no duplicate columns and at least one row."
    text = path.read_bytes()
    assert text.endswith(b'\n')
    table = pd.read_csv(path)
    assert len(table) and not table.columns.duplicated().any() and not any(c.startswith('Unnamed') for c in table.columns)
