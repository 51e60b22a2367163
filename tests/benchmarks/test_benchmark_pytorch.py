from io import StringIO

import pytest

from dlcloud.benchmarks.harness.records import Recorder
from dlcloud.benchmarks.quantization import __main__
from dlcloud.benchmarks.quantization.settings import ENGINES, InferencePrecision, Isa
from tests.benchmarks.conftest import run_python
from tests.needs import needs

PYTORCH = ENGINES["pytorch"]

SAME_NETWORK_AND_REAL_INT8 = """
import numpy as np, onnxruntime
from benchmarks.quantization import models, pytorch_engine, torch_programs
from benchmarks.quantization.__main__ import compare_logits

shared = {"network": "tiny", "seed": 0}
onnx = models.build_fp32(**shared, cache="models").facts["model"]
fp32 = pytorch_engine.build_fp32(**shared, cache="models").facts
int8 = pytorch_engine.build_int8(**shared, cache="models", calibration_images=4).facts
eager = pytorch_engine.infer(model=fp32["model"], precision="fp32-eager", **shared, batch=3, threads=2)
session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
theirs = session.run(None, {"images": eager.parts[0].images})[0]
print("same network", np.allclose(eager.outputs(), theirs, atol=1e-4))

quantized = pytorch_engine.infer(model=int8["model"], precision="int8", **shared, batch=3, threads=2)
print("kernels", quantized.facts["kernels"])
print("all int8", all(kernel.endswith(" u8") for kernel in quantized.facts["kernels"]))
alike = compare_logits(eager.outputs(), quantized.outputs())
print("alike", 0.9 < alike["cosine_similarity_centred"] < 0.99999)
print("smaller", int8["model_bytes"] < fp32["model_bytes"])

for change, value in (("Conv", "auto_pad"), ("Gemm", "transA")):
    import onnx as format
    model = format.load(onnx)
    node = next(node for node in model.graph.node if node.op_type == change)
    node.attribute.append(format.helper.make_attribute(value, "SAME_UPPER" if value == "auto_pad" else 1))
    try:
        torch_programs.Graph(model.graph)
    except torch_programs.UnreadableError as error:
        print(error)

make = format.helper.make_tensor_value_info
pool = format.helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2], pads=[1] * 4)
ends = [make(name, 1, [1, 1, size, size]) for name, size in (("x", 6), ("y", 6))]
graph = format.helper.make_graph([pool], "dilated", ends[:1], ends[1:])
opset = [format.helper.make_opsetid("", 21)]
model = format.helper.make_model(graph, opset_imports=opset, ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
image = np.random.default_rng(0).random((1, 1, 6, 6), np.float32)
ours = torch_programs.Graph(graph)(torch_programs.torch.from_numpy(image)).numpy()
print("dilated pooling", np.array_equal(ours, session.run(None, {"x": image})[0]))
"""


@pytest.mark.long
@needs("g++")
def test_pytorch_runs_the_same_network_and_int8_by_real_int8_kernels(alone, pytorch_python):
    done = run_python(pytorch_python, alone, "-c", SAME_NETWORK_AND_REAL_INT8)
    lines = done.stdout.splitlines()
    assert lines[0] == "same network True", done.stderr
    assert lines[1].startswith("kernels ['")
    assert lines[2:] == [
        "all int8 True",
        "alike True",
        "smaller True",
        "Conv with auto_pad = SAME_UPPER is not read into PyTorch",
        "Gemm with transA = 1 is not read into PyTorch",
        "dilated pooling True",
    ]


DIGITS_BY_FOLDS = """
from benchmarks.quantization import digits, models, pytorch_engine

digits.EPOCHS = 3  # test_benchmark_accuracy trains in full
shared = {"network": "digits", "seed": 0}
fp32 = pytorch_engine.build_fp32(**shared, cache="models").facts
int8 = pytorch_engine.build_int8(**shared, cache="models", calibration_images=4).facts
eager = pytorch_engine.infer(model=fp32["model"], precision="fp32-eager", **shared, batch=64, threads=2)
answers = [max(range(10), key=row.__getitem__) for row in eager.outputs()]
print(len(answers), sum(a == b for a, b in zip(answers, fp32["labels"])) > 0.9 * len(answers))
print(len(models.fold_files(models.Path(int8["model"]))))
"""


@pytest.mark.long
def test_pytorch_judges_the_digits_fold_by_fold(alone, pytorch_python):
    done = run_python(pytorch_python, alone, "-c", DIGITS_BY_FOLDS)
    assert done.stdout.splitlines() == ["1797 True", "5"], done.stderr


def test_without_a_compiler_compiled_precisions_are_unsupported(monkeypatch):
    monkeypatch.setenv("PATH", "")
    flags = ["avx512_bf16", "avx512_vnni"]
    reasons = {
        precision: PYTORCH.explain_unsupported(precision, Isa.NATIVE, flags)
        for precision in PYTORCH.precisions
    }
    assert reasons.pop(InferencePrecision.FP32_EAGER) is None
    assert set(reasons.values()) == {"there is no C++ compiler, which pytorch needs: apt-get install g++"}


def gpu(engine, gpus):
    recorder = Recorder(output=None, messages=StringIO())
    return __main__.select_gpu_precisions("tiny", ENGINES[engine], recorder, gpus), recorder.skips


def test_on_a_gpu_pytorch_runs_fp16_too():
    possible, skips = gpu("pytorch", [{"name": "Tesla T4"}])
    assert {InferencePrecision.FP32, InferencePrecision.FP16, InferencePrecision.INT8} < set(possible)
    assert not skips


@pytest.mark.parametrize(
    ("engine", "gpus", "reason"),
    [
        ("pytorch", [], "this machine has no NVIDIA GPU"),
        ("openvino", [{"name": "Tesla T4"}], "openvino runs on CPUs only here"),
    ],
)
def test_an_engine_without_a_gpu_is_skipped_with_the_reason(engine, gpus, reason):
    possible, (skip,) = gpu(engine, gpus)
    assert possible == []
    assert skip.reason == reason
