"""The first instructions of `dlcloud`: until the command line is imported, a signal ends it with one line.

Without it, Ctrl-C in the first tenth of a second would show a traceback of Python's imports, and SIGTERM
would end the command with another status than a moment later. Nothing has been begun then, and so nothing is
to be undone. When the command is over, these handlers are back (`app/terminal/signals.py`).

Only modules that Python has imported for itself are imported here.
"""

import _signal  # type: ignore[import-not-found]  # it is built in
import os
import sys

EXIT_INTERRUPTED = 130


def _leave(_number: int, _frame: object) -> None:
    try:  # noqa: SIM105  contextlib is not imported yet
        sys.stdout.flush()  # what the command has printed, if it is over
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass  # closed, or just being flushed
    try:  # noqa: SIM105  as above
        os.write(2, b"interrupted\n")
    except OSError:
        pass  # closed
    os._exit(EXIT_INTERRUPTED)


for _number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    if _signal.getsignal(_number) != _signal.SIG_IGN:  # as nohup starts a command
        _signal.signal(_number, _leave)


def main() -> None:
    """Import the command line, run it and exit."""
    from dlcloud.cli.main import main as run

    run()
