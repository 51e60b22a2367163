"""Quantization on its engines: real kernels, sizes, accuracy, one's own models; and choices without them."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from dlcloud.benchmarks import catalog
from dlcloud.benchmarks.harness import hardware, program
from dlcloud.benchmarks.harness.case import VariantError
from dlcloud.benchmarks.harness.preparation import FactReader, ModelCache
from dlcloud.benchmarks.harness.records import Recorder
from dlcloud.benchmarks.quantization import __main__, settings
from dlcloud.benchmarks.quantization.__main__ import compare_accuracy, compare_logits
from dlcloud.benchmarks.quantization.settings import ENGINES, InferencePrecision, Isa, parse
from tests.benchmarks.conftest import read_records, run_python
from tests.benchmarks.conftest import read_records as records
from tests.environments import ROOT
from tests.needs import needs

PROGRAMS = sorted(catalog.BENCHMARKS)


SHORT = ["--rounds", "1", "--slice-seconds", "0.01", "--max-seconds", "0.1", "--cache", "models"]


def quantization(python, folder, *arguments):
    words = ["-m", "benchmarks.quantization", *arguments, "--output", "records.jsonl"]
    return run_python(python, folder, *words)


def facts_of(folder):
    """Return the facts of each setting that was measured."""
    return {one["setting"]: one["facts"] for one in records(folder / "records.jsonl", "result")}


def test_fp32_and_int8_on_the_real_engine(alone, engine_python):
    done = quantization(
        engine_python, alone, "--engine", "onnxruntime",
        "--network", "tiny", "--batch", "1", "2", "--slice-seconds", "0.1", "--max-seconds", "3",
        "--width", "0.2", "--cache", "models",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = alone / "records.jsonl"
    (start,) = records(written, "start")
    assert start["software"]["packages"]["onnxruntime"] == "1.31.1"
    results = {(record["case"], record["setting"]): record for record in records(written, "result")}
    assert list(results) == [
        ("tiny batch 1", "onnxruntime fp32"), ("tiny batch 1", "onnxruntime int8"),
        ("tiny batch 2", "onnxruntime fp32"), ("tiny batch 2", "onnxruntime int8"),
    ]  # fmt: skip
    fp32, int8 = (results["tiny batch 1", f"onnxruntime {precision}"] for precision in ("fp32", "int8"))
    metrics = {"throughput", "latency_p50", "latency_p99", "resident_memory", "peak_memory"}
    assert set(fp32["metrics"]) == metrics
    assert set(results["tiny batch 2", "onnxruntime fp32"]["metrics"]) == metrics - {
        "latency_p50",
        "latency_p99",
    }
    throughput = fp32["metrics"]["throughput"]
    assert throughput["low"] <= throughput["value"] <= throughput["high"]
    assert 0.99 < int8["facts"]["cosine_similarity"] <= 1
    assert 0.9 < int8["facts"]["cosine_similarity_centred"] <= 1
    assert 2 < int8["facts"]["times_smaller"] < 4
    assert int8["facts"]["model_bytes"] < fp32["facts"]["model_bytes"]
    assert fp32["facts"]["layers_computed_in"] == {"fp32": 9}
    assert int8["facts"]["layers_computed_in"] == {"int8": 9}
    assert fp32["facts"]["flop_per_input"] == int8["facts"]["flop_per_input"] == 1_496_064
    assert fp32["facts"]["uncounted_operators"] == ["Add", "GlobalAveragePool", "MaxPool", "Relu"]
    assert fp32["facts"]["bytes_per_input"] > fp32["facts"]["model_bytes"]
    two = results["tiny batch 2", "onnxruntime fp32"]["facts"]
    assert two["bytes_per_input"] == fp32["facts"]["bytes_per_input"] - fp32["facts"]["weight_bytes"] / 2
    assert int8["facts"]["bytes_per_input"] == fp32["facts"]["bytes_per_input"] / 4
    for result in results.values():
        assert 0 < result["facts"]["share_of_peak_percent"] <= 100
        assert result["facts"]["bound"] in {"compute", "memory"}
    assert {result["facts"]["weights"] for result in results.values()} == {"random"}
    assert "top" not in done.stdout
    assert "random" in done.stdout
    assert {record["metric"] for record in records(written, "comparison")} == {"throughput"}
    models = sorted(path.suffix for path in (alone / "models").iterdir())
    assert models == [".lock", ".lock", ".onnx", ".onnx"]
    assert_computes_in_int8(engine_python, alone)


def assert_computes_in_int8(python, folder):
    """Look into the graph that the engine makes of the int8 model."""
    (model,) = (folder / "models").glob("*int8*.onnx")
    script = (
        "import sys, onnxruntime as o; s = o.SessionOptions(); s.optimized_model_filepath = 'optimized.onnx';"
        "s.log_severity_level = 3; o.InferenceSession(sys.argv[1], s, providers=['CPUExecutionProvider']);"
        "import onnx; print(*sorted({n.op_type for n in onnx.load('optimized.onnx').graph.node}))"
    )
    listed = run_python(python, folder, "-c", script, model)
    operators = set(listed.stdout.split())
    assert {"QLinearConv", "QLinearAdd", "QGemm"} <= operators
    assert not {"Conv", "Gemm", "MatMul", "Add"} & operators


COUNT = """
import json, sys
import numpy as np
from benchmarks.quantization.onnx_graphs import GraphBuilder, make_model
from benchmarks.quantization.onnx_graphs import NETWORKS
from benchmarks.quantization.models import count_operations


class Zeros:
    def standard_normal(self, shape, dtype):
        return np.zeros(shape, dtype)


counts = {}
for name in sys.argv[1:]:
    network, builder = NETWORKS[name], GraphBuilder(Zeros())
    outputs = network.build(builder)
    model = make_model(builder, outputs, name=name, shape=(3, network.size, network.size))
    counts[name] = count_operations(model).flop
print(json.dumps(counts))
"""
PUBLISHED = {"resnet50": 8_227_340_288, "vgg16": 2 * 15.61e9, "vgg19": 2 * 19.77e9}
"""Operations of one image: of ResNet-50 by PyTorch's counter, of the others two for each multiply-add."""


def test_operations_are_within_2_percent_of_the_published_counts(alone, engine_python):
    done = run_python(engine_python, alone, "-c", COUNT, *PUBLISHED)
    assert json.loads(done.stdout) == {
        name: pytest.approx(flop, rel=0.02) for name, flop in PUBLISHED.items()
    }


@pytest.mark.parametrize(
    ("package", "words", "requirements"),
    [
        ("onnxruntime", ["quantization", "--engine", "onnxruntime"], "quantization_onnxruntime.txt"),
        ("openvino", ["quantization", "--engine", "openvino"], "quantization.txt"),
        ("tensorflow", ["tensorflow_cpu"], "tensorflow.txt"),
        ("torch", ["mixed_precision", "--network", "tiny", "--device", "cpu"], "mixed_precision.txt"),
    ],
)
def test_without_its_engine_a_program_names_its_requirements(alone, package, words, requirements):
    done = run_python(sys.executable, alone, "-m", f"benchmarks.{words[0]}", *words[1:])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{package} is not installed: pip install -r ")
    assert line.endswith(f"benchmarks/requirements/{requirements}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--network", "alexnet"], "invalid choice: 'alexnet'"),
        (["--engine", "caffe"], "invalid choice: 'caffe'"),
        (["--batch", "0"], "argument --batch"),
        (["--batch", "one"], "argument --batch"),
        (["--threads", "-1"], "argument --threads"),
        (["--calibration-images", "0"], "argument --calibration-images"),
    ],
)
def test_bad_arguments_exit_2_with_a_message(alone, arguments, message):
    done = quantization(sys.executable, alone, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_needs_only_the_standard_library_and_names_every_parameter(alone, name):
    benchmark = catalog.BENCHMARKS[name]
    imports = f"import sys; sys.path.insert(0, '.'); from {benchmark.module}.__main__ import main"
    script = f"{imports}; main(['--help'])"
    done = run_python(sys.executable, alone, "-I", "-S", "-c", script)
    assert done.returncode == 0, done.stderr
    for parameter in benchmark.parameters:
        assert f"--{parameter} " in done.stdout + " ", parameter


def every_requirements_file():
    for benchmark in catalog.BENCHMARKS.values():
        yield benchmark.requirements_path
        for choice in benchmark.choices:
            yield benchmark.requirements_for([f"--{choice.parameter}", choice.value])


@pytest.mark.parametrize("path", sorted(set(every_requirements_file())), ids=lambda path: path.stem)
def test_requirements_are_pinned_to_the_last_package(path):
    lines = path.read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in pins)
    assert pins == sorted(pins)


@pytest.mark.parametrize("is_folder", [False, True])
def test_concurrent_requests_build_a_model_once(tmp_path, is_folder):
    cache, built = ModelCache(tmp_path), []

    def build(path):
        built.append(path)
        if is_folder:
            path.mkdir()
        (path / "model.bin" if is_folder else path).write_bytes(b"model")

    with ThreadPoolExecutor(8) as pool:
        paths = {*pool.map(lambda _: cache.get("a", build), range(8))}
    assert (len(built), paths) == (1, {tmp_path / "a"})
    assert (tmp_path / "a/model.bin" if is_folder else tmp_path / "a").read_bytes() == b"model"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.lock"]


def test_remains_of_a_killed_builder_are_removed(tmp_path):
    left = tmp_path / ".building-a.onnx-x1" / "a.onnx"
    left.parent.mkdir()
    left.write_bytes(b"half")
    ModelCache(tmp_path).get("a.onnx", lambda path: path.write_bytes(b"whole"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.lock"]


def test_a_build_that_fails_leaves_nothing_and_is_tried_again(tmp_path):
    cache = ModelCache(tmp_path)

    def breaks(path):
        path.write_bytes(b"half")
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.get("a.onnx", breaks)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx.lock"]
    assert cache.get("a.onnx", lambda path: path.write_bytes(b"whole")).read_bytes() == b"whole"


def test_agreement_distinguishes_equal_opposite_and_shifted_answers():
    rows = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 5.0, 2.0]]
    assert compare_logits(rows, rows)["cosine_similarity"] == 1.0
    opposite = [[-value for value in row] for row in rows]
    assert compare_logits(rows, opposite)["cosine_similarity"] == -1.0
    same_to_all = [[2.0, 3.0, 2.0]] * 3
    assert compare_logits(rows, same_to_all)["cosine_similarity"] > 0.8
    assert compare_logits(rows, same_to_all)["cosine_similarity_centred"] == 0.0


@pytest.mark.parametrize(
    ("network", "free_gib", "cores", "at_once"),
    [
        ("vgg16", 8, 2, 2),
        ("vgg16", 8, 64, 2),
        ("vgg16", None, 2, 2),
        ("vgg16", 8, 1, 1),
        ("vgg16", 3, 2, 1),
        ("vgg16", 0, 2, 1),
        ("/tmp/own.described.json", 8, 2, 1),
    ],
)
def test_models_are_built_at_once_where_there_is_memory(network, free_gib, cores, at_once):
    free = None if free_gib is None else free_gib << 30
    assert __main__.count_at_once(network, free, cores) == at_once


def test_builds_run_at_once_and_keep_their_order():
    both = threading.Barrier(2, timeout=60)

    def build(name):
        both.wait()
        return name

    assert __main__.build_all([partial(build, "fp32"), partial(build, "int8")], 2, FactReader()) == [
        "fp32",
        "int8",
    ]


def test_a_build_that_fails_ends_the_processes_of_the_others():
    failed = threading.Event()
    reader = FactReader()

    class Variant:
        def close(self):
            failed.set()

    def build(name):
        if name == "int8":
            raise VariantError("no room")
        reader._running.append(Variant())
        assert failed.wait(60)
        return name

    with pytest.raises(VariantError, match="no room"):
        __main__.build_all([partial(build, "fp32"), partial(build, "int8")], 2, reader)


PACKAGE = ROOT / "dlcloud" / "benchmarks"
ENTRY = catalog.BENCHMARKS["quantization"]


@dataclass(frozen=True)
class Run:
    """What one run of both engines has left: its records, and the models that it built."""

    records: list
    cache: Path

    @property
    def results(self):
        return {(record["case"], record["setting"]): record for record in of_kind(self.records, "result")}


@pytest.fixture(scope="module")
def run(tmp_path_factory, openvino_python):
    """Run the benchmark once, shortly, on both engines and all instructions, then on those of AVX2 alone."""
    folder = tmp_path_factory.mktemp("openvino")
    shutil.copytree(PACKAGE, folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    engines = ["--network", "tiny", "--engine", "onnxruntime", "openvino", "--isa", "native", "avx2"]
    done = quantization(openvino_python, folder, *SHORT, *engines, "--batch", "1", "3")
    assert done.returncode == 0, done.stderr
    return Run(records=read_records(folder / "records.jsonl"), cache=folder / "models")


def of_kind(records, kind):
    return [record for record in records if record["record"] == kind]


def possible_precisions():
    return [
        precision.value
        for precision in ENGINES["openvino"].precisions
        if precision.explain_unsupported(hardware.cpu_flags()) is None
    ]


def test_every_setting_is_computed_in_its_own_precision(run):
    results, settings = run.results, [f"openvino {precision}" for precision in possible_precisions()]
    for case in ("tiny batch 1", "tiny batch 3"):
        assert [name for at, name in results if at == case and name.startswith("openvino")] == settings
    computed_in = {
        setting: results["tiny batch 1", setting]["facts"]["layers_computed_in"] for setting in settings
    }
    assert computed_in["openvino fp32"] == {"f32": 9}
    # AMX computes signed inputs, too.
    assert set(computed_in["openvino int8"]) <= {"u8", "i8"}
    assert sum(computed_in["openvino int8"].values()) == 9
    assert computed_in.get("openvino bf16", {"bf16": 9}) == {"bf16": 9}
    fp32, int8 = (results["tiny batch 3", f"openvino {precision}"]["facts"] for precision in ("fp32", "int8"))
    assert fp32["engine"] == "OpenVINO 2026.4.1"
    assert 0.9 < int8["cosine_similarity_centred"] < 1
    one = results["tiny batch 1", "openvino int8"]["facts"]
    assert int8["cosine_similarity"] == pytest.approx(one["cosine_similarity"], abs=1e-4)
    (start,) = of_kind(run.records, "start")
    assert start["software"]["packages"].keys() == {"onnxruntime", "openvino", "nncf", "onnx", "numpy"}


def test_quantized_graph_holds_int8_weights_and_size_counts_both_files(run):
    (model,) = run.cache.glob("*-int8-*-nncf*[0-9]")
    assert sorted(path.name for path in model.iterdir()) == ["model.bin", "model.xml"]
    int8 = run.results["tiny batch 1", "openvino int8"]["facts"]
    assert int8["model_bytes"] == sum(path.stat().st_size for path in model.iterdir())
    assert int8["times_smaller"] > 1.5
    layers = re.findall(r'type="(Convolution|MatMul)"', (model / "model.xml").read_text())
    weights = re.findall(r'element_type="i8"', (model / "model.xml").read_text())
    assert len(weights) == len(layers) == 9


def test_each_engine_has_its_own_baseline(run):
    pairs = {(record["baseline"], record["candidate"]) for record in of_kind(run.records, "comparison")}
    assert {
        ("onnxruntime fp32", "onnxruntime int8"),
        ("openvino fp32", "openvino int8"),
    } <= pairs
    assert all(baseline.split()[0] == candidate.split()[0] for baseline, candidate in pairs)
    overall = [record for record in of_kind(run.records, "overall") if record["case"] == "tiny batch 1"]
    best = {record["baseline"] for record in overall}
    assert len(best) == 1
    assert best < {"onnxruntime fp32", "openvino fp32"}
    assert {record["candidate"] for record in overall} >= {"onnxruntime int8", "openvino int8"}
    same = [record["facts"] for record in run.results.values() if "compared_with" in record["facts"]]
    assert same
    assert all(facts["cosine_similarity_worst"] > 0.99999 for facts in same)


def test_an_isa_cap_selects_older_kernels(run):
    results = run.results
    capped = results["tiny batch 1 avx2", "openvino int8"]["facts"]
    assert capped["isa"] == "Intel AVX2"
    assert capped["kernels"]
    assert not any("avx512" in kernel for kernel in capped["kernels"])
    assert ("tiny batch 1 avx2", "openvino bf16") not in results
    if "avx512_vnni" in hardware.cpu_flags():
        kernels = results["tiny batch 1", "openvino int8"]["facts"]["kernels"]
        assert all(re.search(r"avx512_core_vnni|avx512_core_amx|avx10|_amx", name) for name in kernels), (
            kernels
        )
    reasons = {(skip["setting"], skip["reason"]) for skip in of_kind(run.records, "skip")}
    why = "onnxruntime chooses its instructions itself and cannot be held to avx2"
    assert {("onnxruntime fp32", why), ("onnxruntime int8", why)} <= reasons


def test_an_isa_cap_hides_newer_cpu_flags():
    flags = ["avx2", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8", "avx512_bf16"]
    left = {isa: isa.visible_flags(flags) for isa in (Isa.NATIVE, Isa.AVX512_CORE, Isa.AVX2)}
    assert left == {Isa.NATIVE: flags, Isa.AVX512_CORE: ["avx2", "avx512bw"], Isa.AVX2: ["avx2"]}


def test_an_isa_cap_above_the_processor_is_unsupported():
    reason = ENGINES["openvino"].explain_unsupported(InferencePrecision.INT8, Isa.AVX512_CORE, ["avx2"])
    assert reason == "this processor has no avx512bw"


def test_a_model_computed_in_another_precision_is_refused(alone, openvino_python, run):
    script = (
        "import sys; from benchmarks.quantization.models import build_fp32;"
        "from benchmarks.quantization.openvino_engine import infer;"
        "model = build_fp32(network='tiny', seed=0, cache=sys.argv[1]).facts['model'];"
        "infer(model=model, network='tiny', precision='int8', threads=1, seed=0)"
    )
    done = run_python(openvino_python, alone, "-c", script, run.cache)
    assert "layers are computed in {'f32': 9}, not in i8 or u8" in done.stderr


def test_bf16_is_skipped_with_a_reason_if_the_processor_lacks_it():
    recorder = Recorder(output=StringIO(), messages=StringIO())
    flags = ["avx512f", "avx512_vnni"]
    possible = __main__.select_cpu_precisions("tiny", ENGINES["openvino"], Isa.NATIVE, recorder, flags)
    assert possible == [InferencePrecision.FP32, InferencePrecision.INT8]
    message = "skipped: tiny, openvino bf16: this processor has neither AVX512_BF16 nor AMX"
    assert message in recorder.messages.getvalue()
    assert message in program.render(recorder)
    record = json.loads(recorder.output.getvalue())
    assert (record["record"], record["setting"]) == ("skip", "openvino bf16")
    assert not recorder.failures


def test_only_requested_precisions_run_beside_the_baseline():
    only = __main__.restrict_precisions(ENGINES["pytorch"], ["int8"])
    assert only.precisions == (InferencePrecision.FP32, InferencePrecision.INT8)
    assert only.gpu_precisions == (InferencePrecision.FP32, InferencePrecision.INT8)
    assert __main__.restrict_precisions(ENGINES["openvino"], []).gpu_precisions == ()


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_bf16_runs_if_the_processor_has_it(flag):
    recorder = Recorder(output=None, messages=StringIO())
    assert InferencePrecision.BF16 in __main__.select_cpu_precisions(
        "tiny", ENGINES["openvino"], Isa.NATIVE, recorder, [flag]
    )
    assert not recorder.skips


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "quantization.txt"),
        (["--network", "vgg16", "--engine", "onnxruntime"], "quantization_onnxruntime.txt"),
        (["--engine", "openvino"], "quantization.txt"),
        (["--engine", "onnxruntime", "openvino", "--batch", "1"], "quantization.txt"),
        (["--engine=onnxruntime"], "quantization_onnxruntime.txt"),
        (["--eng", "onnxruntime"], "quantization_onnxruntime.txt"),
        (["--cache", "onnxruntime"], "quantization.txt"),
        (["--engine", "onnxruntime", "--network", "tiny", "digits"], "quantization.txt"),
        (["--model", "m.onnx"], "quantization.txt"),
        (["--model", "m.pt2"], "quantization_pytorch.txt"),
        (["--model", "m.keras"], "quantization_pytorch.txt"),
        (["--model", "saved_model"], "quantization.txt"),
    ],
)
def test_the_requirements_suit_the_requested_engines_and_models(arguments, name):
    assert ENTRY.requirements_for(arguments).name == name


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
        precision: ENGINES["pytorch"].explain_unsupported(precision, Isa.NATIVE, flags)
        for precision in ENGINES["pytorch"].precisions
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


@pytest.mark.long
def test_trained_digits_keep_their_accuracy_in_int8_on_every_engine(alone, openvino_python):
    engines = ["--network", "digits", "--batch", "8", "--engine", "onnxruntime", "openvino"]
    done = quantization(openvino_python, alone, *SHORT, *engines)
    assert done.returncode == 0, done.stderr
    facts = facts_of(alone)
    for engine in ("onnxruntime", "openvino"):
        int8 = facts[f"{engine} int8"]
        assert int8["images_judged"] == 1797
        assert int8["baseline_accuracy_percent"] > 97
        assert abs(int8["accuracy_drop_points"]) < 0.5
        assert int8["same_answer_percent"] > 99
        assert int8["weights"] == "trained"
    baselines = {
        facts[f"{engine} int8"]["baseline_accuracy_percent"] for engine in ("onnxruntime", "openvino")
    }
    assert len(baselines) == 1
    assert facts["openvino int8"]["layers_computed_in"].keys() <= {"u8", "i8"}
    assert "drop (points)" in done.stdout
    assert "random" not in done.stdout


@pytest.mark.long
def test_training_is_repeatable_and_gradients_are_those_of_the_loss(alone, openvino_python):
    script = """
import numpy as np
from benchmarks.harness.digits import Fold, load_folds
from benchmarks.quantization import digits
fold = load_folds(0)[0]
few = Fold(training=fold.training[:64], training_labels=fold.training_labels[:64],
                  held_out=fold.held_out, held_out_labels=fold.held_out_labels)
one, other = digits.train(few, 3), digits.train(few, 3)
assert all((a.weight == b.weight).all() for a, b in zip(one, other) if hasattr(a, "weight"))

layers = digits.make_network(np.random.default_rng(1))
images, labels = few.training[:8].astype(float), few.training_labels[:8]
for layer in layers:
    if hasattr(layer, "weight"):
        layer.weight, layer.bias = layer.weight.astype(float), layer.bias.astype(float)

def loss():
    values = digits.logits(layers, images)
    values = values - values.max(axis=1, keepdims=True)
    return np.mean(np.log(np.exp(values).sum(axis=1)) - values[np.arange(8), labels])

digits.compute_gradients(layers, images, labels)
for layer in layers:
    if hasattr(layer, "weight"):
        kept = layer.gradients[0].copy()
        place = np.unravel_index(abs(kept).argmax(), kept.shape)
        before = layer.weight[place]
        layer.weight[place] = before + 1e-5
        above = loss()
        layer.weight[place] = before - 1e-5
        below = loss()
        layer.weight[place] = before
        assert abs((above - below) / 2e-5 - kept[place]) < 1e-3 * abs(kept[place]), (layer, place)
print("equal")
"""
    done = run_python(openvino_python, alone, "-c", script)
    assert done.stdout == "equal\n", done.stderr


def test_every_image_is_held_out_once(alone, openvino_python):
    script = (
        "import numpy as np; from benchmarks.harness.digits import load_folds; folds = load_folds(5);"
        "print(sum(len(f.held_out) for f in folds), {len(f.held_out) + len(f.training) for f in folds});"
        "print(np.bincount(np.concatenate([f.held_out_labels for f in folds])).tolist())"
    )
    done = run_python(openvino_python, alone, "-c", script)
    counts = "[178, 182, 177, 183, 181, 182, 181, 179, 174, 180]"
    assert done.stdout == f"1797 {{1797}}\n{counts}\n"


def test_accuracy_counts_right_answers_and_the_drop_in_points():
    reference = [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
    other = [[0.2, 0.8], [0.4, 0.6], [0.3, 0.7], [0.6, 0.4]]
    facts = compare_accuracy([1, 0, 1, 1], reference, other)
    assert facts["baseline_accuracy_percent"] == 75
    assert facts["accuracy_percent"] == 50
    assert facts["accuracy_drop_points"] == pytest.approx(25)
    assert facts["same_answer_percent"] == 75


# A digits network as a user's own: trained on one fold, judged on images that it has not seen.
MAKE = """
import numpy as np, onnx
from benchmarks.harness.digits import Fold, load_folds
from benchmarks.quantization import digits
fold = load_folds(0)[0]
few = Fold(training=fold.training[:512], training_labels=fold.training_labels[:512],
                  held_out=fold.held_out, held_out_labels=fold.held_out_labels)
onnx.save(digits.export(digits.train(few, 0)), "mine.onnx")
inputs = np.concatenate([fold.training[:100], fold.held_out[:100]])
labels = np.concatenate([fold.training_labels[:100], fold.held_out_labels[:100]])
np.savez("labelled.npz", inputs=inputs, labels=labels)
np.save("plain.npy", inputs)
np.save("wrong.npy", inputs[:, :, 1:])
"""


@pytest.fixture
def made(alone, openvino_python):
    subprocess.run([openvino_python, "-c", MAKE], cwd=alone, check=True, timeout=600)
    return alone


@pytest.mark.long
def test_the_users_own_model_is_judged_by_their_own_data(made, openvino_python):
    arguments = ["--model", "mine.onnx", "--engine", "onnxruntime", "bigdl", "--batch", "1"]
    done = quantization(openvino_python, made, *SHORT, *arguments, "--data", "labelled.npz")
    assert done.returncode == 0, done.stderr
    facts, written = facts_of(made), records(made / "records.jsonl")
    assert {one["case"] for one in written if one["record"] == "result"} == {"mine.onnx batch 1"}
    int8 = facts["onnxruntime int8"]
    assert int8["images_judged"] == 100
    assert int8["baseline_accuracy_percent"] > 80
    assert int8["weights"] == "the user's"
    skipped = {record["setting"]: record["reason"] for record in written if record["record"] == "skip"}
    assert skipped["bigdl"] == "bigdl does not read ONNX files here"
    assert "random" not in done.stdout

    of_int8 = ["--model", "mine.onnx", "--batch", "1", "--precision", "int8"]
    unlabelled = quantization(openvino_python, made, *SHORT, *of_int8, "--data", "plain.npy")
    assert unlabelled.returncode == 0, unlabelled.stderr
    assert "cosine to baseline" in unlabelled.stdout
    assert "accuracy (%)" not in unlabelled.stdout
    assert [line.split()[3] for line in unlabelled.stdout.splitlines()[2:4]] == ["fp32", "int8"]

    wrong = quantization(openvino_python, made, *SHORT, "--model", "mine.onnx", "--data", "wrong.npy")
    assert wrong.returncode == 1
    assert "wrong.npy holds [1, 7, 8] as inputs; the model takes [1, 8, 8]" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.onnx", None, "none.onnx does not exist"),
        ("folder", {}, "folder is no TensorFlow SavedModel: it holds no saved_model.pb"),
    ],
)
def test_a_missing_model_ends_the_program_in_one_line(alone, name, content, message):
    if content is not None:
        (alone / name).mkdir()
    done = quantization(sys.executable, alone, "--model", name)
    assert (done.returncode, done.stderr) == (1, message + "\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "model.h5"], "a model is an .onnx, .pt2 or .keras file, or the folder of a TensorFlow"),
        (["--data", "x.npz"], "--data and --input-shape belong to a --model"),
        (["--model", "m.onnx", "--input-shape", "3,x"], "argument --input-shape"),
    ],
)
def test_contradictory_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert message in capsys.readouterr().err


def test_a_model_alone_is_run_alone():
    assert parse(["--model", "m.onnx"]).network == []
    assert parse([]).network == ["vgg16"]


def test_a_description_holds_title_format_and_batch(tmp_path):
    path = tmp_path / f"x{settings.DESCRIPTION_SUFFIX}"
    path.write_text(json.dumps({"source": "folder/my.pt2", "batch": 4}))
    assert settings.read_title(str(path)) == "my.pt2"
    assert settings.read_description(str(path)) == {"source": "folder/my.pt2", "batch": 4}
    assert settings.detect_format(Path("folder/my.pt2")) is settings.Format.PT2
    assert (settings.read_title("vgg16"), settings.read_description("vgg16")) == ("vgg16", None)


# A program of torch.export, its batch left open, with labelled data of its own kind.
EXPORT = """
import numpy as np, torch
from torch import nn
torch.manual_seed(0)
layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
net = nn.Sequential(*layers)
images = torch.rand(40, 1, 8, 8)
batch = torch.export.Dim("batch")
torch.export.save(torch.export.export(net.eval(), (images[:2],), dynamic_shapes=({0: batch},)), "mine.pt2")
np.savez("labelled.npz", inputs=images.numpy(), labels=net(images).argmax(1).numpy())
"""


@pytest.mark.skipif(
    os.environ.get("DLCLOUD_TEST_RECIPES") != "all", reason="15 and 45 s: DLCLOUD_TEST_RECIPES=all"
)
@pytest.mark.parametrize("engine", ["openvino", "pytorch"])
def test_an_exported_program_of_pytorch_is_quantized_and_run(alone, pytorch_python, engine):
    subprocess.run([pytorch_python, "-c", EXPORT], cwd=alone, check=True, timeout=600)
    arguments = ["--model", "mine.pt2", "--data", "labelled.npz", "--engine", engine, "--batch", "2"]
    done = quantization(pytorch_python, alone, *SHORT, *arguments)
    assert done.returncode == 0, done.stderr
    facts = facts_of(alone)
    (int8,) = (values for setting, values in facts.items() if setting.endswith("int8"))
    assert int8["weights"] == "the user's"
    assert int8["images_judged"] == 20
    assert int8["baseline_accuracy_percent"] == 100
    assert int8["accuracy_percent"] >= 90
