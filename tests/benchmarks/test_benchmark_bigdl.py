"""BigDL itself, where Java is (or CI is set), and its rule in NumPy, equal to it bit for bit."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from dlcloud.benchmarks.harness import preparation
from dlcloud.benchmarks.harness.case import VariantError
from tests.benchmarks.conftest import read_records, run_python

CACHE = Path("~/.cache/dlcloud-tests").expanduser()
SHORT = ["--rounds", "1", "--slice-seconds", "0.01", "--max-seconds", "0.1", "--warm-up-seconds", "1"]

LAYERS = """
import sys
import numpy as np
from pathlib import Path
from benchmarks import bigdl_rule
from benchmarks.quantization import bigdl_engine
bigdl_engine.start_java(1)
from bigdl.dllib.nn import layer as nn

random = np.random.default_rng(0)

def drawn(*shape, positive=False):
    values = random.standard_normal(shape).astype(np.float32)
    return np.maximum(values, 0) if positive else values

def int8(layer, weights, source):
    layer.set_weights(weights)
    model = nn.Sequential()
    model.add(layer)
    return model.evaluate().quantize().evaluate().forward(source)

for positive in (True, False):
    for count, inputs, outputs in ((4, 64, 10), (3, 17, 5), (2, 2048, 33)):
        source, weight, bias = drawn(count, inputs, positive=positive), drawn(outputs, inputs), drawn(outputs)
        theirs = int8(nn.Linear(inputs, outputs), [weight, bias], source)
        assert np.array_equal(bigdl_rule.linear(source, weight, bias), theirs), (positive, inputs)
    for channels, size, outputs, kernel, stride, pad in (
        (3, 16, 8, 3, 1, 1), (16, 9, 20, 3, 2, 1), (64, 8, 12, 3, 1, 1), (9, 14, 8, 5, 1, 2),
        (3, 20, 16, 7, 2, 3), (5, 9, 4, 1, 1, 0), (1, 8, 16, 3, 1, 1),
    ):
        source = drawn(2, channels, size, size, positive=positive)
        weight, bias = drawn(outputs, channels, kernel, kernel), drawn(outputs)
        layer = nn.SpatialConvolution(channels, outputs, kernel, kernel, stride, stride, pad, pad)
        theirs = int8(layer, [weight[None], bias], source)
        ours = bigdl_rule.convolution(source, weight, bias, stride=stride, pad=pad)
        assert np.array_equal(ours, theirs), (positive, channels, kernel)
even = np.zeros((1, 8, 6, 6), np.float32)
even[0, :, 3:] = 0.5
weight, bias = drawn(4, 8, 3, 3), drawn(4)
theirs = int8(nn.SpatialConvolution(8, 4, 3, 3, 1, 1, 1, 1), [weight[None], bias], even)
assert np.array_equal(bigdl_rule.convolution(even, weight, bias, pad=1), theirs)
print("equal")
"""


@pytest.fixture(scope="module")
def bigdl_python():
    """Give a Python with BigDL: 423 MB, so it is installed only where CI is set, and used where it lies."""
    if shutil.which("java") is None:
        pytest.skip("there is no java")
    requirements = Path(preparation.__file__).parents[1] / "requirements" / "quantization_bigdl.txt"
    if "CI" not in os.environ and not any(CACHE.glob("dlcloud/environments/quantization_bigdl-*/complete")):
        pytest.skip("BigDL is not installed yet; CI=1 installs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        try:
            python = preparation.build_environment(requirements, version="3.11", report=lambda _message: None)
        except VariantError as error:
            pytest.skip(str(error))
        yield python


def quantization(python, folder, *arguments, **variables):
    words = ["-m", "benchmarks.quantization", "--network", "tiny", "--batch", "4", *SHORT, *arguments]
    done = run_python(python, folder, *words, "--cache", "models", "--output", "records.jsonl", **variables)
    return done, read_records(folder / "records.jsonl")


@pytest.mark.long
def test_the_rule_equals_bigdls_own_layers_bit_for_bit(alone, bigdl_python):
    done = run_python(bigdl_python, alone, "-c", LAYERS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("equal\n")


@pytest.mark.long
@pytest.mark.usefixtures("bigdl_python")
def test_bigdl_runs_beside_another_engine_in_an_environment_of_its_own(alone, engine_python):
    done, records = quantization(engine_python, alone, "--engine", "onnxruntime", "bigdl")
    assert done.returncode == 0, done.stderr[-3000:]
    facts = {record["setting"]: record["facts"] for record in records if record["record"] == "result"}
    assert list(facts) == ["onnxruntime fp32", "onnxruntime int8", "bigdl fp32", "bigdl int8"]
    assert facts["bigdl fp32"]["layers_computed_in"] == {"fp32": 9}
    assert facts["bigdl int8"]["layers_computed_in"] == {"int8": 9}
    assert facts["bigdl int8"]["times_smaller"] > 2
    assert facts["bigdl int8"]["numpy"] == "1.23.5"
    assert facts["bigdl int8"]["java"]
    for setting in ("bigdl fp32", "bigdl int8"):
        assert 0 < facts[setting]["share_of_peak_percent"] <= 100
        assert facts[setting]["peak_dtype"] == setting.split()[1]
    assert facts["bigdl int8"]["cosine_similarity"] > 0.99
    assert facts["bigdl fp32"]["cosine_similarity"] > 0.9999
    assert facts["bigdl fp32"]["compared_with"] == "onnxruntime fp32"
    assert not list(alone.glob("*.log"))


def test_without_java_a_failure_says_how_to_get_it(alone, engine_python, tmp_path):
    (tmp_path / "empty").mkdir()
    done, records = quantization(engine_python, alone, "--engine", "bigdl", PATH=str(tmp_path / "empty"))
    assert done.returncode == 1
    (failure,) = [record for record in records if record["record"] == "failure"]
    assert failure["message"] == "there is no java: sudo apt-get install -qy openjdk-17-jre-headless"


def test_a_missing_python_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    requirements = tmp_path / "some.txt"
    requirements.write_text("six==1.17.0\n")
    with pytest.raises(VariantError, match=r"needs Python 3.2, which is not installed"):
        preparation.build_environment(requirements, version="3.2", report=lambda _message: None)


@pytest.mark.long
def test_an_environment_is_built_once_and_rebuilt_if_incomplete(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    requirements = tmp_path / "none.txt"
    requirements.write_text("# nothing\n")
    version = ".".join(map(str, sys.version_info[:2]))
    messages = []
    python = preparation.build_environment(requirements, version=version, report=messages.append)
    assert preparation.build_environment(requirements, version=version, report=messages.append) == python
    assert messages == ["installing the packages of none, once on this machine"]
    (Path(python).parents[1] / "complete").unlink()
    preparation.build_environment(requirements, version=version, report=messages.append)
    assert len(messages) == 2
