"""Options, fixtures and the Hypothesis profile of the whole suite: seeded, without deadlines.

One thread, unless OMP_NUM_THREADS says more."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from mutations import copies, outcome  # noqa: F401 (fixtures of every table of mutations)


def pytest_addoption(parser):
    parser.addoption(
        '--slow',
        action='store_true',
        help='also run the tests marked slow, and ten times the Hypothesis examples',
    )
    parser.addoption(
        '--no-shrink',
        action='store_true',
        help='take the first counterexample that Hypothesis finds',
    )


def pytest_configure(config):
    config.addinivalue_line('markers', 'slow: long version of a test; runs with --slow only')
    # a job in the background is born deaf to Ctrl-C, which some tests press
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS') or 1))
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = [Phase.explicit, Phase.generate] + [Phase.shrink] * (
        not config.getoption('--no-shrink')
    )
    for name, n in (('house', 10), ('slow', 100)):
        settings.register_profile(
            name,
            max_examples=n,
            derandomize=True,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=phases,
            suppress_health_check=quiet,
        )
    settings.load_profile('slow' if config.getoption('--slow') else 'house')


def pytest_collection_modifyitems(config, items):
    if config.getoption('--slow'):
        return
    for item in items:
        if 'slow' in item.keywords:
            item.add_marker(pytest.mark.skip(reason='slow; run with --slow'))


@pytest.fixture(scope='session')
def data_folder():
    """data_folder('DELPHI_UKB_SIM'): the folder that the environment variable names; skips where it
    is unset."""

    def folder(variable):
        if not os.environ.get(variable):
            pytest.skip(f'set {variable} to the folder of this data set')
        path = Path(os.environ[variable])
        assert path.is_dir(), f'{variable}={path} is no folder'
        return path

    return folder


@pytest.fixture(scope='session')
def world():
    "The default world of the simulator."
    from delphi_traj.data.simulator import make_world

    return make_world()


@pytest.fixture(scope='session')
def simulated():
    "5,000 simulated people."
    from delphi_traj.data.simulator import simulate

    return simulate(5_000, seed=20)


@pytest.fixture(scope='session')
def few_people():
    "24 simulated people."
    from delphi_traj.data.simulator import simulate

    return simulate(24, seed=3)
