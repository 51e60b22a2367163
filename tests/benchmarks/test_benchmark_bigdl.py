"""BigDL itself, where Java is (or CI is set), and environments that a benchmark builds for a part."""

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
