"""Interrupt the scripts of this folder at random moments, and compare their results with undisturbed runs.

    python tests/corpus/run.py                             each script, 10 moments, half of them with a notice
    python tests/corpus/run.py hf_trainer.py --moments 40 --seed 3
    python tests/corpus/run.py --python ENVIRONMENT/bin/python --minutes 8

What has been tried is noted in a file: the same command continues where it stopped, and prints the table.
A change of the script or of the hook begins that script anew.

Each run begins in a new folder, as on another instance; only `ckpt/` is carried over. Of a script that saves
by itself, it is what nothing was writing. With a notice the process group gets SIGTERM, and SIGKILL if it has
not ended in 30 s; without one it is killed. A moment is a line that the script prints, and a fraction of the
time until the next one. Verdicts of a script:

    equal      every run finished with the result of an undisturbed run, to the byte
    restarts   equal, but it began again from the start after an interruption, and said so
    refused    a run ended with the reason why it does not resume
    unfinished a run failed, or took too long
    wrong      a run finished with another result

The work lost at an interruption is that of the lines which were printed again. States are saved every four
lines here, and every minute outside of this program.
"""

import argparse
import hashlib
import importlib.util
import json
import math
import os
import random
import re
import select
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
from typing import Any

FOLDER = Path(__file__).parent / "scripts"
REPOSITORY = Path(__file__).parents[2]
RESULT, CHECKPOINTS = "result.json", "ckpt"
GRACE_S = 30.0
LONGEST_S = 300.0
NEEDS = "# needs: "
MOST_FAULTS = 3
STEP = re.compile("(?:step|tree|epoch|evaluates) ")
"""Begins a line of progress; frameworks print others."""
PROGRESS = Path("~/.cache/dlcloud-tests/corpus.jsonl").expanduser()

sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "templates")]
from checkpoints import is_open, scan  # noqa: E402  of templates/

from dlcloud.benchmarks import resume as hook_sources  # noqa: E402
from dlcloud.benchmarks.command import reporting  # noqa: E402  from this checkout, without an installation
from dlcloud.benchmarks.resume import install  # noqa: E402


@dataclass
class Verdict:
    """What became of one script."""

    name: str
    moments: int = 0
    equal: int = 0
    resumed: int = 0
    refused: int = 0
    unfinished: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: dict[bool, list[tuple[float, float]]] = field(default_factory=lambda: {True: [], False: []})
    """Lines and seconds by interruption, with and without a notice."""

    def word(self) -> str:
        if self.wrong:
            return "unfinished" if self.unfinished == len(self.wrong) else "wrong"
        if self.refused:
            return "refused"
        if not self.moments:
            return "not tried"
        return "equal" if self.resumed else "restarts"

    def take(self, trial: Mapping[str, Any]) -> None:
        """Add what became of one run from its beginning to its end."""
        self.resumed += trial["resumed"]
        outcome = trial["outcome"]
        if outcome in {"equal", "wrong"}:
            self.moments += trial["moments"]
            again = trial["again"] / trial["moments"]
            self.lost[trial["notice"]].append((again, again * trial["pace_s"]))
        self.equal += outcome == "equal"
        self.refused += outcome == "refused"
        self.unfinished += outcome == "unfinished"
        if outcome in {"wrong", "unfinished"}:
            self.wrong.append(trial["fault"])

    def row(self) -> str:
        cells = [self.name, self.word(), str(self.moments), str(self.resumed)]
        for notice in (True, False):
            lost = self.lost[notice]
            cells.append("{:.1f} ({:.2f} s)".format(*max(lost)) if lost else "")
        return f"| {' | '.join(cells)} |"


TABLE = """\
| script | result | interruptions | resumed | lines lost with a notice, at most | without one, at most |
|---|---|---|---|---|---|"""


class Progress:
    """What has been tried, in a file; what was tried with another script or hook does not count."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.baselines: dict[str, dict[str, Any]] = {}
        self.trials: dict[tuple[str, ...], dict[str, Any]] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                self._take(json.loads(line))

    def note(self, **entry: Any) -> dict[str, Any]:
        self._take(entry)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return entry

    def _take(self, entry: dict[str, Any]) -> None:
        if "trial" in entry:
            self.trials[entry["key"], entry["trial"]] = entry
        else:
            self.baselines[entry["key"]] = entry


def key_of(script: Path) -> str:
    """Return a digest of what decides how a script continues."""
    digest = hashlib.sha256(script.name.encode())
    shared = [path for path in FOLDER.iterdir() if path.name.startswith("_") and path.is_file()]
    for path in sorted([*Path(hook_sources.__file__).parent.glob("*.py"), *shared, script]):
        digest.update(path.read_bytes())
    return f"{script.name} {digest.hexdigest()[:16]}"


def trials_of(moments: int) -> Iterator[tuple[bool, int]]:
    """Yield the runs by notice and number of interruptions: half of these with a notice."""
    left, most = {True: (moments + 1) // 2, False: moments // 2}, 1
    while any(left.values()):
        for notice, now in left.items():
            if now:
                yield notice, min(now, most)
                left[notice] -= min(now, most)
        most = 2


def scripts() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.suffix in {".py", ".sh"} and path.name[0] != "_")


def needs(script: Path) -> list[str]:
    """Return the packages that a script imports, from its line `# needs: …`."""
    for line in script.read_text().splitlines():
        if line.startswith(NEEDS):
            return line.removeprefix(NEEDS).split()
    return []


def command(script: Path, python: str) -> list[str]:
    return ["bash", script.name] if script.suffix == ".sh" else [python, script.name]


def is_resuming(script: Path) -> bool:
    """Whether a recipe for the script says `resume: auto`."""
    return "# resume: none" not in script.read_text()


def lay_out(folder: Path) -> None:
    """Copy the scripts into the folder of a run."""
    for path in FOLDER.iterdir():
        if path.is_file():
            shutil.copy(path, folder)


def environment(python: str, extra: dict[str, str]) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


def start(script: Path, folder: Path, python: str, extra: dict[str, str]) -> "subprocess.Popen[str]":
    lay_out(folder)
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            command(script, python),
            cwd=folder,
            env=environment(python, extra),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


FORKS = """
import gc, importlib, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
if "transformers" in sys.argv:
    from transformers import Trainer
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        for number, name in ((0, os.devnull), (1, ".output"), (2, "log")):
            os.dup2(os.open(name, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT), number)
        sys.argv[:] = [order["script"]]
        sys.path[0] = order["folder"]
        status = 1
        try:
            import runpy
            runpy.run_path(order["script"], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException as error:
            sys.last_value = error
            sys.excepthook(type(error), error, error.__traceback__)
        import atexit
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that has imported the frameworks, and forks for each run: an import takes longer than a run."""


class Forked:
    """One run of a script, with what this program uses of Popen."""

    def __init__(
        self, parent: "subprocess.Popen[str]", script: Path, folder: Path, environment: dict[str, str]
    ) -> None:
        assert parent.stdin is not None
        assert parent.stdout is not None
        os.mkfifo(folder / ".output")
        order = {"script": script.name, "folder": str(folder), "environment": environment}
        print(json.dumps(order), file=parent.stdin, flush=True)
        self._parent = parent.stdout
        self.pid = int(self._parent.readline())
        self.stdout = (folder / ".output").open()
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._parent], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            self.returncode = int(self._parent.readline())
        return self.returncode


class Forks:
    """Starts runs, by forks where a script needs a framework."""

    def __init__(self, hook: Path, python: str = sys.executable) -> None:
        self.python, self.hook = python, hook
        self._parents: dict[tuple[str, ...], subprocess.Popen[str]] = {}

    def start(self, script: Path, folder: Path, extra: dict[str, str]) -> "subprocess.Popen[str] | Forked":
        names = tuple(needs(script))
        if script.suffix == ".sh" or not names or script.name == "child_process.py":
            return start(script, folder, self.python, extra)
        if names not in self._parents:
            variables = {
                "DLCLOUD_RESUME": "auto",
                "DLCLOUD_CHECKPOINTS": str(self.hook),
                "PYTHONPATH": str(self.hook),
                **({"KERAS_BACKEND": names[0]} if "keras" in names else {}),  # the script sets it too late
            }
            parent = subprocess.Popen(
                [self.python, "-c", FORKS, *names],
                env=environment(self.python, variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            assert parent.stdout is not None
            parent.stdout.readline()
            self._parents[names] = parent
        lay_out(folder)
        return Forked(self._parents[names], script, folder, environment(self.python, extra))

    def close(self) -> None:
        for parent in self._parents.values():
            assert parent.stdin is not None
            parent.stdin.close()
            parent.wait()


def end_group(process: "subprocess.Popen[str] | Forked", number: signal.Signals) -> None:
    """Signal a process group. SIGKILL reaches other groups, such as those of torchrun's workers."""
    family = descendants(process.pid) if number == signal.SIGKILL else []
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    for one in family:
        with suppress(ProcessLookupError):
            os.kill(one, number)


def descendants(parent: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
    found = [parent]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def follow(
    process: "subprocess.Popen[str] | Forked",
    stop_after: int | None,
    wait_s: float,
    *,
    notice: bool,
) -> list[str]:
    """Read what a run prints; interrupt it `wait_s` after that many lines. Returns the lines."""
    assert process.stdout is not None
    lines = []
    watch = threading.Timer(LONGEST_S, end_group, [process, signal.SIGKILL])
    watch.start()
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if stop_after is not None and len(lines) >= stop_after:
                time.sleep(wait_s)
                if notice:
                    end_group(process, signal.SIGTERM)
                    until = time.monotonic() + GRACE_S
                    process.wait(GRACE_S)
                    while group_lives(process.pid) and time.monotonic() < until:
                        time.sleep(0.02)
                break
    except subprocess.TimeoutExpired:
        pass
    watch.cancel()
    end_group(process, signal.SIGKILL)
    lines += [line.rstrip("\n") for line in process.stdout]
    process.wait()
    return lines


def undisturbed(script: Path, python: str, hook: Path) -> tuple[str, int, float]:
    """Return the result of a run that nothing disturbs, its lines, and the time between two of them."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name)
        (folder / CHECKPOINTS).mkdir()
        process = start(script, folder, python, {"PYTHONPATH": str(hook)})
        assert process.stdout is not None
        times = [time.monotonic() for line in process.stdout if STEP.match(line)]
        if process.wait():
            raise SystemExit(f"{script.name} fails undisturbed: {(folder / 'log').read_text()[-2000:]}")
        mean_s = (times[-1] - times[0]) / max(1, len(times) - 1)
        return (folder / RESULT).read_text(), len(times), mean_s


def keep(source: Path, kept: Path, ended: threading.Event) -> None:
    """Copy checkpoints that nothing writes, again and again, as an instance does."""
    new = kept.with_name("new")
    while not ended.is_set():
        with suppress(OSError, shutil.Error):
            shutil.rmtree(new, ignore_errors=True)
            before = scan(source, ["*"])
            if not is_open(source, before):
                shutil.copytree(source, new, symlinks=True)
                if scan(source, ["*"]) == before and not is_open(source, before):
                    shutil.rmtree(kept, ignore_errors=True)
                    new.rename(kept)
        ended.wait(0.02)


def survive(
    script: Path,
    forks: Forks,
    chance: random.Random,
    baseline: Mapping[str, Any],
    moments: int,
    *,
    notice: bool,
) -> dict[str, Any]:
    """Run a script that is interrupted that often to its end; return what became of it."""
    expected, count, pace_s = baseline["result"], baseline["lines"], baseline["pace_s"]
    trial = {"notice": notice, "moments": moments, "resumed": 0, "again": 0, "pace_s": pace_s}
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        carried = Path(name, "carried")
        carried.mkdir()
        resume = {"DLCLOUD_RESUME": "auto"} if is_resuming(script) else {}
        printed = 0
        for number in range(moments + 1):
            folder = Path(name, f"run-{number}")
            folder.mkdir()
            shutil.copytree(carried, folder / CHECKPOINTS, symlinks=True)
            extra = {
                "PYTHONPATH": str(forks.hook),
                "DLCLOUD_CHECKPOINTS": str(folder / CHECKPOINTS),
                "DLCLOUD_RESUME_RUN": name,
                "DLCLOUD_RESUME_INTERVAL_S": str(4 * pace_s),
                **resume,
            }
            process = forks.start(script, folder, extra)
            is_last = number == moments
            after = None if is_last else chance.randint(1, max(1, count - 1))
            kept = Path(name, "kept")
            ended = threading.Event()
            keeper = threading.Thread(target=keep, args=(folder / CHECKPOINTS, kept, ended))
            if not is_resuming(script):
                keeper.start()
            lines = follow(process, after, chance.random() * pace_s, notice=notice)
            ended.set()
            if keeper.ident:
                keeper.join()
            printed += sum(STEP.match(line) is not None for line in lines)
            log = (folder / "log").read_text()
            if " resumes after step " in log or any("resumes" in line for line in lines):
                trial["resumed"] += 1
            if process.returncode == 0:
                result = (folder / RESULT).read_text()
                trial.update(moments=number, again=max(0, printed - count))
                if result == expected:
                    return {**trial, "outcome": "equal"}
                fault = f"{result[:300]!r} instead of {expected[:300]!r}: {log[-600:]}"
                return {**trial, "outcome": "wrong", "fault": fault}
            if is_last or (after is not None and len(lines) < after):
                if "is not resumed: " in log:
                    return {**trial, "outcome": "refused"}
                fault = f"exit status {process.returncode}: {log[-600:]}"
                return {**trial, "outcome": "unfinished", "fault": fault}
            shutil.rmtree(carried)
            is_cut_off = process.returncode < 0 and kept.exists()  # a write may have been, too
            shutil.copytree(kept if is_cut_off else folder / CHECKPOINTS, carried, symlinks=True)
            shutil.rmtree(folder)
    raise AssertionError("the last run ends")


def examine(
    script: Path,
    forks: Forks,
    *,
    moments: int,
    seed: int,
    progress: Progress | None = None,
    until: float = math.inf,
) -> Verdict:
    """Interrupt a script at that many moments, at most two in one run to its end.

    `until`: the monotonic time after which no further run begins.
    """
    progress, verdict, key = progress or Progress(), Verdict(script.name), key_of(script)
    for number, (notice, count) in enumerate(trials_of(moments)):
        name = f"{seed} {number} {notice} {count}"
        trial = progress.trials.get((key, name))
        if trial is None:
            if time.monotonic() > until or len(verdict.wrong) >= MOST_FAULTS:
                break
            if key not in progress.baselines:
                result, lines, pace_s = undisturbed(script, forks.python, forks.hook)
                progress.note(key=key, result=result, lines=lines, pace_s=pace_s)
            chance = random.Random(f"{name} {script.name}")
            trial = survive(script, forks, chance, progress.baselines[key], count, notice=notice)
            progress.note(key=key, trial=name, **trial)
        if trial["moments"]:
            verdict.take(trial)
    return verdict


def lacks(script: Path, python: str) -> list[str]:
    """Return the packages that a script needs and an interpreter lacks."""
    names = needs(script)
    if Path(python) == Path(sys.executable):
        return [name for name in names if importlib.util.find_spec(name) is None]
    probe = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if not importlib.util.find_spec(n)])"
    return subprocess.run(
        [python, "-c", probe, *names], check=True, capture_output=True, text=True
    ).stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description="Interrupt the scripts of the corpus at random moments.")
    parser.add_argument("names", nargs="*", help="scripts; all by default")
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="has the frameworks")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it ends, to be run again")
    parser.add_argument("--progress", type=Path, default=PROGRESS, help="what has been tried")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    arguments.progress.parent.mkdir(parents=True, exist_ok=True)
    progress, verdicts = Progress(arguments.progress), []
    with tempfile.TemporaryDirectory(prefix="hook-") as name:
        install(Path(name))
        shutil.copy(reporting.__file__, Path(name, reporting.MODULE))
        forks = Forks(Path(name), arguments.python)
        for script in scripts():
            if arguments.names and script.name not in arguments.names:
                continue
            if missing := lacks(script, arguments.python):
                print(f"{script.name:32} skipped: no {', '.join(missing)}", flush=True)
                continue
            verdict = examine(
                script, forks, moments=arguments.moments, seed=arguments.seed, progress=progress, until=until
            )
            verdicts.append(verdict)
            for fault in verdict.wrong:
                print(f"{script.name}: {fault}", flush=True)
        forks.close()
    print("\n".join([TABLE, *(verdict.row() for verdict in verdicts)]))
    words = [verdict.word() for verdict in verdicts]
    print(json.dumps({word: words.count(word) for word in sorted(set(words))}))
    if time.monotonic() > until:
        print("not all was tried: the same command continues")
    return 1 if {"wrong", "unfinished"} & set(words) else 0


if __name__ == "__main__":
    sys.exit(main())
