"""Workloads of pure Python for the tests of the harness; copied into the package `benchmarks`."""

import os
import signal
import subprocess
import sys
import time


class Spin:
    """Keeps one CPU busy for a while in each step; after `lives` steps it does what `fate` says."""

    def __init__(self, *, work, lives=None, fate="die"):
        self.items_per_step = 1
        self.facts = {"work": work, "variable": os.environ.get("SAMPLE_VARIABLE")}
        self._work = work
        self._lives = lives
        self._fate = fate

    def step(self):
        if self._lives is not None:
            self._lives -= 1
            if self._lives < 0:
                self._end()
        print("a framework's chatter on stdout")  # noqa: T201 - must not reach the coordinator
        sum(range(self._work))

    def outputs(self):
        return [[1.0, 2.0], [3.0, 4.0]]

    def _end(self):
        if self._fate == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fate == "sleep":
            time.sleep(3600)
        raise MemoryError("no room for\n  the batch")


def spin(**arguments):
    return Spin(**arguments)


class Counted(Spin):
    """Knows its work, and has a peak in the variable SAMPLE_PEAK; it counts how often it is measured."""

    def __init__(self, flop):
        super().__init__(work=1_000)
        self.facts |= {"flop_per_input": flop, "uncounted_operators": ["Relu"]}

    def measure_peak(self, seconds):
        from .harness.roofline import Peak  # noqa: PLC0415

        print("measured a peak", file=sys.stderr)  # noqa: T201 - the tests count it
        peak = float(os.environ["SAMPLE_PEAK"])
        return Peak(dtype="fp32", flop_per_s=peak, bytes_per_s=seconds) if peak else None


def counted(**arguments):
    return Counted(**arguments)


class Parent(Spin):
    """Starts a process that takes 50 MiB and stays."""

    def __init__(self):
        super().__init__(work=20_000)
        script = "import sys; held = bytearray(50 << 20); print(1, flush=True); sys.stdin.read()"
        self._child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._child.stdout.readline()


def parent():
    return Parent()


def untitled():
    """Stand for a package that says in its own words what it lacks, without the name of a module."""
    raise ModuleNotFoundError("install the extra")


def absent():
    import a_framework_that_is_not_there  # noqa: F401, PLC0415
