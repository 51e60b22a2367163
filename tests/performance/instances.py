"""Instances of several workers each train together; one has a notice and leaves, with all of its workers.

    PYTHONPATH=. python tests/performance/instances.py --instances 12 --workers 8

All are processes of this machine, with the steps of a very small model: what is shown is that membership
holds at this size, not how fast it is. Needs about 0.2 GB of memory a worker.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.environments import ROOT, python_with
from tests.fakes.agents import Agents
from tests.fakes.metadata import NOTICE, Service
from tests.fakes.training import wait_until

PACKAGE = ROOT / "dlcloud" / "trainer"
LIMIT_S = 1500.0
SCRIPT = """
import time

import torch
from torch.utils.data import TensorDataset
from trainer.training import train

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
data = TensorDataset(torch.ones(96000, 4), torch.ones(96000, 1))
loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
train(model, torch.optim.SGD(model.parameters(), 0.01), data, loss, batch=96, epochs=1000,
      after_step=lambda *_: time.sleep(0.5))  # as if on a GPU: leaves the processor to newcomers
"""


def memory_gb(group: int) -> float:
    """Return the memory of a process group, of what processes share their parts."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == group:
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
        except OSError:
            continue
    return total / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on instances of several workers each.")
    parser.add_argument("--instances", type=int, default=12)
    parser.add_argument("--workers", type=int, default=8)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the end of `Agents`
    names = [f"instance-{number}" for number in range(arguments.instances)]
    many, last = ["--workers", str(arguments.workers)], names[-1]
    python = python_with(PACKAGE / "requirements" / "elastic.txt")
    with tempfile.TemporaryDirectory() as folder, Service() as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        shutil.copytree(PACKAGE, Path(folder, "trainer"))
        Path(folder, "train.py").write_text(SCRIPT)
        with Agents(python, folder, ["train.py"]) as agents:

            def has_size(count: int) -> bool:
                steps = agents.steps(names[0])
                return bool(steps) and steps[-1]["world_size"] == count * arguments.workers

            for number, name in enumerate(names):
                begun_at = time.monotonic()
                options = ["--lighthouse"] if not number else []
                if name == last:
                    options += ["--metadata", service.url, "--margin", "60", "--last-seconds", "5"]
                agents.start(name, *many, *options)
                wait_until(lambda count=number + 1: has_size(count), f"{name} to join", LIMIT_S)
                print(f"{name} joined after {time.monotonic() - begun_at:.1f} s", flush=True)
            memory = sum(memory_gb(agent.pid) for agent in agents.agents.values())
            at = datetime.now(UTC) + timedelta(seconds=90)
            service.documents[NOTICE] = json.dumps({"action": "terminate", "time": at.isoformat()})
            status = agents.agents[last].wait(LIMIT_S)
            wait_until(lambda: has_size(len(names) - 1), "the others to train on", LIMIT_S)
            for name in names[:-1]:
                agents.agents[name].send_signal(signal.SIGTERM)
            statuses = [agents.agents[name].wait(LIMIT_S) for name in names[:-1]]
            own = {record["step"]: record for record in agents.steps(names[0])}
            sizes = [own[step]["world_size"] for step in sorted(own)]
            times = [datetime.fromisoformat(own[step]["time"]).timestamp() for step in sorted(own)]
            events = [record for record in agents.records(last) if record["record"] == "event"]
    print("workers over the steps:", ", ".join(str(size) for size, _ in itertools.groupby(sizes)))
    for event in ("joined", "drained"):
        steps = [record["step"] for record in events if record["event"] == event]
        print(f"{len(steps)} workers of {last} {event} at step {', '.join(map(str, sorted(set(steps))))}")
    hard = sorted(record["event"] for record in events if record["event"] in {"killed", "lost", "retry"})
    print(f"killed, lost or tried again of them: {len(hard)}; exit statuses {status}, {statuses}")
    whole = [
        end - begin
        for (begin, end), size in zip(itertools.pairwise(times), sizes[1:], strict=True)
        if size == len(names) * arguments.workers
    ]
    print(f"{memory:.1f} GB; a step of all: {statistics.median(whole):.2f} s in the median of {len(whole)}")


if __name__ == "__main__":
    main()
