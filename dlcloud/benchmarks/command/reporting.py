"""Report a throughput from inside the measured program, which imports this as `dlcloud_report`.

    import dlcloud_report
    dlcloud_report.throughput(images / seconds)     # as often as one is known
    dlcloud_report.step(images)                     # or once a step: the time between two calls is taken
    dlcloud_report.intermediate(accuracy)           # the metric so far: a search may end a run that lags
    first = dlcloud_report.checkpoint(model, optimizer)  # before a loop: restores them after an interruption
    dlcloud_report.checkpoint(step=step + 1)             # in the loop: saves them if it is due

Outside of dlcloud all of them do nothing, so that the lines can stay. Programs in other languages append
numbers, one a line, to the file that the variable DLCLOUD_REPORT names.
"""

import importlib
import json
import os
import time

MODULE = "dlcloud_report.py"
"""Its name next to the program."""
VARIABLE = "DLCLOUD_REPORT"
RECORDS_VARIABLE = "DLCLOUD_RECORDS"
INTERMEDIATE = "intermediate"

_before: float | None = None
_step = 0


def throughput(value: float) -> None:
    """Report a throughput, per second.

    Raises:
        ValueError: It is not a number above 0.
    """
    value = float(value)
    if not 0 < value < float("inf"):
        raise ValueError(f"a throughput must be a number above 0, not {value}")
    if path := os.environ.get(VARIABLE):
        _append(path, repr(value))


def intermediate(value: float) -> None:
    """Report what the metric of a search is so far; the calls of a run are counted as its steps.

    Raises:
        ValueError: It is not a finite number.
    """
    global _step  # noqa: PLW0603 - the steps of this process
    value = float(value)
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"an intermediate value must be a finite number, not {value}")
    _step += 1
    if path := os.environ.get(RECORDS_VARIABLE):
        _append(path, json.dumps({"record": INTERMEDIATE, "step": _step, "value": value}))


def checkpoint(*objects: object, step: int | None = None, of: int | None = None) -> int:
    """Restore objects before a loop and return its first step; in it, save them after a step.

    It needs `workload.resume: auto`; without it nothing is restored or saved, and the first call returns 0.

    Args:
        objects: Models, optimizers and all else that has `state_dict` and `load_state_dict`; lists and
            dictionaries; generators of random numbers. Global random numbers are always saved.
        step: The steps that are done.
        of: Of how many: after the last one a state is saved, so that a script of several loops does not
            repeat the end of one that was done before an interruption.
    """
    if os.environ.get("DLCLOUD_RESUME") != "auto" or not os.environ.get("DLCLOUD_CHECKPOINTS"):
        return step or 0
    plain = importlib.import_module("dlcloud_resume.plain")
    return int(plain.checkpoint(objects, step, of))


def _append(path: str, line: str) -> None:
    """Append a line by one write: processes that share the file do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def step(items: float = 1) -> None:
    """Report a step in which `items` were done, since the last call; the first call starts the clock."""
    global _before  # noqa: PLW0603 - one clock a process is what makes it one line to call
    now = time.perf_counter()
    if _before is not None:
        throughput(items / (now - _before))
    _before = now
