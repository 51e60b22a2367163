"""What hook and copies of `resume: auto` take of a program's time.

    python tests/performance/interruptions.py --pairs 2 --seconds 75 --mb 50

A loop of NumPy runs in pairs, in turn with and without the hook and the process that publishes its states
(`templates/checkpoints.py`), as an instance runs them: a state each minute, its digest, its copy on the disk.
Its copy to the launcher is sent by the instance's SSH server, and is not in it. The ratio of CPU seconds
counts all processes of a run, and may be used while the machine does other things; that of wall seconds not.
A program without `checkpoints` has neither hook nor process.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dlcloud.benchmarks.command import reporting  # noqa: E402  the path comes first
from dlcloud.benchmarks.resume import install  # noqa: E402
from tests.performance.pairs import interval  # noqa: E402

GOAL = 1.03
PROGRAM = """
import sys, time
import numpy as np
steps, mb, is_kept = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "kept"
state = {"weights": np.zeros(mb << 17)}
work = np.ones(200_000)
if is_kept:
    import dlcloud_report
    dlcloud_report.checkpoint(state)
for step in range(steps):
    for _ in range(50):
        work = np.sqrt(work * 1.0001)
    state["weights"][step % 1000] += work[0]
    if is_kept:
        dlcloud_report.checkpoint(step=step + 1)
"""


def measure(folder: Path, steps: int, megabytes: int, *, kept: bool) -> tuple[float, float]:
    """Run the program once; return its wall seconds, and the CPU seconds of all its processes."""
    work = folder / "work"
    (work / "checkpoints").mkdir(parents=True)
    (work / "train.py").write_text(PROGRAM)
    variables, keeper = {**os.environ, "OMP_NUM_THREADS": "1"}, None
    if kept:
        install(folder)
        (folder / reporting.MODULE).write_bytes(Path(reporting.__file__).read_bytes())
        options = {"patterns": ["checkpoints/"], "is_kept": True, "key": "k"}
        (folder / "checkpoints.json").write_text(json.dumps(options))
        variables |= {
            "PYTHONPATH": str(folder),
            "DLCLOUD_RESUME": "auto",
            "DLCLOUD_CHECKPOINTS": str(work / "checkpoints"),
        }
        words = ["-I", "-S", str(ROOT / "templates" / "checkpoints.py"), "keep", str(folder)]
        nowhere = {**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
        keeper = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, env=nowhere)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    words = [sys.executable, "train.py", str(steps), str(megabytes), "kept" if kept else "plain"]
    subprocess.run(words, cwd=work, env=variables, check=True, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    if keeper is not None:
        keeper.communicate(b"0")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if kept:
        states = len(list(work.glob("checkpoints/dlcloud-resume/*/step-*")))
        assert states, "no state was saved: the run is too short"
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what hook and copies take of a program's time.")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=75.0, help="of one run, about")
    parser.add_argument("--mb", type=int, default=50, help="size of a state")
    arguments = parser.parse_args()

    def once(steps: int, *, kept: bool) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as name:
            return measure(Path(name), steps, arguments.mb, kept=kept)

    trial = once(200, kept=False)
    steps = max(1, round(200 * arguments.seconds / trial[0]))
    pairs = [(once(steps, kept=True), once(steps, kept=False)) for _ in range(arguments.pairs)]
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    for title, place in (("CPU seconds", 1), ("wall seconds", 0)):
        ratios = [mine[place] / plain[place] for mine, plain in pairs]
        low, high = interval(ratios)
        ratio = statistics.median(ratios)
        verdict = "met" if ratio <= GOAL else "MISSED"
        print(f"{title}, with over without: {ratio:.3f} ({low:.3f} to {high:.3f})  goal {GOAL}  {verdict}")
    size = f"{arguments.mb} MB a state, {arguments.pairs} pairs of {arguments.seconds:.0f} s"
    print(f"{size}, load {load:.1f} a core")


if __name__ == "__main__":
    main()
