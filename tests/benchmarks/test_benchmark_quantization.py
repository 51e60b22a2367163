import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dlcloud.benchmarks import catalog
from dlcloud.benchmarks.harness.case import VariantError
from dlcloud.benchmarks.harness.preparation import FactReader, ModelCache
from dlcloud.benchmarks.quantization import __main__
from dlcloud.benchmarks.quantization.__main__ import compare_logits
from tests.benchmarks.conftest import read_records as records
from tests.benchmarks.conftest import run_python

PROGRAMS = sorted(catalog.BENCHMARKS)


def quantization(python, folder, *arguments):
    return run_python(python, folder, "-m", "benchmarks.quantization", "--engine", "onnxruntime", *arguments)


def test_fp32_and_int8_on_the_real_engine(alone, engine_python):
    done = quantization(
        engine_python, alone,
        "--network", "tiny", "--batch", "1", "2", "--slice-seconds", "0.1", "--max-seconds", "3",
        "--width", "0.2", "--cache", "models", "--output", "records.jsonl",
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


def test_concurrent_requests_build_a_model_once(tmp_path):
    cache = ModelCache(tmp_path)
    built = []

    def build(path):
        built.append(path)
        path.write_bytes(b"model")

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: cache.get("a.onnx", build), range(8)))
    assert len(built) == 1
    assert set(paths) == {tmp_path / "a.onnx"}
    assert paths[0].read_bytes() == b"model"


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
