"""Train in PyTorch: the networks with random weights, and a step in each precision; runs inside workers.

No library replaces the networks: every figure measured so far would change. torchvision has no MobileNet of
the first version and drops blocks of EfficientNet at random while it trains (stochastic depth). timm has all
families, but its VGG ends in convolutions, and it needs torchvision. Wheels of torchvision are each bound to
one build of PyTorch, and missing for CPU builds of some machines. pytorchcv's VGG fails in the channels-last
layout. A test holds the number of weights to the published one. Images are (batch, 3, size, size) float32,
the output is logits (batch, classes).

`DepthwiseConv2d` avoids slow kernels: oneDNN 3.12 (in PyTorch 2.13) has fast kernels for depthwise
convolutions on AVX-512, but not for every case. With a stride of 2 the gradient of the images in bf16, and
with kernels of 5 by 5 the gradient of the weights in any precision, use kernels for grouped convolutions that
fill 16 channels where a group has one. On an AMD EPYC with AVX512_BF16 they took 43 % of MobileNet's time in
convolutions and 84 % of EfficientNet-B0's. Here the former is computed in fp32, which has the fast kernel,
and the latter as a sum of products of shifted images. Both are at least as exact as what they replace.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from .settings import Optimization, TrainingJob, TrainingPrecision, TrainingSetting

DROPOUT = 0.15
"""Before the small head. Source: the article (Hitachi 2022), section 6-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A network without its head."""

    features: nn.Module  # from images to (batch, channels, height, width)
    channels: int  # of its output
    dropout: float = 0.0  # before the last layer of the published head
    # Makes the published head for this number of classes; global pooling and one dense layer if None.
    head: Callable[[int], nn.Module] | None = None


def build(name: str, *, classes: int, small_head: bool) -> nn.Module:
    """Build a network of NETWORKS with this number of logits, on it the published or the small head."""
    body = NETWORKS[name]()
    if body.head and not small_head:
        return nn.Sequential(body.features, body.head(classes))
    head = _pooling_head(body.channels, classes, DROPOUT if small_head else body.dropout)
    return nn.Sequential(body.features, head)


def vgg16() -> Body:
    """Return VGG16.

    Source: Simonyan and Zisserman 2014, "Very Deep Convolutional Networks", table 1, column D.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return Body(features=nn.Sequential(*layers), channels=channels, head=_vgg_head)


def _vgg_head(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.Linear(4096, classes),
    )


def resnet50() -> Body:
    """Return ResNet-50, the stride in the 3 by 3 convolution as frameworks have it today (v1.5).

    Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1.
    """
    layers = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return Body(features=nn.Sequential(*layers), channels=channels)


class Bottleneck(nn.Module):
    """A residual block of three convolutions; its output has 4 * width channels."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _conv(channels, width, 1),
            _conv(width, width, 3, stride),
            _conv(width, 4 * width, 1, activation=nn.Identity),
        )
        same = stride == 1 and channels == 4 * width
        self.shortcut = (
            nn.Identity() if same else _conv(channels, 4 * width, 1, stride, activation=nn.Identity)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute (batch, 4 * width, height / stride, width / stride)."""
        return torch.relu(self.branch(images) + self.shortcut(images))


def mobilenet() -> Body:
    """Return MobileNet.

    Source: Howard et al. 2017, "MobileNets", table 1.
    """
    layers = [_conv(3, 32, 3, 2)]
    channels = 32
    pairs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for width, stride in pairs:
        layers += [_conv(channels, channels, 3, stride, groups=channels), _conv(channels, width, 1)]
        channels = width
    return Body(features=nn.Sequential(*layers), channels=channels)


def efficientnet(width: float, depth: float, dropout: float) -> Body:
    """Return EfficientNet-B0, its channels (in eights) times `width`, its blocks (rounded up) times `depth`.

    Source: Tan and Le 2019, "EfficientNet", table 1; the scaling of B1 to B5 from the authors' program.
    """
    channels = _round_to_eights(32 * width)
    layers = [_conv(3, channels, 3, 2, activation=nn.SiLU)]
    for expansion, kernel, stride, outputs, blocks in (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
    ):  # fmt: skip
        wide = _round_to_eights(outputs * width)
        for block in range(math.ceil(blocks * depth)):
            layers.append(InvertedBottleneck(channels, wide, expansion, kernel, 1 if block else stride))
            channels = wide
    last = 4 * channels
    layers.append(_conv(channels, last, 1, activation=nn.SiLU))
    return Body(features=nn.Sequential(*layers), channels=last, dropout=dropout)


class InvertedBottleneck(nn.Module):
    """A block that widens, convolves each channel by itself, weighs the channels and narrows again."""

    def __init__(self, channels: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = channels * expansion
        widen = [_conv(channels, wide, 1, activation=nn.SiLU)] if expansion > 1 else []
        self.branch = nn.Sequential(
            *widen,
            _conv(wide, wide, kernel, stride, groups=wide, activation=nn.SiLU),
            SqueezeExcitation(wide, max(1, channels // 4)),
            _conv(wide, outputs, 1, activation=nn.Identity),
        )
        self.residual = stride == 1 and channels == outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute (batch, outputs, height / stride, width / stride)."""
        branch: torch.Tensor = self.branch(images)
        return branch + images if self.residual else branch


class SqueezeExcitation(nn.Module):
    """Weighs each channel by the mean of all channels over the image.

    Source: Hu et al. 2017, "Squeeze-and-Excitation Networks", figure 3.
    """

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            *(nn.Conv2d(channels, squeezed, 1), nn.SiLU(inplace=True)),
            *(nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of the same shape."""
        weighed: torch.Tensor = images * self.weigh(images)
        return weighed


def tiny() -> Body:
    """Return a network with each kind of layer of the big ones, of some ten thousand weights."""
    layers = nn.Sequential(
        _conv(3, 16, 3, 2), Bottleneck(16, 16, 1), InvertedBottleneck(64, 32, 2, 3, 2), _conv(32, 64, 1)
    )
    return Body(features=layers, channels=64)


def digits() -> Body:
    layers = nn.Sequential(
        *(_conv(3, 32, 3), _conv(32, 32, 3), nn.MaxPool2d(2)),
        *(_conv(32, 64, 3), _conv(64, 64, 3), nn.MaxPool2d(2)),
    )
    return Body(features=layers, channels=64)


def _conv(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[..., nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution without bias, padded by kernel // 2, with batch normalisation and activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is nn.Identity:
        return nn.Sequential(*layers)
    return nn.Sequential(*layers, activation(inplace=True))


def _pooling_head(channels: int, classes: int, dropout: float) -> nn.Module:
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *drop, nn.Linear(channels, classes))


def _round_to_eights(channels: float) -> int:
    """Round to a multiple of 8 that is at least nine tenths of the number."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


NETWORKS: dict[str, Callable[[], Body]] = {
    "vgg16": vgg16,
    "mobilenet": mobilenet,
    "resnet50": resnet50,
    "efficientnet-b0": lambda: efficientnet(1.0, 1.0, 0.2),
    "efficientnet-b1": lambda: efficientnet(1.0, 1.1, 0.2),
    "efficientnet-b2": lambda: efficientnet(1.1, 1.2, 0.3),
    "efficientnet-b3": lambda: efficientnet(1.2, 1.4, 0.3),
    "efficientnet-b4": lambda: efficientnet(1.4, 1.8, 0.4),
    "efficientnet-b5": lambda: efficientnet(1.6, 2.2, 0.4),
    "tiny": tiny,
    "digits": digits,
}


FAST_KERNEL = 3
"""The largest kernel for whose weight gradient oneDNN has a depthwise kernel."""


class DepthwiseConv2d(nn.Conv2d):
    """A convolution of each channel by itself, without bias; `nn.Conv2d` except for its gradients."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute (batch, channels, height / stride, width / stride)."""
        convolved: torch.Tensor = _Convolution.apply(images, self.weight, self.stride[0], self.padding[0])
        return convolved


def replace_in(model: nn.Module) -> int:
    """Replace a model's depthwise convolutions by DepthwiseConv2d and return how many there are."""
    convolutions = [
        module
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
        and module.groups == module.in_channels == module.out_channels
        and module.groups > 1
    ]
    for module in convolutions:
        module.__class__ = DepthwiseConv2d
    return len(convolutions)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override,unused-ignore]  # autograd's own signature takes anything
        ctx: Any,  # noqa: ANN401 - PyTorch ships no type for it
        images: torch.Tensor,
        weight: torch.Tensor,
        stride: int,
        padding: int,
    ) -> torch.Tensor:
        """Convolve, in autocast's precision where it is on."""
        if torch.is_autocast_enabled(images.device.type):
            images = images.to(torch.get_autocast_dtype(images.device.type))
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        convolved: torch.Tensor = torch.ops.aten.conv2d(
            images, weight.to(images.dtype), None, [stride, stride], [padding, padding], [1, 1], len(weight)
        )
        return convolved

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:  # type: ignore[override,unused-ignore]  # noqa: ANN401 - as above
        images, weight = ctx.saved_tensors
        for_images, for_weight = _gradients(gradient, images, weight, ctx.stride, ctx.padding)
        return for_images, for_weight, None, None


def _compute(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, stride: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of images and of weight, each in its own dtype and layout."""
    narrow = weight.shape[-1] <= FAST_KERNEL
    both_fast = stride == 1 and narrow
    dtype = images.dtype if stride == 1 else torch.float32
    for_images, for_weight, _ = torch.ops.aten.convolution_backward(
        gradient.to(dtype), images.to(dtype), weight.to(dtype), None,
        [stride, stride], [padding, padding], [1, 1], False, [0, 0], len(weight), [True, both_fast, False],
    )  # fmt: skip
    if not both_fast and narrow:
        _, for_weight, _ = torch.ops.aten.convolution_backward(
            gradient, images, weight.to(images.dtype), None,
            [stride, stride], [padding, padding], [1, 1], False, [0, 0], len(weight), [False, True, False],
        )  # fmt: skip
    elif not narrow:
        for_weight = _by_shifts(gradient, images, weight, stride, padding)
    return _like(for_images, images), _like(for_weight, weight)


def _like(values: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Return values in the dtype and layout of the example, as `_shapes` declares."""
    if values.dtype == example.dtype and values.stride() == example.stride():
        return values
    return torch.empty_like(example).copy_(values)


def _by_shifts(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, stride: int, padding: int
) -> torch.Tensor:
    """Return the gradient of the weight (channels, 1, kernel, kernel) float32.

    Each of its elements is the sum over batch and pixels of the output's gradient times the images shifted.
    """
    kernel = weight.shape[-1]
    height, width = gradient.shape[2:]
    padded = nn.functional.pad(images.float(), [padding] * 4)
    gradient = gradient.float()
    sums = []
    for row, column in product(range(kernel), repeat=2):
        rows = slice(row, row + stride * height, stride)
        columns = slice(column, column + stride * width, stride)
        sums.append((padded[:, :, rows, columns] * gradient).sum((0, 2, 3)))
    return torch.stack(sums, dim=1).reshape(weight.shape)


def _shapes(
    _gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, _stride: int, _padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(images), torch.empty_like(weight)


# An operator of its own, so that torch.compile calls it and does not compile the sums into hundreds of loops.
_gradients = torch.library.custom_op("dlcloud::depthwise_gradients", _compute, mutates_args=())
_gradients.register_fake(_shapes)


DTYPES = {TrainingPrecision.BF16: torch.bfloat16, TrainingPrecision.FP16: torch.float16}
MOMENTUM = 0.9


class PyTorchTrainer:
    """A network, its optimizer and all that mixed precision adds."""

    def __init__(self, job: TrainingJob) -> None:
        optimizations = job.setting.optimizations
        self._device = torch.device(job.device)
        self._dtype = DTYPES.get(job.setting.precision)
        configure_process(job.setting)
        channels_last = Optimization.CHANNELS_LAST in optimizations
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        torch.manual_seed(job.seed)
        model = build(job.network, classes=job.classes, small_head=job.small_head)
        if Optimization.DEPTHWISE in optimizations:
            replace_in(model)
        self._model = model.to(device=self._device, memory_format=self._format)
        self._optimizer = _make_optimizer(job, self._model)
        # fp16 ends at 65,504 and its small gradients would be 0; bf16 has the range of FP32.
        is_fp16 = job.setting.precision is TrainingPrecision.FP16
        self._scaler = torch.amp.GradScaler(job.device, enabled=is_fp16)
        compiles = Optimization.COMPILE in optimizations
        self._loss = torch.compile(self._compute_loss) if compiles else self._compute_loss

    def place(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        placed = images.to(device=self._device).contiguous(memory_format=self._format)
        return placed, labels.to(self._device)

    def step(self, images: Any, labels: Any) -> float:  # noqa: ANN401 - what `place` gave
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(images, labels)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return float(loss.detach())

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        self._model.eval()
        placed, _ = self.place(images, torch.zeros(0, dtype=torch.int64))
        with torch.no_grad(), self._autocast():
            answers: torch.Tensor = self._model(placed).float().cpu()
        self._model.train()
        return answers

    def _compute_loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._autocast():
            logits = self._model(images)
        return nn.functional.cross_entropy(logits.float(), labels)

    def _autocast(self) -> Any:  # noqa: ANN401 - torch ships no types here
        return torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype is not None)


def configure_process(setting: TrainingSetting) -> None:
    """Set what holds for a whole process: TF32 on or off for all that stays in FP32, and denormals."""
    precision = "tf32" if setting.precision is TrainingPrecision.TF32 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision
    torch.backends.cudnn.benchmark = True
    if Optimization.FLUSH in setting.optimizations:
        torch.set_flush_denormal(True)


def _make_optimizer(job: TrainingJob, model: nn.Module) -> torch.optim.Optimizer:
    # None leaves the choice to PyTorch, which the baseline is about.
    fused = True if Optimization.FUSED in job.setting.optimizations else None
    options: dict[str, Any] = {"lr": job.learning_rate, "fused": fused}
    if job.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), **options)
    return torch.optim.SGD(model.parameters(), momentum=MOMENTUM, **options)
