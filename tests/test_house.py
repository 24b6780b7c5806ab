"""The house: which module may import which, how long and how wide files are, what stands twice,
and whether links and maps lead somewhere."""

import ast
import io
import json
import keyword
import re
import shutil
import subprocess
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'delphi_traj'
GENERATED = ('_modidx.py', '__init__.py')
MODULES = sorted(p for p in PACKAGE.rglob('*.py') if p.name not in GENERATED)
NOTEBOOKS = sorted((ROOT / 'nbs').glob('*.ipynb'))


def name_of(path):
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts)


def imports_of(path):
    "(module, name) of everything that a module of the package imports from the package."
    package = name_of(path).split('.')[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding='utf8'))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            yield from (
                ('.'.join(base + (node.module or '').split('.')).strip('.'), alias.name)
                for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or '').startswith('delphi_traj'):
            yield from ((node.module, alias.name) for alias in node.names)


def notebook_of(path):
    "The notebook that exports a module, from the line that exporting writes."
    return re.search(r'File to edit: \S*?nbs/(\S+)\.ipynb', path.read_text(encoding='utf8'))[1]


def cells_of(path, kind='code'):
    cells = json.loads(path.read_text(encoding='utf8'))['cells']
    return [''.join(c['source']) for c in cells if c['cell_type'] == kind]


def graph():
    names = {name_of(p) for p in MODULES}
    edges = defaultdict(set)
    for path in MODULES:
        for module, name in imports_of(path):
            for target in (f'{module}.{name}', module):
                if target in names:
                    edges[name_of(path)].add(target)
                    break
    return edges


def test_no_private_name_crosses_a_wall():
    found = [
        f'{name_of(path)} imports {name} of {module}'
        for path in MODULES
        for module, name in imports_of(path)
        if name.startswith('_')
    ]
    for path in NOTEBOOKS:
        text = '\n'.join(cells_of(path))
        for module, names in re.findall(
            r'from (delphi_traj[\w.]*) import (\([^)]*\)|[^\n]+)', text
        ):
            found += [f'{path.name} imports {n} of {module}' for n in re.findall(r'\b_\w+', names)]
    assert not found


def test_no_module_imports_itself_in_a_circle():
    edges, done = graph(), set()

    def walk(module, trail):
        assert module not in trail, ' -> '.join([*trail, module])
        if module not in done:
            for target in edges[module]:
                walk(target, [*trail, module])
            done.add(module)

    for path in MODULES:
        walk(name_of(path), [])


def test_arrows_run_to_notebooks_that_are_read_before():
    notebook = {name_of(p): notebook_of(p) for p in MODULES}
    found = [
        f'{notebook[a]} ({a}) imports {b} of {notebook[b]}'
        for a, targets in graph().items()
        for b in targets
        if notebook[a].split('_')[0] < notebook[b].split('_')[0]
    ]
    assert not found


@pytest.mark.parametrize('path', MODULES, ids=name_of)
def test_files_are_short_and_narrow(path):
    text = path.read_text(encoding='utf8')
    lines = text.splitlines()
    assert len(lines) <= 500
    # written by the exporter, as wide as they are: the claim of the notebook, in the first line,
    # and the list of exported names
    text = text.split('\n', 1)[1]
    names = re.search(r'^__all__ = \[.*?\]$', text, re.M | re.S)
    before, after = (text[: names.start()], text[names.end() :]) if names else (text, '')
    wide = [line for line in (before + after).splitlines() if len(line) > 100]
    assert not wide


# a class stands whole
LONGEST_CELL, LONGEST_CLASS = 30, 37


def length_of(cell):
    "Lines of a cell without those of signatures, where each parameter is a line with its meaning."
    try:
        tree = ast.parse(cell)
    except SyntaxError:  # a command of the notebook
        return len(cell.splitlines())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return len(cell.splitlines()) - sum(f.body[0].lineno - f.lineno - 1 for f in functions)


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_are_short_and_narrow(path):
    cells = cells_of(path)
    assert all(len(line) <= 100 for cell in cells for line in cell.splitlines())
    long = [
        cell
        for cell in cells
        if length_of(cell) > (LONGEST_CLASS if '\nclass ' in f'\n{cell}' else LONGEST_CELL)
    ]
    assert not long


@pytest.mark.skipif(not shutil.which('ruff'), reason='ruff is part of the dev install')
def test_ruff_finds_nothing():
    got = subprocess.run(
        ['ruff', 'check', '--output-format', 'concise', '.'],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert got.returncode == 0, got.stdout + got.stderr


def calls_of(path):
    "(line, name, call) of every call in a module."
    for node in ast.walk(ast.parse(path.read_text(encoding='utf8'))):
        if isinstance(node, ast.Call):
            yield node.lineno, getattr(node.func, 'attr', getattr(node.func, 'id', '')), node


def test_text_files_are_utf8_on_every_machine():
    found = []
    for path in MODULES:
        for line, name, call in calls_of(path):
            modes = [a.value for a in call.args if isinstance(a, ast.Constant)]
            modes += [getattr(k.value, 'value', None) for k in call.keywords if k.arg == 'mode']
            binary = any(isinstance(m, str) and re.fullmatch('[rwax+]*b[rwax+]*', m) for m in modes)
            # Image.open and the like are given no mode and read no text
            by_path = name == 'open' and isinstance(call.func, ast.Attribute) and not modes
            says = any(k.arg == 'encoding' for k in call.keywords)
            if name in ('open', 'read_text', 'write_text') and not (binary or by_path or says):
                found.append(f'{name_of(path)}:{line} {name}')
    assert not found


def test_only_commands_print():
    found = [
        f'{name_of(path)}:{line}'
        for path in MODULES
        for line, name, call in calls_of(path)
        if name == 'print' and path.stem not in ('commands', '__main__')
    ]
    assert not found


def test_a_year_has_its_days_from_one_place():
    found = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding='utf8')))
        if isinstance(node, ast.Constant) and node.value == 365.25
    }
    assert found == {'delphi_traj.data.events'}


def statements_of(path):
    "(first line, last line, shape) of every statement: names, strings and numbers are alike."
    shape, first = [], None
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding='utf8')).readline):
        if token.type == tokenize.NEWLINE:
            if shape and shape[0] not in ('import', 'from', '@') and len(shape) > 1:
                yield first, token.start[0], ' '.join(shape)
            shape, first = [], None
        elif token.type == tokenize.NAME:
            shape.append(token.string if keyword.iskeyword(token.string) else 'name')
        elif token.type in (tokenize.NUMBER, tokenize.STRING):
            shape.append('value')
        elif token.type == tokenize.OP:
            shape.append(token.string)
        else:
            continue
        first = first or token.start[0]


def test_no_twelve_lines_stand_twice():
    "Also with other names in them: runs of at least five statements over twelve lines."
    seen = defaultdict(list)
    for path in MODULES:
        rows = list(statements_of(path))
        for i in range(len(rows)):
            for j in range(i + 4, min(i + 12, len(rows))):
                if rows[j][1] - rows[i][0] + 1 >= 12:
                    key = tuple(shape for *_, shape in rows[i : j + 1])
                    seen[key].append((name_of(path), rows[i][0], rows[j][1]))
                    break
    found = []
    for places in seen.values():
        apart = [
            p for k, p in enumerate(places) if all(p[0] != q[0] or p[1] > q[2] for q in places[:k])
        ]
        if len(apart) > 1:
            found.append(apart)
    assert not found


LINK = re.compile(r'\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)')


@pytest.mark.parametrize(
    'path',
    [*NOTEBOOKS, *sorted(ROOT.glob('*.md')), *sorted((ROOT / 'data').rglob('*.md'))],
    ids=lambda p: p.stem,
)
def test_links_lead_somewhere(path):
    text = (
        '\n'.join(cells_of(path, 'markdown')) if path.suffix == '.ipynb' else path.read_text('utf8')
    )
    lost = [m[1] for m in LINK.finditer(text) if not (path.parent / m[1]).exists()]
    assert not lost


def test_notebooks_named_in_words_exist():
    "`41_futures` in a text is a notebook."
    there, lost = {p.stem for p in NOTEBOOKS}, []
    for path in [*NOTEBOOKS, *ROOT.glob('*.md')]:
        text = (
            '\n'.join(cells_of(path, 'markdown') + cells_of(path))
            if path.suffix == '.ipynb'
            else path.read_text('utf8')
        )
        for name in re.findall(r'`(\d\d_[a-z_]+)`', text):
            if name not in there:
                lost.append((path.name, name))
    assert not lost


def test_readme_maps_every_notebook():
    text = (ROOT / 'README.md').read_text(encoding='utf8')
    mapped = re.findall(r'^\| \[(\w+)\]\(nbs/(\w+)\.ipynb\)', text, re.M)
    assert all(a == b for a, b in mapped)
    assert [a for a, _ in mapped] == ['index'] + [p.stem for p in NOTEBOOKS if p.stem != 'index']
