"""Collaborators of one call from Python, which leaves the signals and the log of its process as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

from dlcloud.app.context import Context
from dlcloud.app.terminal.signals import interrupts


@contextmanager
def session(command: str, *, quiet: bool) -> Iterator[Context]:
    """Yield the collaborators of a call; in the main thread, Ctrl-C cleans up as in the command.

    Args:
        command: The command whose use case is called.
        quiet: Print no progress on stderr.
    """
    with interrupts(in_library=True), Context(command, in_library=True, quiet=quiet) as context:
        yield context
