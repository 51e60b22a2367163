"""A depthwise convolution whose gradients avoid slow kernels of oneDNN.

oneDNN 3.12 (in PyTorch 2.13) has fast kernels for depthwise convolutions on AVX-512, but not for every case:
with a stride of 2 the gradient of the images in bf16, and with kernels of 5 by 5 the gradient of the weights
in any precision, fall to kernels for grouped convolutions that fill 16 channels where a group has one. On an
AMD EPYC with AVX512_BF16 they took 43 % of MobileNet's time in convolutions and 84 % of EfficientNet-B0's.
Here the former is computed in fp32, where the fast kernel is, and the latter as a sum of products of shifted
images. Both are at least as exact as what they replace.
"""

from itertools import product
from typing import Any

import torch
from torch import nn

FAST_KERNEL = 3
"""The largest kernel for whose weight gradient oneDNN has a depthwise kernel."""


class DepthwiseConv2d(nn.Conv2d):
    """A convolution of each channel by itself, without bias; `nn.Conv2d` but for its gradients."""

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
