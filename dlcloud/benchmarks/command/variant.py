"""The variant that runs the user's command once a slice.

The command runs in its own process group, with the programs of this virtual environment first on PATH.
Its output is copied and read as it comes; the run ends with the command, although a process that it left in
the background may hold the output open. Secrets are masked in everything that is kept. With `--turn` a
variant holds a file while it measures, so that of several programs on one machine only one measures at a
time. Before its instance ends, a command whose checkpoints are kept is asked to stop, as an `_Asking` says.
"""

import ctypes
import fcntl
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from .. import resume
from ..harness import masking, usage
from ..harness.case import Finish, Slice, VariantError, WarmUp, describe_exit
from ..harness.records import ASKED, NOTICE, WORKED, redact_text, redact_variables
from ..harness.schema import Measurement, MetricName
from . import reporting
from .output import OutputLines, Reported, ThroughputReader, after_warm_up
from .shell import shell_words

KIB_PER_MIB = 1024
LAST_LINE_CHARACTERS = 200
MOST_VALUES = 3
"""Of a fact that differs between runs."""

_PIECE = 1 << 16
_POLL_S = 0.05
_REAP_S = 0.005
_LAST_OUTPUT_S = 1.0
"""For what a pipe still holds when the command has ended, such as the last lines of a `tee`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its variables (None removes one) and the arguments added to the command."""

    name: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of the command that succeeded."""

    seconds: float
    values: list[float]


@dataclass
class Turn:
    """Holds a file, until this process ends at the latest; without a path there is nothing to wait for."""

    path: Path | None = None
    _file: int | None = field(init=False, default=None)

    def take(self) -> None:
        """Wait until no other process holds the file.

        Raises:
            VariantError: It cannot be made.
        """
        if self.path is None or self._file is not None:
            return
        try:
            # No program that this process starts inherits it.
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            raise VariantError(f"--turn {self.path}: {error.strerror}") from error

    def end(self) -> None:
        """Let the next one continue."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(slots=True, kw_only=True)
class CommandVariant:
    """Runs a shell command in one setting."""

    setting: Setting
    command: str  # shell command; `shell_words` says how it takes the setting's arguments
    reader: ThroughputReader | None  # reads throughputs from its output; None measures its wall time
    final: bool  # count only the last throughput of a run
    counted: str  # what the throughput counts, per second
    warm_up_runs: int  # runs before those that count
    environment: Mapping[str, str]  # the variables without the setting's
    echo: BinaryIO  # stream to which the command's output is copied
    keeps_all: bool = False  # report a fact of every run, also where runs agree
    facts: Mapping[str, re.Pattern[str]] = field(default_factory=dict)  # what else is read, by name
    turn: Turn = field(default_factory=Turn)  # held while it runs
    folder: Path = Path()  # in which it runs
    records: Path | None = None  # a file next to them says when the command is to be asked to stop
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _printed: dict[str, list[str]] = field(init=False, default_factory=dict)
    _cpu_s: float = field(init=False, default=0.0)
    _others: set[int] | None = field(init=False, default=None)  # children before the first run
    _peak_mib: float = field(init=False, default=0.0)

    process_spread: ClassVar[float] = 0.0
    """Every run is its own process: their differences are among those measured."""
    expected_bytes: ClassVar[int] = 0

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def metric(self) -> MetricName:
        return MetricName.DURATION if self.reader is None else MetricName.THROUGHPUT

    @property
    def unit(self) -> str:
        """Return the unit of the metric: `images/s` for `images` and for `images/s`."""
        if self.reader is None:
            return "s"
        return self.counted if "/" in self.counted else f"{self.counted}/s"

    def peak_bytes(self) -> int:
        """Return 0: there is no process between runs, and only one runs at a time."""
        return 0

    def start(self) -> Mapping[str, Any]:
        """Wait for its turn; return the facts without secrets. The command is started for each slice."""
        self.turn.take()
        return {
            "command": redact_text(self._shell_line()),
            "environment": redact_variables(self.setting.environment),
            "warm_up_runs": self.warm_up_runs,
        }

    def warm_up(self, limit_s: float) -> WarmUp:  # noqa: ARG002 - the user sets the number of runs
        seconds = sum(self._run().seconds for _ in range(self.warm_up_runs))
        return WarmUp(steps=self.warm_up_runs, seconds=seconds, settled=True)

    def measure(self, seconds: float) -> Slice:  # noqa: ARG002 - a command runs for as long as it does
        run = self._run()
        if self.reader is None:
            return Slice(value=run.seconds + self._worked_s(), items=1, seconds=run.seconds)
        if not run.values:
            raise VariantError(f"no line of its output {self.reader.describe()}")
        if self.final:
            return Slice(value=run.values[-1], items=1, seconds=run.seconds)
        values = after_warm_up(run.values)
        return Slice.of_parts(values.counted, seconds=run.seconds, settled=values.settled)

    def _worked_s(self) -> float:
        """Return the seconds for which it had worked, on other instances, when its checkpoint was saved."""
        with suppress(OSError, ValueError):
            if self.records is not None:
                path = self.records.with_name(self.records.name + WORKED)
                return float(path.read_text(encoding="utf-8"))
        return 0.0

    def cpu_s(self) -> float:
        """Return the CPU seconds of the command and of all that it has started, in whatever session."""
        self._reap_left(None)
        return self._cpu_s + sum(map(usage.process_cpu_s, self._left()))

    def finish(self) -> Finish:
        """Return the largest memory of any process of any run, and the facts that the runs printed."""
        self.turn.end()
        metrics: dict[str, Measurement] = {MetricName.PEAK_MEMORY: Measurement.exact(self._peak_mib, "MiB")}
        printed = {name: ", ".join(self._printed.get(name, ["not printed"])) for name in self.facts}
        return Finish(metrics=metrics, outputs=[], facts={"printed": printed} if printed else {})

    def close(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._process.wait()
        self._reap_left(self._process.pid)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def _run(self) -> _Run:
        """Run the command to its end and copy its output; VariantError if its exit status is not 0."""
        # Next to the records, which end with the instance: a program that is killed leaves it.
        place = None if self.records is None else self.records.absolute().parent
        with tempfile.TemporaryDirectory(prefix="dlcloud-report-", dir=place) as folder:
            path = self.setting.environment.get("PYTHONPATH", self.environment.get("PYTHONPATH"))
            paths = [path, folder]
            shutil.copy(reporting.__file__, Path(folder, reporting.MODULE))
            if self.environment.get("DLCLOUD_RESUME") == "auto":
                resume.install(Path(folder))
                paths.reverse()  # Python starts with the first sitecustomize that it finds
            variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            if records := self.setting.environment.get(reporting.RECORDS_VARIABLE):
                variables[reporting.RECORDS_VARIABLE] = str(Path(records).absolute())
            if not isinstance(self.reader, Reported):
                return self._run_with(variables, self.reader)
            report = Path(folder, "values")
            run = self._run_with({**variables, reporting.VARIABLE: str(report)}, None)
            lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        run.values.extend(value for line in lines for value in self.reader.values(line))
        return run

    def _run_with(self, variables: Mapping[str, str], reader: ThroughputReader | None) -> _Run:
        began = time.perf_counter()
        self._process = self._start_process(variables)
        asking = _Asking(self._process, self.records, self.folder)
        ending = _Ending(self._process, asking)
        output = OutputLines(reader, self.facts)
        for piece in ending.output():
            self.echo.write(piece)
            self.echo.flush()
            output.feed(piece)
        output.close()
        status = self._reap(ending)
        seconds = ending.at - began
        self.close()
        if asking.is_done:
            raise VariantError(
                f"the command was asked to stop, as its instance ends; it {describe_exit(status)}"
            )
        if status:
            last = masking.mask(output.last, masking.secret_texts(self.environment))
            last = f": {last[:LAST_LINE_CHARACTERS]}" if last else ""
            raise VariantError(f"the command {describe_exit(status)}{last}")
        self._keep(output.facts)
        return _Run(seconds=seconds, values=output.values)

    def _keep(self, facts: Mapping[str, str]) -> None:
        """Keep the facts of a run; runs that differ have several values."""
        for name, text in facts.items():
            value = masking.mask(text, masking.secret_texts(self.environment))
            values = self._printed.setdefault(name, [])
            if self.keeps_all:
                values.append(value)
            elif value not in values and "…" not in values:
                values.append(value if len(values) < MOST_VALUES else "…")

    def _start_process(self, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        _adopt_orphans()
        self._others = _children() if self._others is None else self._others
        merged = {**activate(self.environment), **self.setting.environment, **variables}
        return subprocess.Popen(
            shell_words(self.command, self.setting.arguments),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            env={name: value for name, value in merged.items() if value is not None},
        )

    def _reap(self, ending: "_Ending") -> int:
        """Add up the CPU time and memory of the command, and return its exit status."""
        self._cpu_s += ending.usage.ru_utime + ending.usage.ru_stime
        per_mib = KIB_PER_MIB**2 if sys.platform == "darwin" else KIB_PER_MIB
        self._peak_mib = max(self._peak_mib, ending.usage.ru_maxrss / per_mib)
        return ending.status

    def _reap_left(self, group: int | None) -> None:
        """Add up what processes used that the command did not wait for, as a server in the background.

        Args:
            group: A process group that was killed: its processes are waited for.
        """
        until = time.monotonic() + _LAST_OUTPUT_S
        while True:
            for child in self._left():
                with suppress(ChildProcessError):
                    pid, _, used = os.wait4(child, os.WNOHANG)
                    self._cpu_s += used.ru_utime + used.ru_stime if pid else 0.0
            if group is None or not _is_group(group) or time.monotonic() > until:
                return
            time.sleep(_REAP_S)

    def _left(self) -> set[int]:
        """Return the processes that were left to this one."""
        running = {self._process.pid} if self._process is not None else set()
        return set() if self._others is None else _children() - self._others - running

    def _shell_line(self) -> str:
        return " ".join([self.command.strip(), *map(shlex.quote, self.setting.arguments)])


class _Asking:
    """Asks a command to stop: by the shell command that the notice names, else by SIGTERM to its group."""

    def __init__(self, process: subprocess.Popen[bytes], records: Path | None, folder: Path) -> None:
        self.is_done = False
        self._process, self._folder = process, folder
        self._notice = None if records is None else records.with_name(records.name + NOTICE)
        self._answer = None if records is None else records.with_name(records.name + ASKED)

    def look(self) -> None:
        """Ask if there is a notice; the answer says whether any process catches the signal."""
        if self.is_done or self._notice is None or self._answer is None or not self._notice.exists():
            return
        own_way = json.loads(self._notice.read_text(encoding="utf-8"))["run"]
        caught = bool(own_way) or any(_catches_sigterm(pid) for pid in self._group())
        unfinished = self._answer.with_name(self._answer.name + ".new")
        unfinished.write_text(json.dumps({"catches": caught}), encoding="utf-8")
        unfinished.replace(self._answer)
        self.is_done = True
        if own_way:
            environment = {**activate(os.environ), "DLCLOUD_PID": str(self._process.pid)}
            subprocess.Popen(
                shell_words(own_way), cwd=self._folder, stdin=subprocess.DEVNULL, env=environment
            )
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)

    def is_group_alive(self) -> bool:
        """True while a process of the group runs: a shell ends before the program that saves its state."""
        return next(iter(self._group()), None) is not None

    def _group(self) -> Iterator[int]:
        """Yield the processes of the group, without zombies. Source: proc_pid_stat(5)."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                state, _, group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
                if state != "Z" and int(group) == self._process.pid:
                    yield int(path.parent.name)


def _catches_sigterm(pid: int) -> bool:
    """True if a process has its own handler of SIGTERM, or ignores it. Source: proc_pid_status(5)."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
        return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)
    return False


class _Ending:
    """The end of a process: when, its exit status, and what it used.

    The run ends with the command. A server that it left in the background may hold its output open for hours.
    """

    def __init__(self, process: subprocess.Popen[bytes], asking: _Asking) -> None:
        self.at, self.status = 0.0, 0
        self._process, self._asking = process, asking
        self._waiting = threading.Thread(target=self._wait, name="end", daemon=True)
        self._waiting.start()

    def _wait(self) -> None:
        _, status, self.usage = os.wait4(self._process.pid, 0)
        self.at = time.perf_counter()
        self.status = self._process.returncode = os.waitstatus_to_exitcode(status)

    def output(self) -> Iterator[bytes]:
        """Yield the output until it ends; once the process has ended, no longer than `_LAST_OUTPUT_S`."""
        assert self._process.stdout is not None  # noqa: S101 - requested as a pipe
        stream, until = self._process.stdout.fileno(), None
        while until is None or time.perf_counter() < until:
            self._asking.look()
            is_over = not self._waiting.is_alive() and not (
                self._asking.is_done and self._asking.is_group_alive()
            )
            if until is None and is_over:
                until = time.perf_counter() + _LAST_OUTPUT_S
            if select.select([stream], [], [], _POLL_S)[0]:
                if not (piece := os.read(stream, _PIECE)):
                    break
                yield piece
        while self._waiting.is_alive() or (self._asking.is_done and self._asking.is_group_alive()):
            self._asking.look()  # its output may end long before it does
            self._waiting.join(_POLL_S)


PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2), linux/prctl.h."""


def _adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, so that their CPU time is known: Linux alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> set[int]:
    listings = Path("/proc/self/task").glob("*/children")
    return {int(pid) for listing in listings for pid in usage.read_text(listing).split()}


def _is_group(number: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, 0)
        return True
    return False


def activate(environment: Mapping[str, str]) -> dict[str, str]:
    """Put the programs of this virtual environment first on PATH; without one, let `python` be python3."""
    path = environment.get("PATH", "")
    if sys.prefix != sys.base_prefix:
        programs = filter(None, (str(Path(sys.executable).parent), path))
        return {**environment, "PATH": os.pathsep.join(programs)}
    if not path or shutil.which("python", path=path) is not None:
        return dict(environment)
    # Images of Ubuntu and Debian have no program of this name.
    folder = Path(__file__).resolve().parents[2] / "bin"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        (folder / "python").symlink_to(sys.executable)
    return {**environment, "PATH": f"{path}{os.pathsep}{folder}"}
