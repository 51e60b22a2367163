"""What hook and copies of `resume: auto` take of a program's time.

    python tests/performance/interruptions.py --seconds 150 --mb 50

A loop of NumPy runs with the hook, and with the process that publishes its states on an instance
(`templates/checkpoints.py`): a state each minute, its digest, its copy on the disk. Its copy to the launcher
is sent by the instance's SSH server, and is not in it. Within one run, the time in which the loop computes is
compared with that in calls of the hook, and with the processor time of the other process: a drift of the
machine changes all alike. A program without `checkpoints` has neither hook nor process.
"""

import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path

from common import PYTHON, ROOT, hook_variables, parser_of, verdict

GOAL = 0.03
PROGRAM = """
import sys, time
import numpy as np
import dlcloud_report

seconds, mb = float(sys.argv[1]), int(sys.argv[2])
state, work = {"weights": np.zeros(mb << 17)}, np.ones(200_000)
spent, began = [0.0, 0.0], (time.perf_counter(), time.process_time())
step = dlcloud_report.checkpoint(state)
while time.perf_counter() < began[0] + seconds:
    for _ in range(50):
        work = np.sqrt(work * 1.0001)
    state["weights"][step % 1000] += work[0]
    step += 1
    at = time.perf_counter(), time.process_time()
    dlcloud_report.checkpoint(step=step)
    spent[0] += time.perf_counter() - at[0]
    spent[1] += time.process_time() - at[1]
print(time.perf_counter() - began[0] - spent[0], time.process_time() - began[1] - spent[1], *spent)
"""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--mb", type=int, default=50, help="size of a state")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, work = Path(name), Path(name, "work")
        (work / "checkpoints").mkdir(parents=True)
        (work / "train.py").write_text(PROGRAM)
        options = {"patterns": ["checkpoints/"], "is_kept": True, "key": "k"}
        (folder / "checkpoints.json").write_text(json.dumps(options))
        variables = {
            **os.environ,
            **hook_variables(folder, work / "checkpoints"),
            "OMP_NUM_THREADS": "1",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        }
        words = ["-I", "-S", str(ROOT / "templates" / "checkpoints.py"), "keep", name]
        keeper = subprocess.Popen([PYTHON, *words], stdin=subprocess.PIPE, env=variables)
        words = ["train.py", str(arguments.seconds), str(arguments.mb)]
        done = subprocess.run(
            [PYTHON, *words], cwd=work, env=variables, check=True, capture_output=True, text=True
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        keeper.communicate(b"0")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        records = (folder / "records.jsonl").read_text().splitlines()
    wall, cpu, hook_wall, hook_cpu = map(float, done.stdout.split())
    keeper_cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    states = sum(json.loads(record)["record"] == "checkpoint" for record in records)
    share = (hook_cpu + keeper_cpu) / cpu
    print(f"{states} states of {arguments.mb} MB in {wall + hook_wall:.0f} s")
    print(f"the hook: {hook_wall / wall:.2%} of the loop's wall time, {hook_cpu / cpu:.2%} of its CPU time")
    print(f"the other process: {keeper_cpu / cpu:.2%} of the loop's CPU time")
    print(f"CPU time of both: {share:.2%}  goal {GOAL:.0%}  {verdict(share <= GOAL)}")
    print(f"load {os.getloadavg()[0] / (os.cpu_count() or 1):.1f} a core")


if __name__ == "__main__":
    main()
