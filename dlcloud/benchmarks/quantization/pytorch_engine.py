"""Quantize and run the networks with PyTorch: eager, compiled, bf16, int8 by torchao; runs inside workers.

On a CPU int8 is PyTorch 2's export quantization with the quantizer for x86, compiled by Inductor into
oneDNN's int8 kernels; scales come from the full range of the calibration images, as with the other engines.
On a GPU PyTorch has int8 kernels for linear layers only: there int8 means those, the rest in fp16.
"""

import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.config as inductor

from ..harness import hardware
from . import torch_graph
from .cache import ModelCache
from .kernels import told_by_onednn
from .models import (
    Built,
    Inference,
    Run,
    built,
    feed_of,
    fp32_model,
    model_bytes,
    parts_of,
    quantized,
    stem_of,
    weights_of,
)

# Reduced ranges where a product of bytes is summed through 16 bits, as torchao advises without VNNI.
EXACT_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8"}

TENSOR_CORES = (7, 0)
"""First compute capability with them. Source: NVIDIA Volta architecture whitepaper, 2017."""

TENSOR_CORE_KERNEL = re.compile(
    r"\d(?:884|816|1688|16816|16832)|[hi]mma|gmma|tensorop|bf16gemm_.*tn|h884|s16816"
)
"""How the names of kernels that use tensor cores look, in cuDNN, cuBLAS and CUTLASS."""


def build_fp32(*, network: str, seed: int, cache: str) -> Built:
    """Make sure that the exported fp32 program is in the cache."""
    return built(_program(network, seed, ModelCache(Path(cache))), network, seed)


def build_int8(*, network: str, seed: int, cache: str, calibration_images: int) -> Built:
    """Make sure that the int8 program is in the cache, quantized from the fp32 one."""
    import torchao  # noqa: PLC0415 - heavy, and only builders need it

    models = ModelCache(Path(cache))
    source = _program(network, seed, models)
    narrow = not EXACT_FLAGS & set(hardware.cpu_flags()) or "ONEDNN_MAX_CPU_ISA" in os.environ
    kind = f"int8-minmax{calibration_images}-{'u7' if narrow else 'u8'}-torchao{torchao.__version__}"
    name = f"{stem_of(source, network)}-{kind}{source.suffix}"
    quantize_all = partial(
        quantized,
        network=network,
        seed=seed,
        count=calibration_images,
        quantize=partial(_quantize, narrow=narrow),
    )
    return built(models.get(name, lambda target: quantize_all(source, target)), network, seed)


def infer_fp32(**arguments: Any) -> Inference:  # noqa: ANN401 - handed on
    """Load the fp32 program for timing, compiled."""
    return _infer(**arguments, prepare=_compiled)


def infer_fp32_eager(**arguments: Any) -> Inference:  # noqa: ANN401 - handed on
    """Load the fp32 program for timing as it is."""
    return _infer(**arguments, prepare=lambda module: module)


def infer_bf16(**arguments: Any) -> Inference:  # noqa: ANN401 - handed on
    """Load the fp32 program for timing under bf16 autocast, compiled."""
    return _infer(**arguments, prepare=_compiled, autocast=torch.bfloat16)


def infer_fp16(**arguments: Any) -> Inference:  # noqa: ANN401 - handed on
    """Load the fp32 program for timing under fp16 autocast, compiled; for GPUs."""
    return _infer(**arguments, prepare=_compiled, autocast=torch.float16)


def infer_int8(*, device: str = "cpu", **arguments: Any) -> Inference:  # noqa: ANN401 - handed on
    """Load the int8 program for timing, compiled; on a GPU, the fp32 one with its linear layers in int8."""
    if device == "cuda":
        return _infer(**arguments, device=device, prepare=_linear_in_int8, autocast=torch.float16)
    # Registers the quantized operators that the program holds, and how Inductor turns them into kernels.
    from torchao.quantization.pt2e import quantize_pt2e  # noqa: F401, PLC0415
    from torchao.quantization.pt2e.inductor_passes import x86  # noqa: PLC0415

    x86._register_quantization_weight_pack_pass()  # noqa: SLF001 - torchao's own tests call it; no other way
    inductor.pre_grad_custom_pass = x86.quant_lift_up
    return _infer(**arguments, prepare=_compiled)


def _infer(
    *,
    model: str,
    network: str,
    batch: int,
    threads: int,
    seed: int,
    prepare: Callable[[Any], Any],
    autocast: Any = None,  # noqa: ANN401 - PyTorch's own
    device: str = "cpu",
) -> Inference:
    """Load a program, compile it where asked to, and see by what kernels it runs."""
    torch.set_num_threads(threads)
    if device == "cuda":
        # Or fp32 convolutions would be computed in TF32.
        torch.backends.cudnn.allow_tf32 = False
    parts = parts_of(Path(model), network, seed)
    feed = feed_of(parts, network, batch, seed)
    runs = [_run(prepare(_loaded(part.model, device)), device, autocast) for part in parts]
    began = time.perf_counter()
    runs[0](feed)
    first_s = time.perf_counter() - began
    facts = {
        "model_bytes": model_bytes(Path(model)),
        "weights": weights_of(network),
        "engine": f"PyTorch {torch.__version__}",
        "threads": torch.get_num_threads(),
        "device": device,
        "first_run_s": round(first_s, 3),
        **(_cuda_facts if device == "cuda" else _cpu_facts)(lambda: runs[0](feed)),
    }
    return Inference(parts=parts, runs=runs, feed=feed, facts=facts)


def _loaded(program: Path, device: str) -> Any:  # noqa: ANN401 - PyTorch's own
    return torch.export.load(program).module().to(device)


def _compiled(module: Any) -> Any:  # noqa: ANN401 - PyTorch's own
    """Compile with weights frozen in, which lets Inductor lay them out for oneDNN ahead of time."""
    inductor.freezing = True
    return torch.compile(module, dynamic=False)


def _linear_in_int8(module: Any) -> Any:  # noqa: ANN401 - PyTorch's own
    """Make layers of a program's linear operations, quantize those, and compile; for GPUs.

    Raises:
        ValueError: There is no linear layer.
    """
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_  # noqa: PLC0415

    nodes = [node for node in module.graph.nodes if node.target == torch.ops.aten.linear.default]
    if not nodes:
        raise ValueError("no linear layer, and PyTorch has no int8 convolutions on GPUs")
    for number, node in enumerate(nodes):
        _make_layer(module, node, f"int8_linear_{number}")
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    return torch.compile(module, dynamic=False)


def _make_layer(module: Any, node: Any, name: str) -> None:  # noqa: ANN401 - PyTorch's own
    """Put a linear layer in the place of a linear operation, with its weights in fp16."""
    source, *weights = node.args
    weight, bias = [*(module.get_parameter(each.target) for each in weights), None][:2]
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = torch.nn.Parameter(weight.half(), requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias.half(), requires_grad=False)
    module.add_submodule(name, layer.to(weight.device))
    with module.graph.inserting_before(node):
        half = module.graph.call_method("half", (source,))
        node.replace_all_uses_with(module.graph.call_module(name, (half,)))
    module.graph.erase_node(node)
    module.recompile()


def _run(module: Any, device: str, autocast: Any) -> Run:  # noqa: ANN401 - PyTorch's own
    """Return how to run a module; on a GPU that takes the images there and the outputs back."""
    mixed = {"dtype": autocast or torch.bfloat16, "enabled": autocast is not None}

    def run(images: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad(), torch.autocast(device, **mixed):
            outputs = module(torch.from_numpy(images).to(device))
        return [each.float().cpu().numpy() for each in _tensors(outputs)]

    return run


def _tensors(outputs: Any) -> Sequence[Any]:  # noqa: ANN401 - PyTorch's own
    if isinstance(outputs, dict):
        outputs = tuple(outputs.values())
    return outputs if isinstance(outputs, tuple | list) else [outputs]


def _cpu_facts(run: Callable[[], object]) -> dict[str, Any]:
    """Say by what kernels of oneDNN it runs; linear layers in fp32 go through MKL, which tells nothing."""
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        told = told_by_onednn(run)
    return {"isa": torch.backends.cpu.get_cpu_capability(), **told}


def _cuda_facts(run: Callable[[], object]) -> dict[str, Any]:
    """Say which GPU it is, and whether kernels that use its tensor cores ran."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
    kernels = sorted({event.key for event in profile.key_averages() if event.device_type.name == "CUDA"})
    capability = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": ".".join(map(str, capability)),
        "has_tensor_cores": capability >= TENSOR_CORES,
        "tensor_core_kernels": [name for name in kernels if TENSOR_CORE_KERNEL.search(name)][:20],
    }


def _program(network: str, seed: int, models: ModelCache) -> Path:
    """Return the path of the exported fp32 program, or of a folder of them."""
    source = fp32_model(network, seed, models)
    if source.suffix == ".pt2":
        return source
    version = torch.__version__.partition("+")[0]
    shape = parts_of(source, network, seed)[0].images.shape[1:]
    name = f"{stem_of(source, network)}-torch{version}" + ("" if source.is_dir() else ".pt2")
    return models.get(name, lambda target: _export_all(source, target, shape))


def _export_all(source: Path, target: Path, shape: tuple[int, ...]) -> None:
    """Export an ONNX file, or each in a folder."""
    if not source.is_dir():
        _export(torch_graph.read(source), target, shape)
        return
    target.mkdir()
    for file in source.iterdir():
        _export(torch_graph.read(file), target / f"{file.stem}.pt2", shape)


def _export(module: Any, target: Path, shape: tuple[int, ...]) -> None:  # noqa: ANN401 - PyTorch's own
    """Export a module whose batch is left open into the file `target`."""
    # An export from a batch of one would take the one for a constant.
    example = torch.zeros(2, *shape)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, target)


def _quantize(source: Path, target: Path, calibration: np.ndarray, *, narrow: bool) -> None:
    """Quantize every layer that has an int8 kernel and export it into the file `target`."""
    from torchao.quantization.pt2e.quantize_pt2e import (  # noqa: PLC0415 - heavy, and only builders need it
        convert_pt2e,
        prepare_pt2e,
    )
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer  # noqa: PLC0415 - as above

    quantizer = x86_inductor_quantizer.X86InductorQuantizer()
    quantizer.set_global(_full_range(x86_inductor_quantizer, narrow=narrow))
    module = torch.export.load(source).module()
    _name_sources(module)
    prepared = prepare_pt2e(module, quantizer)
    with torch.no_grad():
        for image in calibration:
            prepared(torch.from_numpy(image[None]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = convert_pt2e(prepared)
    _export(converted, target, calibration.shape[1:])


def _name_sources(module: Any) -> None:  # noqa: ANN401 - PyTorch's own
    """Note of which layer each operation is: the quantizer finds them by that, and files do not keep it."""
    aten, layers = torch.ops.aten, torch.nn
    sources = {
        aten.conv2d.default: layers.Conv2d,
        aten.linear.default: layers.Linear,
        aten.relu.default: layers.ReLU,
        aten.relu_.default: layers.ReLU,
        aten.max_pool2d.default: layers.MaxPool2d,
        aten.adaptive_avg_pool2d.default: layers.AdaptiveAvgPool2d,
        aten.add.Tensor: torch.add,
        aten.add_.Tensor: torch.add,
        aten.mul.Tensor: torch.mul,
    }
    for node in module.graph.nodes:
        if node.target in sources:
            node.meta["source_fn_stack"] = [(node.name, sources[node.target])]


def _full_range(quantizers: Any, *, narrow: bool) -> Any:  # noqa: ANN401 - PyTorch's own
    """Return the quantizer's own settings, with the range of activations from smallest to largest value."""
    from torchao.quantization.pt2e import MinMaxObserver  # noqa: PLC0415 - as above

    settings = quantizers.get_default_x86_inductor_quantization_config(reduce_range=narrow)
    observer = MinMaxObserver.with_args(eps=2**-12)
    activation = replace(settings.input_activation, observer_or_fake_quant_ctr=observer)
    return replace(settings, input_activation=activation, output_activation=activation)
