"""What an editor sees: completion offers the public methods of the classes that people use, and
go-to-definition arrives, also where a method was given to its class by `@patch`."""

import importlib
import inspect
from pathlib import Path

import pytest

import delphi_traj

jedi = pytest.importorskip('jedi')
ROOT = Path(delphi_traj.__file__).parents[1]
CLASSES = {
    'Delphi': 'models.delphi',
    'EventTrajectory': 'models.event_trajectory',
    'Futures': 'evaluation.futures',
    'Cohort': 'data.events',
    'Risk': 'evaluation.risk',
}


def script(name, ending):
    text = f'from delphi_traj.{CLASSES[name]} import {name}\n\ndef f(x: {name}):\n    x.{ending}'
    return jedi.Script(text, project=jedi.Project(ROOT))


def methods(name):
    "Public methods and properties that the package gives a class."
    cls = getattr(importlib.import_module(f'delphi_traj.{CLASSES[name]}'), name)
    for attribute in dir(cls):
        found = inspect.getattr_static(cls, attribute)
        function = getattr(found, 'fget', None) or getattr(found, '__func__', found)
        ours = (getattr(function, '__module__', None) or '').startswith('delphi_traj')
        if callable(function) and ours and not attribute.startswith('_'):
            yield attribute


@pytest.mark.parametrize('name', CLASSES)
def test_completion_offers_the_public_methods(name):
    wanted = set(methods(name))
    assert wanted
    offered = {c.name for c in script(name, '').complete(4, 6)}
    assert not wanted - offered


@pytest.mark.parametrize('name', CLASSES)
def test_go_to_definition_arrives(name):
    for method in methods(name):
        found = script(name, method).goto(4, 7, follow_imports=True)
        assert [d.name for d in found] == [method]
        assert Path(found[0].module_path).is_relative_to(ROOT / 'delphi_traj'), method


def test_go_to_definition_of_a_constructed_model():
    text = (
        'from delphi_traj.models.delphi import Delphi, DelphiConfig\n'
        'model = Delphi(DelphiConfig(20))\n'
        'model.nll'
    )
    found = jedi.Script(text, project=jedi.Project(ROOT)).goto(3, 8, follow_imports=True)
    assert [d.name for d in found] == ['nll']
    assert 'objective' in found[0].docstring()
