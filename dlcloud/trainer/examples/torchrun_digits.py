"""The digits under torchrun: what a script does that keeps its own loop, with DistributedDataParallel.

It saves at intervals, and when any worker is asked to leave; when it starts, all take the newest state that
one of them has.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import default_collate

from .. import checkpoint
from ..drain import Drain
from ..engine import State
from ..instance.options import natural, positive
from ..instance.processes import end_with_parent
from ..records import EventName, Records
from ..sampler import Sampler, share
from ..settings import from_environment
from .digits import digits, loss_of, network


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    # Torchrun puts its workers into their own sessions: killed itself, it would leave them behind.
    end_with_parent()
    settings = from_environment()
    drain = Drain()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    with (
        drain.handle_signals(),
        Records(path=settings.records, run=settings.run, worker=settings.worker) as records,
    ):
        try:
            _train(arguments, drain, records, settings.checkpoints)
        except RuntimeError as error:
            # A peer is gone: torchrun starts all workers again when one of them fails.
            records.event(EventName.LOST, str(error).splitlines()[0][:200])
            return 1
    dist.destroy_process_group()
    return 0


def _train(arguments: argparse.Namespace, drain: Drain, records: Records, folder: Path | None) -> None:
    torch.manual_seed(arguments.seed)
    training, _ = digits(arguments.seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = _resume(model, optimizer, folder)
    parallel = DistributedDataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    sampler = Sampler(samples=len(training), batch=arguments.batch, seed=arguments.seed)
    steps = sampler.steps_per_epoch * arguments.epochs
    began = saved = time.monotonic()
    while step < steps:
        batch = sampler.batch_of(step)
        samples = [training[batch[place]] for place in share(len(batch), rank, size)]
        loss = _step(parallel, optimizer, default_collate(samples), len(batch), size)
        step += 1
        now = time.monotonic()
        records.step(step=step, world_size=size, rank=rank, loss=loss, seconds=now - began)
        began = now
        cause = drain.cause  # read once: a signal that comes below is of the next step
        leaving = torch.tensor(float(cause is not None))
        dist.all_reduce(leaving)
        if folder and (leaving or now - saved >= arguments.checkpoint_seconds):
            checkpoint.write(folder, step, _state(step, model, optimizer))
            saved = time.monotonic()
        if cause:
            records.event(EventName.DRAINED, cause, step=step)
            return
        time.sleep(arguments.delay_ms / 1000)


def _step(model: nn.Module, optimizer: Optimizer, batch: list[Tensor], total: int, size: int) -> float:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    # DistributedDataParallel takes the mean over workers; shares may differ by one sample.
    (loss * (len(batch[1]) * size / total)).backward()
    optimizer.step()
    return float(loss.item())


def _resume(model: nn.Module, optimizer: Optimizer, folder: Path | None) -> int:
    """Load the newest state that any worker has; return its step."""
    newest = checkpoint.newest(folder) if folder else None
    steps: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(steps, newest[0] if newest else 0)
    source = steps.index(max(steps))
    sent: list[State | None] = [newest[1] if newest and dist.get_rank() == source else None]
    dist.broadcast_object_list(sent, src=source)
    if sent[0] is not None:
        model.load_state_dict(sent[0]["model"])
        optimizer.load_state_dict(sent[0]["optimizer"])
    return max(steps)


def _state(step: int, model: nn.Module, optimizer: Optimizer) -> State:
    return {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=positive, default=30, help="default: %(default)s")
    parser.add_argument("--batch", type=positive, default=96, help="over all workers (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default: %(default)s")
    parser.add_argument("--checkpoint-seconds", type=positive, default=10, help="default: %(default)s")
    parser.add_argument("--delay-ms", type=natural, default=0, help="rest after each step")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
