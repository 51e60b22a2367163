"""ResNet-18 or -50 on images: a folder with a subfolder per class, or synthetic ones that need no data.

Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1; the stride of a bottleneck in
its 3x3 convolution. Folders need Pillow, which is not among the pinned packages.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from ..instance.options import natural, positive
from ..training import device, train

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
WIDTHS = (64, 128, 256, 512)
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
# Source: means and deviations of ImageNet's channels, as torchvision's models take them.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):  # type: ignore[misc]  # PyTorch is not there where types are checked
    """A residual block: two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        plain = [(inputs, width, 3, stride), (width, width, 3, 1)]
        layers: list[nn.Module] = []
        for size in sizes if bottleneck else plain:
            layers += [*_convolution(*size), nn.ReLU(inplace=True)]
        self.branch = nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == outputs
        self.way = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, images: Tensor) -> Tensor:
        """Add the branch to its input."""
        return functional.relu(self.branch(images) + self.way(images))


def network(depth: int, classes: int) -> nn.Sequential:
    """Make a ResNet: (n, 3, size, size) to (n, classes)."""
    bottleneck = depth == max(BLOCKS)
    layers = [*_convolution(3, WIDTHS[0], 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = WIDTHS[0]
    for stage, (count, width) in enumerate(zip(BLOCKS[depth], WIDTHS, strict=True)):
        for number in range(count):
            layers.append(Block(inputs, width, 2 if stage and not number else 1, bottleneck=bottleneck))
            inputs = width * 4 if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Synthetic(Dataset):  # type: ignore[misc]
    """Images of noise around a mean that depends on their class: something to learn, nothing to download."""

    def __init__(self, count: int, size: int, classes: int) -> None:
        self._count, self._size, self.classes = count, size, classes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, (3, size, size) float32, and its class."""
        label = index % self.classes
        noise = torch.randn(3, self._size, self._size)
        return noise + 2 * label / self.classes - 1, label


class Folder(Dataset):  # type: ignore[misc]
    """Images below a folder, whose subfolders are the classes; cut and mirrored at random.

    Raises:
        ValueError: There is no image.
    """

    def __init__(self, root: Path, size: int) -> None:
        names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        self._images = [
            (path, label)
            for label, name in enumerate(names)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        if not self._images:
            raise ValueError(f"{root} has no subfolder with images ({', '.join(sorted(SUFFIXES))})")
        self._size, self.classes = size, len(names)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, (3, size, size) float32, and its class."""
        # Only where there are images to read.
        import numpy as np  # noqa: PLC0415
        from PIL import Image  # type: ignore[import-not-found]  # noqa: PLC0415

        path, label = self._images[index]
        with Image.open(path) as image:
            small = _fitted(image.convert("RGB"), self._size)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255
        if torch.rand(()) < 0.5:  # noqa: PLR2004 - every other one
            pixels = pixels.flip(2)
        return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None], label


def _fitted(image: Any, size: int) -> Any:  # noqa: ANN401 - of Pillow
    """Cut a square of 60 to 100 % of the shorter side at random, and scale it."""
    shorter = min(image.size)
    side = int(shorter * (0.6 + 0.4 * torch.rand(()).item()))
    left = int(torch.randint(image.width - side + 1, ()))
    top = int(torch.randint(image.height - side + 1, ()))
    return image.resize((size, size), box=(left, top, left + side, top + side))


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return the mean loss over a batch, in bfloat16 where a GPU does that faster."""
    images, labels = batch
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=images.is_cuda):
        return functional.cross_entropy(model(images), labels)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    torch.manual_seed(arguments.seed)
    try:
        data = _data(arguments)
    except ValueError as error:
        sys.stderr.write(f"resnet: {error}\n")
        return 2
    where = device()
    model = network(arguments.depth, data.classes).to(where)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.learning_rate, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    outcome = train(
        model, optimizer, data, loss_of,
        batch=arguments.batch, epochs=arguments.epochs, seed=arguments.seed,
        micro_batch=arguments.micro_batch, loading=arguments.loading, shards=arguments.shards,
    )  # fmt: skip
    if outcome.first:
        print(f"steps {outcome.steps}, loss {outcome.loss:.4f}")  # noqa: T201
        if arguments.save:
            torch.save(model.state_dict(), arguments.save)
    return 0


def _data(arguments: argparse.Namespace) -> Synthetic | Folder:
    if arguments.images:
        return Folder(arguments.images, arguments.size)
    return Synthetic(arguments.synthetic, arguments.size, classes=10)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m trainer.examples.resnet", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="a subfolder per class; None: synthetic ones")
    add("--synthetic", type=positive, default=1024, metavar="N", help="how many of those")
    add("--depth", type=int, choices=tuple(BLOCKS), default=50)
    add("--size", type=positive, default=224, help="of an image, in pixels")
    add("--batch", type=positive, default=256, help="over all workers")
    add("--micro-batch", type=positive, default=None, metavar="N", help="most images in one forward pass")
    add("--epochs", type=positive, default=90)
    add("--learning-rate", type=float, default=0.1)
    add("--loading", type=natural, default=0, metavar="N", help="processes that load images")
    add("--seed", type=natural, default=0)
    add("--shards", type=positive, default=None, help="exact mode, with this many shards")
    add("--save", type=Path, metavar="FILE", help="write the trained parameters")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
