"""Kill a process that stores inside SQLite: python killed_writer.py FOLDER MODE START STEP END.

MODE bytes: it is killed by the first write behind byte N of any file, which may have been written in part.
MODE instructions: it is killed with -9 before the N-th instruction of SQLite's virtual machine.
For each N, a forked child stores a cluster, a run, its records and intents, and says what was stored; all
of it must be in the store. Prints {"killed": how often, "ended": how often, "lost": [...]}.
"""

import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

from dlcloud.analysis.result import RunState
from dlcloud.model.cluster import ClusterState
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from dlcloud.system.files import write_file
from tests.fakes.samples import THEN, cluster, run

RECORD = b'{"record": "sample", "value": %d}\n'
ROUNDS = 5
BATCH = 40


def store_all(folder, say):
    """Store, and say after each step that it is stored."""
    database = Database(folder / "store.sqlite")
    say("opened")
    count_instructions(database)
    clusters, runs = Clusters(database), Runs(database)
    clusters.add(cluster(cluster_id="a"))
    say("cluster")
    runs.add(run("r", cluster_id="a"))
    say("run")
    position = 0
    for number in range(ROUNDS):
        intent = clusters.begin_intent("a", "launch", str(number), THEN)
        clusters.end_intent(intent, "done", THEN)
        say(f"intent {number}")
        content = b"".join(RECORD % (number * BATCH + value) for value in range(BATCH))
        runs.add_records("r", position, content)
        position += len(content)
        say(f"records {number}")
        write_file(folder / "hosts", f"{number}\n" * 5000)
        say(f"file {number}")
    runs.end("r", RunState.DONE, 0, THEN)
    say("end")
    clusters.set_state("a", ClusterState.DOWN, THEN)
    say("down")
    database.close()


def count_instructions(database):
    if MODE != "instructions":
        return
    left = [POINT]

    def count():
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    database._connection.set_progress_handler(count, 1)


def child(folder, pipe):
    if MODE == "bytes":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (POINT, POINT))
    store_all(folder, lambda step: os.write(pipe, f"{step}\n".encode()))


def faults(folder, steps):
    """Name what was said to be stored and is not, or is stored in part."""
    if not steps and not (folder / "store.sqlite").exists():
        return []
    database = Database(folder / "store.sqlite")
    clusters, runs = Clusters(database), Runs(database)
    stored = len(runs.lines("r", "sample"))
    content = (folder / "hosts").read_text() if (folder / "hosts").exists() else ""
    done = [intent for intent in clusters.intents("a", "launch") if intent.outcome]
    wrong = {
        "cluster": "cluster" in steps and not clusters.all(),
        "run": "run" in steps and not runs.all(),
        "records": stored < BATCH * sum(step.startswith("records") for step in steps),
        "a part of records": stored % BATCH != 0,
        "position": runs.stored_bytes("r") != sum(len(line) + 1 for line in runs.lines("r", "sample")),
        "intents": len(done) < sum(step.startswith("intent") for step in steps),
        "file": len(content) < 10000 * any(step.startswith("file") for step in steps),
        "a part of a file": len(content) not in {0, 10000} or len(set(content.split())) > 1,
        "end": "end" in steps and runs.all()[0].state is not RunState.DONE,
        "down": "down" in steps and clusters.all()[0].state is not ClusterState.DOWN,
        "integrity": database.read("PRAGMA integrity_check")[0][0] != "ok",
    }
    database.close()
    return [name for name, is_wrong in wrong.items() if is_wrong]


def try_point(folder):
    """Return how the child ended, and what is wrong in its store."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(folder, writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        steps = said.read().split("\n")[:-1]
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status), faults(folder, steps)


ROOT, MODE, (START, STEP, END) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:6])
counts = {"killed": 0, "ended": 0, "lost": []}
for POINT in range(START, END, STEP):
    killed, lost = try_point(ROOT / "home")
    counts["killed" if killed else "ended"] += 1
    counts["lost"] += [f"{MODE} {POINT}: {name}" for name in lost]
print(json.dumps(counts))  # noqa: T201  a program
