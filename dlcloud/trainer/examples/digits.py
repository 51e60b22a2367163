"""A small CNN on scikit-learn's 1,797 handwritten digits: real data, and about a minute on two cores."""

import argparse
import csv
import gzip
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from ..instance.options import natural, positive
from ..training import device, train

HELD_OUT = 360
"""Images that are not trained on: a fifth of scikit-learn's, and at most a fifth of others."""


def network() -> nn.Sequential:
    """Make the network: (n, 1, 8, 8) to (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return training and held-out images: (n, 1, 8, 8) float32 from -0.5 to 0.5, labels (n,) int64."""
    package = find_spec("sklearn")  # importing it would take as long as importing PyTorch
    if package is None or package.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed, whose digits are the data", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as stream:
        return _split(stream, seed)


def digits_of(folder: Path, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the same of `digits.csv` in a folder: a line has an image's 64 values and its label."""
    with (folder / "digits.csv").open(newline="", encoding="utf-8") as stream:
        return _split(stream, seed)


def _split(lines: Iterable[str], seed: int) -> tuple[TensorDataset, TensorDataset]:
    rows = torch.tensor([[float(value) for value in row] for row in csv.reader(lines)])
    scaled, labels = rows[:, :-1].reshape(-1, 1, 8, 8) / 16 - 0.5, rows[:, -1].long()
    order = torch.randperm(len(scaled), generator=torch.Generator().manual_seed(seed))
    sets = [TensorDataset(scaled[part], labels[part]) for part in _parts(order)]
    return sets[0], sets[1]


def _parts(order: Tensor) -> tuple[Tensor, Tensor]:
    held_out = min(HELD_OUT, -(-len(order) // 5))
    return order[held_out:], order[:held_out]


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def accuracy(model: nn.Module, data: TensorDataset, where: torch.device) -> float:
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        right = model(images.to(where)).argmax(1).cpu() == labels
    return float(right.float().mean())


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    torch.manual_seed(arguments.seed)
    where = device()
    model = network().to(where)
    folder, seed = arguments.data, arguments.seed
    training, held_out = digits(seed) if folder is None else digits_of(folder, seed)
    outcome = train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        training,
        loss_of,
        batch=arguments.batch,
        epochs=arguments.epochs,
        seed=arguments.seed,
        schedule=lambda step: 0.5 ** (step // 200),
        shards=arguments.shards,
        after_step=lambda _step, _loss: time.sleep(arguments.delay_ms / 1000),
    )
    if outcome.first:
        print(f"steps {outcome.steps}, accuracy {accuracy(model, held_out, where):.4f}")  # noqa: T201
        if arguments.save:
            torch.save(model.state_dict(), arguments.save)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m trainer.examples.digits", description=__doc__)
    parser.add_argument("--epochs", type=positive, default=30, help="default: %(default)s")
    parser.add_argument("--batch", type=positive, default=96, help="over all workers (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default: %(default)s")
    parser.add_argument("--data", type=Path, metavar="DIR", help="with digits.csv; default: scikit-learn's")
    parser.add_argument("--shards", type=positive, help="exact mode, with this many shards")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the trained parameters")
    parser.add_argument(
        "--delay-ms",
        type=natural,
        default=0,
        metavar="MS",
        help="rest after each step, to rehearse long ones",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
