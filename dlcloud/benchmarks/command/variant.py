"""The variant that runs the user's own command once a slice."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ..harness import redaction
from ..harness.records import Measurement, Metric
from ..harness.variant import Finish, Slice, VariantError, WarmUp, describe_exit
from . import reporting
from .output import Reported, ThroughputReader, after_warm_up

REPORT_MODULE = "dlcloud_report.py"

KIB_PER_MIB = 1024
LAST_LINE_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one setting changes: variables (None takes one away) and arguments added to the command."""

    name: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of the command that ended well."""

    seconds: float
    values: list[float]


@dataclass(slots=True, kw_only=True)
class CommandVariant:
    """Runs a shell command in one setting.

    Args:
        setting: What is particular to this variant.
        command: For the shell; the setting's arguments are added, quoted.
        reader: How to read throughputs from its output; None measures its wall time.
        final: Count only the last throughput of a run.
        counted: What the throughput counts, per second.
        warm_up_runs: Runs before those that count.
        environment: What the setting's variables are added to.
        echo: Where the command's output is shown as it comes.
    """

    setting: Setting
    command: str
    reader: ThroughputReader | None
    final: bool
    counted: str
    warm_up_runs: int
    environment: Mapping[str, str]
    echo: TextIO
    _process: subprocess.Popen[str] | None = field(init=False, default=None)
    _cpu_s: float = field(init=False, default=0.0)
    _peak_mib: float = field(init=False, default=0.0)

    @property
    def name(self) -> str:
        """Return the setting's name."""
        return self.setting.name

    @property
    def metric(self) -> Metric:
        """Return throughput, or duration where none is read."""
        return Metric.DURATION if self.reader is None else Metric.THROUGHPUT

    @property
    def unit(self) -> str:
        """Return the unit of the metric; a unit that already names a time is left as it is."""
        if self.reader is None:
            return "s"
        return self.counted if "/" in self.counted else f"{self.counted}/s"

    @property
    def process_spread(self) -> float:
        """Return 0: every run is a process of its own, so that their differences are among those measured."""
        return 0.0

    @property
    def expected_bytes(self) -> int:
        """Return 0: nothing is known of the user's command."""
        return 0

    def peak_bytes(self) -> int:
        """Return 0: between its runs there is no process, and only one runs at a time."""
        return 0

    def start(self) -> Mapping[str, Any]:
        """Return the facts, without secrets; the command itself is started for each slice."""
        return {
            "command": redaction.text(self._line()),
            "environment": redaction.variables(self.setting.environment),
            "warm_up_runs": self.warm_up_runs,
        }

    def warm_up(self, limit_s: float) -> WarmUp:  # noqa: ARG002 - how many runs is for the user to say
        """Run as often as the user asked before it counts."""
        seconds = sum(self._run().seconds for _ in range(self.warm_up_runs))
        return WarmUp(steps=self.warm_up_runs, seconds=seconds, settled=True)

    def measure(self, seconds: float) -> Slice:  # noqa: ARG002 - a command runs for as long as it does
        """Run once."""
        run = self._run()
        if self.reader is None:
            return Slice(value=run.seconds, items=1, seconds=run.seconds)
        if not run.values:
            raise VariantError(f"no line of its output {self.reader.describe()}")
        if self.final:
            return Slice(value=run.values[-1], items=1, seconds=run.seconds)
        values = after_warm_up(run.values)
        return Slice.of_parts(values.counted, seconds=run.seconds, settled=values.settled)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all runs that have ended."""
        return self._cpu_s

    def finish(self) -> Finish:
        """Return the largest memory that any process of any run took."""
        return Finish(metrics={Metric.PEAK_MEMORY: Measurement.exact(self._peak_mib, "MiB")}, outputs=[])

    def close(self) -> None:
        """Kill the run in progress with all that it started, and wait for it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def _run(self) -> _Run:
        """Run the command to its end, showing its output.

        Raises:
            VariantError: It ended with a status other than 0.
        """
        if not isinstance(self.reader, Reported):
            return self._run_with({}, self.reader)
        with tempfile.TemporaryDirectory(prefix="dlcloud-report-") as folder:
            report = Path(folder, "values")
            shutil.copy(reporting.__file__, Path(folder, REPORT_MODULE))
            run = self._run_with(self._found_in(folder) | {reporting.VARIABLE: str(report)}, None)
            lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        run.values.extend(value for line in lines for value in self.reader.values(line))
        return run

    def _found_in(self, folder: str) -> dict[str, str]:
        """Return the variable that lets Python find modules in a folder beside where it looks anyway."""
        known = self.setting.environment.get("PYTHONPATH", self.environment.get("PYTHONPATH"))
        return {"PYTHONPATH": os.pathsep.join(filter(None, (known, folder)))}

    def _run_with(self, variables: Mapping[str, str], reader: ThroughputReader | None) -> _Run:
        began = time.perf_counter()
        self._process = self._started(variables)
        assert self._process.stdout is not None  # noqa: S101 - asked for as a pipe
        values: list[float] = []
        last = ""
        for line in self._process.stdout:
            self.echo.write(line)
            self.echo.flush()
            last = line.strip() or last
            if reader is not None:
                values.extend(reader.values(line))
        status = self._reap()
        seconds = time.perf_counter() - began
        self.close()
        if status:
            said = f": {last[:LAST_LINE_CHARACTERS]}" if last else ""
            raise VariantError(f"the command {describe_exit(status)}{said}")
        return _Run(seconds=seconds, values=values)

    def _started(self, variables: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start the command in a process group of its own, so that all of it can be ended."""
        changed = {**_activated(self.environment), **self.setting.environment, **variables}
        return subprocess.Popen(
            [shutil.which("bash") or "/bin/sh", "-c", self._line()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={name: value for name, value in changed.items() if value is not None},
        )

    def _reap(self) -> int:
        """Wait for the command, count what it used, and return its exit status."""
        assert self._process is not None  # noqa: S101 - it was started just before
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_s += usage.ru_utime + usage.ru_stime
        per_mib = KIB_PER_MIB**2 if sys.platform == "darwin" else KIB_PER_MIB
        self._peak_mib = max(self._peak_mib, usage.ru_maxrss / per_mib)
        return self._process.returncode

    def _line(self) -> str:
        return " ".join([self.command, *map(shlex.quote, self.setting.arguments)])


def _activated(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the programs of this virtual environment, if it is one, first on PATH."""
    if sys.prefix == sys.base_prefix:
        return dict(environment)
    programs = filter(None, (str(Path(sys.executable).parent), environment.get("PATH")))
    return {**environment, "PATH": os.pathsep.join(programs)}
