"""Runs named tests against another copy of the package: a line of JSON in, a line of JSON out.

In: {"root": folder that holds delphi_traj, "tests": ["tests/test_x.py::test_y"]}.
Out: {"code": exit code of pytest, "errors": types of what was raised, "package": the file that was
imported, "text": the report}.
One process serves all copies, so that torch is imported once; package and tests are imported anew
for each."""

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
sys.dont_write_bytecode = True


class Errors:
    "Notes what every failed test raised."

    def __init__(self):
        self.kinds = []

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo is not None:
            self.kinds.append(call.excinfo.typename)


def forget():
    "Drop the package and everything imported from tests/."
    for name, module in list(sys.modules.items()):
        ours = (
            name.split('.')[0] == 'delphi_traj'
            or Path(getattr(module, '__file__', None) or '/').parent == TESTS
        )
        if ours and name != '__main__':
            del sys.modules[name]
    importlib.invalidate_caches()


def run(root, tests):
    "Outcome of `tests` with the package of `root`."
    forget()
    errors, said = Errors(), io.StringIO()
    sys.path.insert(0, root)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            options = ['-x', '-q', '--tb=short', '--no-shrink', '-p', 'no:cacheprovider']
            code = pytest.main(
                [*(str(TESTS.parent / test) for test in tests), *options], plugins=[errors]
            )
        package = sys.modules['delphi_traj'].__file__ if 'delphi_traj' in sys.modules else None
    finally:
        sys.path.remove(root)
    return dict(code=int(code), errors=errors.kinds, package=package, text=said.getvalue())


if __name__ == '__main__':
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
