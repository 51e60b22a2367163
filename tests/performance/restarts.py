"""Time lost when a worker of a training is lost: dlcloud's hook, torchrun and Ray Train.

    python tests/performance/restarts.py --python ENVIRONMENT/bin/python --ray RAY_ENVIRONMENT/bin/python

One training by DistributedDataParallel on two processes of this machine, 0.1 s a step, is interrupted a few
times. torchrun `--max-restarts` and Ray Train restart its processes on the same machine, from checkpoints
that the script saves every 10 steps by itself. For dlcloud, all processes end, as they do with their
instance, and begin again: after a notice (SIGTERM), and without one (SIGKILL, with a state every second
instead of every minute). What launching an instance takes comes in addition, for all of them. The time lost
is that from the interruption until a step is done that was not done before, without the step itself. A
training that does no step any more is given up.
"""

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import PYTHON, hook_variables, kill_family, parser_of

STEP_S, EVERY, LIMIT_S = 0.1, 10, 240.0
TRAINING = f"""
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn

def train(folder, hook):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    saved, first = folder / "saved.pt", 0
    if hook:
        import dlcloud_report
        first = dlcloud_report.checkpoint(model, optimizer)
    elif saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, 100000):
        time.sleep({STEP_S})
        optimizer.zero_grad()
        model(torch.ones(8, 64)).square().sum().backward()
        optimizer.step()
        if rank == 0:
            with (folder / "steps").open("a") as file:
                file.write(f"{{step}} {{time.time()}} {{os.getpid()}}\\n")
        if hook:
            dlcloud_report.checkpoint(step=step + 1)
        elif rank == 0 and step % {EVERY} == {EVERY} - 1:
            new = folder / "saved.new"
            torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step + 1), new)
            new.replace(saved)
"""
TORCHRUN = """
dist.init_process_group("gloo")
train(Path.cwd(), hook=len(sys.argv) > 1)
"""
RAY = """
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

def work(config):
    train(Path(config["folder"]), hook=False)

ray.init(num_cpus=4, include_dashboard=False, configure_logging=False)
TorchTrainer(
    work,
    train_loop_config={"folder": str(Path.cwd())},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        storage_path=str(Path.cwd() / "storage"), failure_config=FailureConfig(max_failures=99)
    ),
).fit()
"""


def steps(folder: Path) -> list[tuple[int, float, int]]:
    """Return the steps that rank 0 has done: number, time, process."""
    if not (folder / "steps").exists():
        return []
    lines = (folder / "steps").read_text().splitlines()
    return [(int(step), float(at), int(process)) for step, at, process in map(str.split, lines)]


def wait(folder: Path, step: int) -> tuple[float, int]:
    """Wait until a step is done for the first time; return when, and by which process."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        for number, at, process in steps(folder):
            if number >= step:
                return at, process
        time.sleep(0.01)
    raise TimeoutError((folder / "log").read_text()[-2000:])


def begin(folder: Path, command: list[str], variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **variables}
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def end(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    if number == signal.SIGKILL:
        kill_family(process.pid)
    else:
        os.killpg(process.pid, number)
    process.wait()


def measure(title: str, command: list[str], script: str, interruptions: int, *, ends: str = "") -> None:
    """Print the time lost by interruption; `ends` is the signal that ends all processes, or one worker."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder, variables = Path(name), {}
        (folder / "train.py").write_text(TRAINING + script)
        if ends:
            variables = hook_variables(folder, folder / "checkpoints") | {"DLCLOUD_RESUME_RUN": name}
            if ends == "SIGKILL":
                variables["DLCLOUD_RESUME_INTERVAL_S"] = "1"
        process = begin(folder, command, variables)
        lost, again, last, log = [], [], 0, ""
        try:
            for _ in range(interruptions):
                _, worker = wait(folder, last + 15 + chance.randrange(EVERY))
                at = time.time()
                if not ends:
                    os.kill(worker, signal.SIGKILL)
                else:
                    end(process, signal.Signals[ends])
                    process = begin(folder, command, variables)
                last = max(step for step, _, _ in steps(folder))
                lost.append(wait(folder, last + 1)[0] - at - STEP_S)
                numbers = [step for step, _, _ in steps(folder)]
                again.append(len(numbers) - len(set(numbers)) - sum(again))
        except TimeoutError as error:
            log = str(error)
        end(process, signal.SIGKILL)
    cell = f"{statistics.median(lost):.1f} s ({min(lost):.1f} to {max(lost):.1f})" if lost else ""
    if log:
        cell += f" did not come back in {LIMIT_S:.0f} s after interruption {len(lost) + 1}"
    print(f"| {title} | {cell.strip()} | {max(again, default='')} |", flush=True)
    if log:
        print(log, file=sys.stderr)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--python", default=PYTHON, help="has PyTorch")
    parser.add_argument("--ray", default="", help="has Ray Train and PyTorch")
    parser.add_argument("--interruptions", type=int, default=5)
    arguments = parser.parse_args()
    number = arguments.interruptions
    torchrun = [arguments.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    print("| | time lost by an interruption, median | steps repeated, at most |\n|---|---|---|")
    hook = [*torchrun, "train.py", "hook"]
    measure("dlcloud, `resume: auto`, with a notice", hook, TORCHRUN, number, ends="SIGTERM")
    measure("dlcloud, without", hook, TORCHRUN, number, ends="SIGKILL")
    restarts = [*torchrun, "--max-restarts", "99", "train.py"]
    measure("torchrun `--max-restarts`", restarts, TORCHRUN, number)
    if arguments.ray:
        measure("Ray Train", [arguments.ray, "train.py"], RAY, number)


if __name__ == "__main__":
    main()
