"""Instances of several workers each train together; one has a notice and leaves, with all of its workers.

    python tests/performance/instances.py --instances 12 --workers 8

All are processes of this machine, with the steps of a very small model: what is shown is that membership
holds at this size, not how fast it is. Needs about 0.2 GB of memory a worker.
"""

import itertools
import json
import signal
import statistics
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

from common import family, memory_mib, parser_of, trainer_folder

from tests.fakes.agents import Agents
from tests.fakes.metadata import NOTICE, Service
from tests.fakes.training import wait_until

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


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--instances", type=int, default=12)
    parser.add_argument("--workers", type=int, default=8)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the end of `Agents`
    *others, last = (f"instance-{number}" for number in range(arguments.instances))
    with trainer_folder() as (python, folder), Service() as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        (folder / "train.py").write_text(SCRIPT)
        with Agents(python, folder, ["train.py"]) as agents:

            def has_size(count: int) -> bool:
                steps = agents.steps(others[0])
                return bool(steps) and steps[-1]["world_size"] == count * arguments.workers

            for number, name in enumerate([*others, last]):
                begun_at = time.monotonic()
                options = ["--lighthouse"] if not number else []
                if name == last:
                    options += ["--metadata", service.url, "--margin", "60", "--last-seconds", "5"]
                agents.start(name, "--workers", str(arguments.workers), *options)
                wait_until(lambda count=number + 1: has_size(count), f"{name} to join", LIMIT_S)
                print(f"{name} joined after {time.monotonic() - begun_at:.1f} s", flush=True)
            memory = sum(memory_mib(family(agent.pid)) for agent in agents.agents.values())
            at = datetime.now(UTC) + timedelta(seconds=90)
            service.documents[NOTICE] = json.dumps({"action": "terminate", "time": at.isoformat()})
            statuses = [agents.agents[last].wait(LIMIT_S)]
            wait_until(lambda: has_size(len(others)), "the others to train on", LIMIT_S)
            for name in others:
                agents.agents[name].send_signal(signal.SIGTERM)
            statuses += [agents.agents[name].wait(LIMIT_S) for name in others]
            own = {record["step"]: record for record in agents.steps(others[0])}
            sizes = [own[step]["world_size"] for step in sorted(own)]
            times = [datetime.fromisoformat(own[step]["time"]).timestamp() for step in sorted(own)]
            events = [record for record in agents.records(last) if record["record"] == "event"]
    print("workers over the steps:", ", ".join(str(size) for size, _ in itertools.groupby(sizes)))
    for event in ("joined", "drained"):
        steps = [record["step"] for record in events if record["event"] == event]
        print(f"{len(steps)} workers of {last} {event} at step {', '.join(map(str, sorted(set(steps))))}")
    hard = sum(record["event"] in {"killed", "lost", "retry"} for record in events)
    print(f"killed, lost or tried again of them: {hard}; exit statuses, its own first: {statuses}")
    whole = [
        end - begin
        for (begin, end), size in zip(itertools.pairwise(times), sizes[1:], strict=True)
        if size == arguments.instances * arguments.workers
    ]
    step_s, count = statistics.median(whole), len(whole)
    print(f"{memory * 1.048576e-3:.1f} GB; a step of all: {step_s:.2f} s in the median of {count}")


if __name__ == "__main__":
    main()
