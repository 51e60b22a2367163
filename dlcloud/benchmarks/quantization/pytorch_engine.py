"""Quantize and run the networks with PyTorch: eager, compiled, bf16, int8 by torchao; runs inside workers.

On a CPU int8 is PyTorch 2's export quantization with the quantizer for x86, compiled by Inductor into
oneDNN's int8 kernels; scales come from the full range of the calibration images, as with the other engines.
On a GPU PyTorch has int8 kernels for linear layers only: there int8 means those, the rest in fp16.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.config as inductor

from ..harness import hardware
from ..harness.case import UntimedWorkload
from ..harness.kernels import capture_output, summarize_onednn_log, uses_tensor_cores
from ..harness.preparation import size_of
from ..harness.torch_roofline import measure_peak
from .inference import Inference, InferenceJob, Run
from .models import BuildJob, build_quantized, draw_feed, fp32_model, load_parts
from .torch_programs import export, export_onnx

# Reduced ranges where a product of bytes is summed through 16 bits, as torchao advises without VNNI.
EXACT_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8"}

TENSOR_CORES = (7, 0)
"""First compute capability with them. Source: NVIDIA Volta architecture whitepaper, 2017."""

AUTOCAST: Mapping[str, Any] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By precision, what layers are computed in under autocast; fp16 for GPUs."""


def build_fp32(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    job = BuildJob(**arguments)
    return job.report(_fp32_program(job))


def build_int8(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of BuildJob
    import torchao  # noqa: PLC0415 - heavy, and only builders need it

    job = BuildJob(**arguments)
    source = _fp32_program(job)
    narrow = not EXACT_FLAGS & set(hardware.cpu_flags()) or "ONEDNN_MAX_CPU_ISA" in os.environ
    suffix = "" if source.is_dir() else source.suffix
    kind = f"{'u7' if narrow else 'u8'}-torchao{torchao.__version__}{suffix}"
    return build_quantized(job, source, kind, partial(_quantize, narrow=narrow))


def infer(**arguments: Any) -> Inference:  # noqa: ANN401 - those of InferenceJob
    """Load a program, compile it unless the precision is eager, and see which kernels run it."""
    job = InferenceJob(**arguments)
    torch.set_num_threads(job.threads)
    on_gpu = job.device == "cuda"
    if on_gpu:
        # Or fp32 convolutions would be computed in TF32.
        torch.backends.cudnn.allow_tf32 = False
    parts = load_parts(job.path, job.network, job.seed)
    feed = draw_feed(parts, job)
    prepare = _choose_preparation(job)
    runs = [_make_run(prepare(_load(part.model, job.device)), job) for part in parts]
    began = time.perf_counter()
    runs[0](feed)
    first_s = time.perf_counter() - began
    facts = {
        **job.facts(f"PyTorch {torch.__version__}", size_of(job.path), torch.get_num_threads()),
        "device": job.device,
        "first_run_s": round(first_s, 3),
        **(_cuda_facts if on_gpu else _cpu_facts)(lambda: runs[0](feed)),
    }
    peak = partial(measure_peak, job.precision.removesuffix("-eager"), device=job.device)
    return Inference(
        parts=parts, runs=runs, feed=feed, facts=facts, peak=lambda seconds: peak(seconds=seconds)
    )


def _choose_preparation(job: InferenceJob) -> Callable[[Any], Any]:
    if job.precision == "fp32-eager":
        return lambda module: module
    if job.precision == "int8" and job.device == "cuda":
        return _quantize_linear_layers
    if job.precision == "int8":
        _register_int8_kernels()
    return _compile


def _register_int8_kernels() -> None:
    """Register the quantized operators that a program holds, and how Inductor turns them into kernels."""
    from torchao.quantization.pt2e import quantize_pt2e  # noqa: F401, PLC0415
    from torchao.quantization.pt2e.inductor_passes import x86  # noqa: PLC0415

    x86._register_quantization_weight_pack_pass()  # noqa: SLF001 - torchao's own tests call it; no other way
    inductor.pre_grad_custom_pass = x86.quant_lift_up


def _load(program: Path, device: str) -> Any:  # noqa: ANN401 - PyTorch's own
    return torch.export.load(program).module().to(device)


def _compile(module: Any) -> Any:  # noqa: ANN401 - PyTorch's own
    """Compile with weights frozen in, which lets Inductor lay them out for oneDNN ahead of time."""
    inductor.freezing = True
    return torch.compile(module, dynamic=False)


def _quantize_linear_layers(module: Any) -> Any:  # noqa: ANN401 - PyTorch's own
    """Turn a program's linear operations into int8 layers and compile, for GPUs; ValueError without any."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_  # noqa: PLC0415

    nodes = [node for node in module.graph.nodes if node.target == torch.ops.aten.linear.default]
    if not nodes:
        raise ValueError("no linear layer, and PyTorch has no int8 convolutions on GPUs")
    for number, node in enumerate(nodes):
        _replace_by_layer(module, node, f"int8_linear_{number}")
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    return torch.compile(module, dynamic=False)


def _replace_by_layer(module: Any, node: Any, name: str) -> None:  # noqa: ANN401 - PyTorch's own
    """Replace a linear operation by a linear layer with its weights in fp16."""
    source, *weights = node.args
    weight, bias = [*(module.get_parameter(value.target) for value in weights), None][:2]
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


def _make_run(module: Any, job: InferenceJob) -> Run:  # noqa: ANN401 - PyTorch's own
    """Return how to run a module; on a GPU that takes the images there and the outputs back."""
    # On a GPU, layers that have no int8 kernels are computed in fp16.
    precision = "fp16" if job.precision == "int8" and job.device == "cuda" else job.precision
    mixed = {"dtype": AUTOCAST.get(precision, torch.bfloat16), "enabled": precision in AUTOCAST}

    def run(images: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad(), torch.autocast(job.device, **mixed):
            outputs = module(torch.from_numpy(images).to(job.device))
        return [output.float().cpu().numpy() for output in _list_tensors(outputs)]

    return run


def _list_tensors(outputs: Any) -> Sequence[Any]:  # noqa: ANN401 - PyTorch's own
    if isinstance(outputs, dict):
        outputs = tuple(outputs.values())
    return outputs if isinstance(outputs, tuple | list) else [outputs]


def _cpu_facts(run: Callable[[], object]) -> dict[str, Any]:
    """Return the kernels of oneDNN that run; linear layers in fp32 go through MKL, which logs nothing."""
    with capture_output() as log, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        run()
    return {"isa": torch.backends.cpu.get_cpu_capability(), **summarize_onednn_log(log)}


def _cuda_facts(run: Callable[[], object]) -> dict[str, Any]:
    """Return which GPU it is, and the kernels that ran on its tensor cores."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
    kernels = sorted({event.key for event in profile.key_averages() if event.device_type.name == "CUDA"})
    capability = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": ".".join(map(str, capability)),
        "has_tensor_cores": capability >= TENSOR_CORES,
        "tensor_core_kernels": [name for name in kernels if uses_tensor_cores(name)][:20],
    }


def _fp32_program(job: BuildJob) -> Path:
    """Return the path of the exported fp32 program, or of a folder of them."""
    source = fp32_model(job)
    if source.suffix == ".pt2":
        return source
    version = torch.__version__.partition("+")[0]
    shape = load_parts(source, job.network, job.seed)[0].images.shape[1:]
    name = f"{job.stem(source)}-torch{version}" + ("" if source.is_dir() else ".pt2")
    return job.models.get(name, lambda target: _export_all(source, target, shape))


def _export_all(source: Path, target: Path, shape: tuple[int, ...]) -> None:
    if not source.is_dir():
        export_onnx(source, target, shape)
        return
    target.mkdir()
    for file in source.iterdir():
        export_onnx(file, target / f"{file.stem}.pt2", shape)


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
    export(converted, target, calibration.shape[1:])


def _name_sources(module: Any) -> None:  # noqa: ANN401 - PyTorch's own
    """Record the layer of each operation: the quantizer finds operations by it, and files do not keep it."""
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
    """Return the quantizer's default configuration, but with the full range of activations."""
    from torchao.quantization.pt2e import MinMaxObserver  # noqa: PLC0415 - as above

    config = quantizers.get_default_x86_inductor_quantization_config(reduce_range=narrow)
    observer = MinMaxObserver.with_args(eps=2**-12)
    activation = replace(config.input_activation, observer_or_fake_quant_ctr=observer)
    return replace(config, input_activation=activation, output_activation=activation)
