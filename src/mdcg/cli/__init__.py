"""The command line."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import warnings

from mdcg.cli import train, sweep, search  # isort: skip  # noqa: F401 (each brings its commands, in the order of the help)
from mdcg.cli import learner, data, figure, report, runs, show  # isort: skip  # noqa: F401
from mdcg.cli.app import app
from mdcg.errors import MdcgError, machine_trouble
from mdcg.files import shown
from mdcg.terminal import say

THREADS = "mdcg-"  # what the names of threads of ours begin with
LONGEST = 2000  # letters of a sentence, in which names may be endless


def main() -> None:
    """Run the command line; a mistake that a person can fix is one sentence and exit code 2."""
    try:
        _run()
    except SystemExit as leave:
        if leave.code == 128 + signal.SIGINT and any(one.name.startswith(THREADS) for one in threading.enumerate()):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(leave.code)  # Python would wait for threads that decode images which nobody wants any more
        raise


def _run() -> None:
    if sys.stderr is None:
        # Closed (2>&-): `print` would turn to standard output, and a file of ours could become file number 2.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these letters is no reason to fail
    _log_to_stderr()
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # of damage that does no harm
    try:
        app()
    except BrokenPipeError:
        # The reader (for instance `head`) has left; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # while Typer makes the commands; later it, or training, tells
        say("mdcg: stopped.", error=True)
        raise SystemExit(128 + signal.SIGINT) from None
    except MdcgError as error:
        say(f"mdcg: {shown(str(error), LONGEST)}", error=True)
        raise SystemExit(2) from None
    except OSError as error:
        where = f"{shown(str(error.filename))}: " if error.filename else ""
        say(f"mdcg: {where}{error.strerror or error}; check the path and its permissions.", error=True)
        raise SystemExit(2) from None
    except (MemoryError, RuntimeError) as error:
        trouble = machine_trouble(error)
        if trouble is None:
            raise
        say(f"mdcg: {trouble}", error=True)
        raise SystemExit(2) from None


class _ToStderr(logging.Handler):
    """Prints the library's messages to standard error, as sentences of this command."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"mdcg: {shown(record.getMessage(), LONGEST)}", error=True)


def _log_to_stderr() -> None:
    library = logging.getLogger("mdcg")
    library.setLevel(logging.INFO)
    library.handlers[:] = [*(one for one in library.handlers if not isinstance(one, _ToStderr)), _ToStderr()]
