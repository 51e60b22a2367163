"""A cluster of real workers on this machine: a lighthouse, and workers that join, drain and die on demand."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = "run-1"
FAST = {"quorum_s": 20.0, "heal_s": 20.0, "stall_s": 3.0, "stall_factor": 5.0}
LIMIT_S = 600.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_pair():
    """Return a free port whose next one is free, too: a lighthouse's, and its ledger's.

    Both lie below those that Linux gives to connections, one of which could take them meanwhile.
    """
    while True:
        port = secrets.randbelow(11_000) * 2 + 10_000
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


class Cluster:
    """Workers of one run.

    Args:
        python: An interpreter that has torch and torchft.
        folder: Where everything is written; the package `trainer` must lie in `folder/trainer`.
        script: What a worker runs: arguments of python.
        lighthouse: More arguments of the lighthouse.
    """

    host = "127.0.0.1"  # of the lighthouse

    def __init__(self, python, folder, script, lighthouse=()):
        self.python, self.folder, self.script = str(python), Path(folder), list(script)
        self.port = free_pair()
        self.lighthouse_arguments = list(lighthouse)
        self.lighthouse = None
        self.workers = {}

    def __enter__(self):
        self.start_lighthouse()
        return self

    def __exit__(self, *_):
        for process in [*self.workers.values(), self.lighthouse]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    @property
    def ledger_port(self):
        return self.port + 1

    def start_lighthouse(self, run=RUN):
        command = [self.python, "-m", "trainer.lighthouse", "--run", run, "--port", str(self.port)]
        ledger = self.folder / f"ledger-{self.port}.json"
        command += ["--ledger-port", str(self.ledger_port), "--ledger", str(ledger)]
        command += ["--records", str(self.journal)]
        self.lighthouse = self._spawn("lighthouse", [*command, *self.lighthouse_arguments], {})
        wait_until(self._is_up, "the lighthouse")

    def _is_up(self):
        assert self.lighthouse.poll() is None, (self.folder / "lighthouse.log").read_text()
        return self._listens(self.port) and self._listens(self.ledger_port)

    @property
    def journal(self):
        """The file of the steps that the lighthouse has recorded."""
        return self.records_path(f"lighthouse-{self.port}")

    def kill_lighthouse(self):
        self.lighthouse.kill()
        self.lighthouse.wait()

    def replace_lighthouse(self, step):
        """Start one that knows nothing but how far the run was, as on another machine."""
        self.port = free_pair()
        self.lighthouse_arguments = ["--step", str(step)]
        self.start_lighthouse()

    def write_control(self, name, **control):
        """Write a worker's control file, as the controller does."""
        write_control_file(self.folder / f"{name}.control", **control)

    def start(self, name, *, environment=(), script=None, **settings):
        values = {
            "run": RUN,
            "worker": name,
            "lighthouse": f"127.0.0.1:{self.port}",
            "ledger": f"127.0.0.1:{self.ledger_port}",
            "records": str(self.records_path(name)),
            "hash_every": 1,
            "control": str(self.folder / f"{name}.control"),
            "timing": FAST,
        }
        settings = {**values, **settings}
        extra = {"DLCLOUD_TRAINER": json.dumps(settings), **dict(environment)}
        self.workers[name] = self._spawn(name, [self.python, *(script or self.script)], extra)
        return self.workers[name]

    def signal(self, name, number):
        self.workers[name].send_signal(number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.workers[name].wait()

    def wait(self, name, timeout_s=LIMIT_S):
        return self.workers[name].wait(timeout_s)

    def records_path(self, name):
        return self.folder / f"{name}.jsonl"

    def records(self, name):
        with contextlib.suppress(FileNotFoundError):
            return read_records(self.records_path(name))
        return []

    def steps(self, name):
        return [record for record in self.records(name) if record["record"] == "step"]

    def events(self, name, event=None):
        events = [record for record in self.records(name) if record["record"] == "event"]
        return [record for record in events if event in {None, record["event"]}]

    def wait_for_step(self, name, step, timeout_s=LIMIT_S):
        def reached():
            steps = self.steps(name)
            if self.workers[name].poll() not in {None, 0}:
                raise AssertionError(f"{name} ended: {self.output(name)}")
            return bool(steps) and steps[-1]["step"] >= step

        wait_until(reached, f"step {step} of {name}", timeout_s)

    def output(self, name):
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def story(self):
        """Return the last events of every worker, for a failure's message."""
        lines = []
        for name, process in self.workers.items():
            events = [f"{e['event']} {e['cause'][:60]} {e.get('step', '')}" for e in self.events(name)[-4:]]
            steps = [f"{s['step']}/{s['world_size']}" for s in self.steps(name)[-2:]]
            lines.append(f"{name}: exit {process.poll()}; steps {steps}; {events}")
        return "\n".join(lines)

    def _spawn(self, name, command, extra, **options):
        environment = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.folder),
            **extra,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, **options
            )

    def _listens(self, port):
        with contextlib.suppress(OSError), socket.create_connection((self.host, port), 1):
            return True
        return False


def write_control_file(path, **control):
    """Write a control file whole, by renaming."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(control))
    unfinished.rename(path)


def wait_until(condition, goal, timeout_s=LIMIT_S):
    """Poll until a condition holds; what takes long to ask leaves the processor to what is waited for."""
    deadline = time.monotonic() + timeout_s
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain for {goal}")
        time.sleep(min(1.0, max(0.05, 2 * (now - began))))
        began = time.monotonic()


def read_records(path):
    """Read the records of a file, without a line that is still being written."""
    lines = Path(path).read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def lineage_of(workers):
    """Return the lineage of each step that the run went on with: what the latest commit descends from."""
    records = sorted((r for worker in workers for r in worker), key=lambda record: record["time"])
    parents = {(record["step"], record["lineage"]): record["parent"] for record in records}
    kept = {record["step"]: record["lineage"] for record in records}
    for step in range(records[-1]["step"], 1, -1):
        before = (step - 1, parents.get((step, kept.get(step))))
        if before in parents:
            kept[step - 1] = before[1]
    return kept


def check_exactly_once(workers, batches):
    """Check that every committed step was divided without gap or overlap, and that all workers agree on it.

    Args:
        workers: The step records of each worker, a list of lists.
        batches: Samples in the step of a number.
    """
    by_step = {}
    kept = lineage_of(workers)
    for worker in workers:
        for record in worker:
            if record["lineage"] == kept[record["step"]]:
                by_step.setdefault(record["step"], []).append(record)
    for step, records in sorted(by_step.items()):
        hashes = {record["hash"] for record in records if record["hash"]}
        assert len(hashes) <= 1, f"step {step} has {len(hashes)} different states"
        shares = {tuple(record["share"]) for record in records}
        covered = sorted(place for start, stop in shares for place in range(start, stop))
        assert len(set(covered)) == len(covered), f"step {step} took samples twice: {shares}"
        if len(records) == records[0]["world_size"]:
            assert covered == list(range(batches(step))), f"step {step} left samples out: {shares}"
    assert sorted(by_step) == list(range(1, max(by_step) + 1))
    return by_step
