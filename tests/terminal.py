"""A terminal for the tests: how a command ends and what it says."""

import contextlib
import io


def said_on_stderr(main, argv) -> tuple:  # exit status, what was printed on stderr
    "Run a command's `main` and catch how it stops."
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            main(argv)
    except SystemExit as stop:
        return stop.code, heard.getvalue()
    return 0, heard.getvalue()
