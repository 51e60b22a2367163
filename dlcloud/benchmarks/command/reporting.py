"""Report a throughput from inside the measured program, which imports this as `dlcloud_report`.

    import dlcloud_report
    dlcloud_report.throughput(images / seconds)     # as often as one is known
    dlcloud_report.step(images)                     # or once a step: the time between two calls is taken

Outside of a benchmark both do nothing, so that the lines can stay. Programs in other languages append
numbers, one a line, to the file that the variable DLCLOUD_REPORT names.
"""

import os
import time

VARIABLE = "DLCLOUD_REPORT"

_before: float | None = None


def throughput(value: float) -> None:
    """Report a throughput, per second.

    Raises:
        ValueError: It is not a number above 0.
    """
    value = float(value)
    if not 0 < value < float("inf"):
        raise ValueError(f"a throughput must be a number above 0, not {value}")
    if path := os.environ.get(VARIABLE):
        # One write of one short line at the end of the file: processes that share it do not mix.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{value!r}\n".encode())
        finally:
            os.close(file)


def step(items: float = 1) -> None:
    """Report a step in which `items` were done, since the last call; the first call starts the clock."""
    global _before  # noqa: PLW0603 - one clock a process is what makes it one line to call
    now = time.perf_counter()
    if _before is not None:
        throughput(items / (now - _before))
    _before = now
