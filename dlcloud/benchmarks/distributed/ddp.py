"""Train a convolutional network with DistributedDataParallel under torchrun, and print its images a second.

    torchrun --nproc-per-node 1 -m benchmarks.distributed.ddp --steps 30

Images and labels are synthetic, and the weights random: it measures speed. Every process has a batch of its
own, so that the global batch grows with the nodes (weak scaling). The health checks: before it trains, all
processes add ones up; after, their weights must be equal.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

CLASSES = 100
EVERY = 5
"""Steps between two lines of output."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    arguments = _parse(argv)
    is_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if is_gpu else "gloo")
    try:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_gpu else torch.device("cpu")
        _check_peers(device)
        torch.manual_seed(0)
        network = make_network(arguments.width).to(device)
        model = DistributedDataParallel(network)
        _train(model, arguments, device)
        _check_weights(network, device)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    # PyTorch's threads can abort a process whose interpreter shuts down ("terminate called without …").
    os._exit(0)


def make_network(width: int) -> nn.Module:
    """Return a network of four convolutional stages, (batch, 3, size, size) float32 to (batch, CLASSES)."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(4):
        outputs = width << stage
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _train(model: nn.Module, arguments: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(1 + dist.get_rank())
    size = arguments.size
    images = torch.randn(arguments.batch, 3, size, size, device=device)
    labels = torch.randint(CLASSES, (arguments.batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    began = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            seconds = _end_of_steps(device) - began
            _report(EVERY * arguments.batch * dist.get_world_size() / seconds, step, loss)
            began = time.perf_counter()


def _end_of_steps(device: torch.device) -> float:
    """Return the time when all that was started on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _report(throughput: float, step: int, loss: Tensor) -> None:
    if dist.get_rank() == 0:
        sys.stdout.write(f"step {step}: loss {loss.item():.3f}, images/s: {throughput:.2f}\n")
        sys.stdout.flush()


def _check_peers(device: torch.device) -> None:
    """Add a one of every process up."""
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    if int(ones.item()) != dist.get_world_size():
        raise RuntimeError(f"{int(ones.item())} of {dist.get_world_size()} processes answered")
    if dist.get_rank() == 0:
        sys.stdout.write(f"all {dist.get_world_size()} processes answered\n")


def _check_weights(network: nn.Module, device: torch.device) -> None:
    """Compare the weights of all processes with those of the first, bit for bit."""
    own = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    first = own.clone()
    dist.broadcast(first, src=0)
    different = torch.tensor(float(not torch.equal(own, first)), device=device)
    dist.all_reduce(different)
    if different.item():
        raise RuntimeError(f"{int(different.item())} processes have other weights than the first")
    if dist.get_rank() == 0:
        sys.stdout.write("the weights of all processes are equal\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=32, help="images of a process (default: %(default)s)")
    parser.add_argument("--size", type=int, default=64, help="height and width (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="channels of stage 1 (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
