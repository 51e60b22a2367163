"""Interrupt the scripts of this folder on the local EC2, and compare their results with undisturbed runs.

    python tests/corpus/run.py                             each script, 10 moments, half of them with a notice
    python tests/corpus/run.py hf_trainer.py --moments 40 --seed 3
    python tests/corpus/run.py --python ENVIRONMENT/bin/python --minutes 8 --parallel 4

What has been tried is noted in a file: the same command continues where it stopped, and prints the table.
A change of the script or of the hook begins that script anew.

Each script is run by `dlcloud up` with `market: spot`, in one home for all of them. Instances see the files
of this machine (isolation level `none`), so that nothing is installed. Pauses between steps are 20 times as
long there as in the undisturbed run, which is a process without dlcloud. A moment is a line that the script
prints, and a fraction of the time until the next one. Verdicts of a script:

    equal      every run finished with the result of an undisturbed run, to the byte
    restarts   equal, but it began again from the start after an interruption, and said so
    refused    a run ended with the reason why it does not resume
    unfinished a run failed, or took too long
    wrong      a run finished with another result

The work lost at an interruption is that of the lines which were printed again. Hooked scripts save every 5
seconds here, and every minute outside of this program.
"""

import argparse
import hashlib
import importlib.util
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "scripts"
REPOSITORY = Path(__file__).parents[2]
RESULT, CHECKPOINTS = "result.json", "ckpt"
GRACE_S = 120.0
"""From the notice to the end of an instance, as on EC2."""
LONGEST_S = 600.0
SLOWER, SAVED_EACH_S = 20, 5.0
NEEDS = "# needs: "
MOST_FAULTS = 3
STEP = re.compile("(?:step|tree|epoch|evaluates) ")
"""Begins a line of progress; frameworks print others."""
PROGRESS = Path("~/.cache/dlcloud-tests/corpus.jsonl").expanduser()
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}

sys.path.insert(0, str(REPOSITORY))
from dlcloud.benchmarks import resume as hook_sources  # noqa: E402
from dlcloud.benchmarks.command import reporting  # noqa: E402  from this checkout, without an installation
from dlcloud.benchmarks.resume import install  # noqa: E402
from dlcloud.runs.replacement import PARTS  # noqa: E402
from tests.e2e.terminal import DLCLOUD, User  # noqa: E402


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
    lost: dict[bool, list[tuple[float, float, float]]] = field(default_factory=lambda: {True: [], False: []})
    """Lines and seconds by interruption, with and without a notice, and seconds since the last checkpoint."""

    restarts: list[dict[str, Any]] = field(default_factory=list)
    """As `dlcloud.runs.replacement.Restart.to_values` gives them."""

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
        if trial["moments"]:
            self.moments += trial["moments"]
            again = trial["again"] / trial["moments"]
            since_s = trial["since_s"] / trial["moments"]
            self.lost[trial["notice"]].append((again, again * trial["pace_s"], since_s))
        self.restarts += trial["restarts"]
        self.equal += outcome == "equal"
        self.refused += outcome == "refused"
        self.unfinished += outcome == "unfinished"
        if outcome in {"wrong", "unfinished"}:
            self.wrong.append(trial["fault"])

    def row(self) -> str:
        cells = [self.name, self.word(), str(self.moments), str(self.resumed)]
        for notice in (True, False):
            lost = self.lost[notice]
            cells.append("{:.1f} ({:.1f} s)".format(*max(lost)) if lost else "")
        for event in ("notice", "loss"):
            restarts = [restart for restart in self.restarts if restart["after"] == event]
            cells.append(describe_ratio(restarts, "first_line_s"))
        return f"| {' | '.join(cells)} |"


TABLE = """\
| script | result | interruptions | resumed | lines lost with a notice, at most | without one, at most \
| first line after a notice / parts: ratio | after a loss |
|---|---|---|---|---|---|---|---|"""
"""A restart is compared with the sum of its parts: boot, environment, checkpoints."""


def parts_s(restart: Mapping[str, Any]) -> float:
    """Return how long the parts took that no restart can do without."""
    return float(sum(restart[f"{part}_s"] for part in PARTS))


def describe_ratio(restarts: Iterable[Mapping[str, Any]], until: str) -> str:
    """Return the median times to an event and of the parts, and the median and largest ratio of the two."""
    both = [(restart[until], parts_s(restart)) for restart in restarts if restart.get(until)]
    if not both:
        return ""
    time_s, sum_s = map(statistics.median, zip(*both, strict=True))
    ratios = [whole / parts for whole, parts in both]
    return f"{time_s:.1f} / {sum_s:.1f} s: {statistics.median(ratios):.2f} (at most {max(ratios):.2f})"


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


def lay_out(folder: Path, slower: int = 1) -> None:
    """Copy the scripts into the folder of a run; their pauses are multiplied by `slower`."""
    for path in FOLDER.iterdir():
        if path.is_file():
            (folder / path.name).write_text(path.read_text().replace("sleep(", f"sleep({slower} * "))


def undisturbed(script: Path, python: str, hook: Path) -> dict[str, Any]:
    """Return the result of a run that nothing disturbs, without dlcloud, and the number of its lines."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name)
        (folder / CHECKPOINTS).mkdir()
        lay_out(folder)
        path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        run = subprocess.run(
            command(script, python),
            cwd=folder,
            env={**VARIABLES, "HOME": name, "PATH": path, "PYTHONPATH": str(hook)},  # as on an instance
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise SystemExit(f"{script.name} fails undisturbed: {run.stderr[-2000:]}")
        lines = sum(STEP.match(line) is not None for line in run.stdout.splitlines())
        return {"result": (folder / RESULT).read_text(), "lines": lines}


class Instances:
    """The local EC2 of one home, on which scripts run; `python` has the frameworks.

    Its instances boot in a second and need no packages; `setup_s` stands for what that takes on EC2.
    """

    def __init__(self, folder: Path, python: str = sys.executable, setup_s: float = 0.0) -> None:
        self.setup_s = setup_s
        self.python, self.hook = python, folder / "hook"
        install(self.hook)
        shutil.copy(reporting.__file__, self.hook / reporting.MODULE)
        (folder / "home").mkdir()
        self.user = User(folder / "home", variables={"DLCLOUD_LOCAL_ISOLATION": "none"})
        self.user.run("local", "start")

    def close(self) -> None:
        self.user.run("local", "stop")

    def begin(self, script: Path, name: str) -> "subprocess.Popen[bytes]":
        """Start the `dlcloud up` of a script on a cluster of that name; what it prints is in its log."""
        folder = self.user.home / name
        folder.mkdir()
        lay_out(folder, SLOWER)
        path = f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin"
        variables = {**VARIABLES, "PATH": path, "DLCLOUD_RESUME_INTERVAL_S": str(SAVED_EACH_S)}
        words = [f"{key}={value}" for key, value in variables.items()]
        recipe = {
            "name": name,
            "cloud": "local",
            "instances": {"types": ["c5.xlarge", "c5.2xlarge"], "market": "spot"},
            "workload": {
                "command": shlex.join(["env", *words, *command(script, self.python)]),
                "files": ".",
                "checkpoints": [f"{CHECKPOINTS}/"],
                "resume": "auto" if is_resuming(script) else "none",
            },
            "budget": {"max_hours": 1},
            **({"setup": {"commands": f"sleep {self.setup_s:g}"}} if self.setup_s else {}),
        }
        (folder / "recipe.yaml").write_text(json.dumps(recipe))
        with (folder / "up.log").open("wb") as log:
            return subprocess.Popen(
                [DLCLOUD, "up", "recipe.yaml", "--yes", "--name", name],
                cwd=folder,
                env=self.user.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def interrupt(self, instance_id: str, *, notice: bool) -> None:
        self.user.control.interrupt(instance_id, GRACE_S if notice else 0.0)

    def interruptions(self, name: str) -> list[dict[str, Any]]:
        """Return what is stored of the interruptions of a cluster's runs, with their restarts."""
        statement = "SELECT detail FROM intents JOIN clusters USING (cluster_id)"
        condition = f"action = 'interruption' AND name = '{name}'"
        stored = self.user.store(f"{statement} WHERE {condition} ORDER BY intent_id")
        return [json.loads(text) for (text,) in stored]

    def logs(self, name: str) -> Iterator[Path]:
        """Return the logs of a cluster's runs: on its instances, and in the home."""
        home = self.user.home / ".dlcloud"
        yield from home.glob(f"local/instances/*/home/dlcloud/runs/{name}-*/log")
        yield from home.glob(f"runs/{name}-*/log")


class Output:
    """What the runs of a cluster have printed so far, also on instances that are gone."""

    def __init__(self, instances: Instances, name: str) -> None:
        self.instances, self.name = instances, name
        self.texts: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.times: dict[str, list[float]] = {}

    def read(self) -> None:
        for path in self.instances.logs(self.name):
            with suppress(OSError):
                run, text = path.parent.name, path.read_text(errors="replace")
                if "instances" in path.parts:
                    self.places[run] = path.parts[path.parts.index("instances") + 1]
                if len(text) > len(self.texts.get(run, "")):
                    self.texts[run] = text
                    times = self.times.setdefault(run, [])
                    times += [time.monotonic()] * (self.lines(run) - len(times))

    def lines(self, run: str) -> int:
        return sum(STEP.match(line) is not None for line in self.texts[run].splitlines())

    def pace_s(self) -> float:
        """Return the time between two lines, of the run that printed most."""
        times = max(self.times.values(), key=len)
        return (times[-1] - times[0]) / max(1, len(times) - 1)


def survive(
    script: Path,
    instances: Instances,
    chance: random.Random,
    baseline: Mapping[str, Any],
    moments: int,
    *,
    name: str,
    notice: bool,
) -> dict[str, Any]:
    """Run a script that is interrupted that often to its end; return what became of it."""
    expected, count = baseline["result"], baseline["lines"]
    process, output = instances.begin(script, name), Output(instances, name)
    until, hit = time.monotonic() + LONGEST_S * (moments + 1), dict[str, float]()
    after, wait_s = chance.randint(1, max(1, count - 1)), chance.random()
    while process.poll() is None:
        output.read()
        run = next((run for run in output.texts if run not in hit and run in output.places), "")
        if run and len(hit) < moments and output.lines(run) >= after:
            time.sleep(wait_s * output.pace_s())
            instances.interrupt(output.places[run], notice=notice)
            hit[run] = time.monotonic()
            after, wait_s = chance.randint(1, max(1, count - 1)), chance.random()
        if time.monotonic() > until:
            process.send_signal(signal.SIGTERM)
            until = math.inf
        time.sleep(0.05)
    output.read()
    said = (instances.user.home / name / "up.log").read_text()
    trial = {"notice": notice, "moments": len(hit), "pace_s": output.pace_s() if output.times else 0.0}
    printed = sum(map(output.lines, output.texts))
    trial["again"] = max(0, printed - count)
    trial["resumed"] = sum("resumes" in text for text in output.texts.values())
    interruptions = instances.interruptions(name)
    trial["since_s"] = sum(one["lost_s"] for one in interruptions)
    trial["restarts"] = [one["restart"] for one in interruptions if "restart" in one]
    firsts = [times[0] for times in output.times.values() if times]
    for at, restart in zip(hit.values(), trial["restarts"], strict=False):
        if later := [first for first in firsts if first > at]:
            restart["first_line_s"] = min(later) - at
    if process.returncode == 0:  # a program may end before its notice reaches it
        trial["moments"] = len(trial["restarts"])
    results = list((instances.user.home / ".dlcloud" / "runs").glob(f"{name}-*/files/{RESULT}"))
    if process.returncode == 0 and results:
        result = max(results, key=lambda path: path.stat().st_mtime).read_text()
        if result == expected:
            return {**trial, "outcome": "equal"}
        return {**trial, "outcome": "wrong", "fault": f"{result[:300]!r} instead of {expected[:300]!r}"}
    if any("is not resumed: " in text for text in output.texts.values()):
        return {**trial, "outcome": "refused"}
    fault = f"exit status {process.returncode}: {said[-1500:]}"
    return {**trial, "outcome": "unfinished", "fault": fault}


def examine(
    script: Path,
    instances: Instances,
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
        name = f"ec2 {seed} {number} {notice} {count}"
        name += f" setup {instances.setup_s:g}" if instances.setup_s else ""
        trial = progress.trials.get((key, name))
        if trial is None:
            if time.monotonic() > until or len(verdict.wrong) >= MOST_FAULTS:
                break
            if key not in progress.baselines:
                progress.note(key=key, **undisturbed(script, instances.python, instances.hook))
            chance, baseline = random.Random(f"{name} {script.name}"), progress.baselines[key]
            cluster = f"{script.stem}-{seed}-{number}".replace("_", "-")
            trial = survive(script, instances, chance, baseline, count, name=cluster, notice=notice)
            progress.note(key=key, trial=name, **trial)
        if trial["moments"] or trial["outcome"] != "equal":
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
    parser.add_argument("--parallel", type=int, default=2, help="scripts at a time")
    parser.add_argument("--setup", type=float, default=0.0, help="seconds that the setup of instances takes")
    parser.add_argument("--progress", type=Path, default=PROGRESS, help="what has been tried")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    arguments.progress.parent.mkdir(parents=True, exist_ok=True)
    progress, chosen = Progress(arguments.progress), []
    for script in scripts():
        if arguments.names and script.name not in arguments.names:
            continue
        if missing := lacks(script, arguments.python):
            print(f"{script.name:32} skipped: no {', '.join(missing)}", flush=True)
        else:
            chosen.append(script)
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        instances = Instances(Path(name), arguments.python, arguments.setup)

        def try_out(script: Path) -> Verdict:
            return examine(
                script,
                instances,
                moments=arguments.moments,
                seed=arguments.seed,
                progress=progress,
                until=until,
            )

        try:
            with ThreadPoolExecutor(arguments.parallel) as pool:
                verdicts = list(pool.map(try_out, chosen))
        finally:
            instances.close()
    for verdict in verdicts:
        for fault in verdict.wrong:
            print(f"{verdict.name}: {fault}", flush=True)
    print("\n".join([TABLE, *(verdict.row() for verdict in verdicts), "", *summary(verdicts)]))
    words = {verdict.word() for verdict in verdicts}
    if time.monotonic() > until:
        print("not all was tried: the same command continues")
    return 1 if {"wrong", "unfinished"} & words else 0


def summary(verdicts: list[Verdict]) -> list[str]:
    """Return what the project promises of all scripts together."""
    count = Counter(verdict.word() for verdict in verdicts)
    finished = count["equal"] + count["restarts"]
    lines = [
        f"scripts that finished with the undisturbed result: {finished} of {len(verdicts)}",
        f"of these, from the beginning as they say: {count['restarts']}",
        f"with another result: {count['wrong']}; refused with the reason: {count['refused']}",
        f"not finished: {count['unfinished']}; not tried: {count['not tried']}",
    ]
    for notice in (True, False):
        lost = [one for verdict in verdicts if verdict.word() == "equal" for one in verdict.lost[notice]]
        if lost:
            most = max(seconds for _, seconds, _ in lost)
            beyond = sum(seconds > since_s + 1 for _, seconds, since_s in lost)
            lines.append(
                f"work lost {'with' if notice else 'without'} a notice: at most {most:.1f} s; "
                f"more than the time since the last checkpoint in {beyond} of {len(lost)} runs"
            )
    restarts = [one for verdict in verdicts for one in verdict.restarts]
    for event in ("notice", "loss"):
        if some := [restart for restart in restarts if restart["after"] == event]:
            medians = {part: statistics.median(one[f"{part}_s"] for one in some) for part in PARTS}
            parts = ", ".join(f"{part} {median_s:.1f} s" for part, median_s in medians.items())
            lines += [
                f"{len(some)} restarts after a {event}: {parts} (medians)",
                f"to the program's start, since dlcloud had noticed: {describe_ratio(some, 'started_s')}",
                f"to its first line, since the interruption: {describe_ratio(some, 'first_line_s')}",
            ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
