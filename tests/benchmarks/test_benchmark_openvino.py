import json
import re
import shutil
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from dlcloud.benchmarks import catalog
from dlcloud.benchmarks.harness import hardware, program
from dlcloud.benchmarks.harness.preparation import ModelCache
from dlcloud.benchmarks.harness.records import Recorder
from dlcloud.benchmarks.quantization import __main__
from dlcloud.benchmarks.quantization.settings import ENGINES, InferencePrecision, Isa
from tests.benchmarks.conftest import read_records, run_python
from tests.environments import ROOT

SHORT = ["--network", "tiny", "--rounds", "1", "--slice-seconds", "0.01", "--max-seconds", "0.1"]
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
    words = [
        "-m", "benchmarks.quantization", *SHORT, "--engine", "onnxruntime", "openvino",
        "--isa", "native", "avx2", "--batch", "1", "3", "--cache", "models", "--output", "records.jsonl",
    ]  # fmt: skip
    done = run_python(openvino_python, folder, *words)
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


@pytest.mark.parametrize(
    ("isa", "left"),
    [
        (Isa.NATIVE, ["avx2", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8", "avx512_bf16"]),
        (Isa.AVX512_CORE, ["avx2", "avx512bw"]),
        (Isa.AVX2, ["avx2"]),
    ],
)
def test_an_isa_cap_hides_newer_cpu_flags(isa, left):
    flags = ["avx2", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8", "avx512_bf16"]
    assert isa.visible_flags(flags) == left


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
    ],
)
def test_the_requirements_suit_the_requested_engines(arguments, name):
    assert ENTRY.requirements_for(arguments).name == name


def test_a_folder_is_cached_like_a_file(tmp_path):
    cache = ModelCache(tmp_path)
    built = []

    def build(path):
        built.append(path)
        path.mkdir()
        (path / "model.bin").write_bytes(b"weights")

    for _ in range(2):
        assert (cache.get("model", build) / "model.bin").read_bytes() == b"weights"
    assert len(built) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]
