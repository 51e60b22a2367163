"""The benchmark programs copied alone, as an instance gets them, and the environment their pins describe."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.environments import python_with
from tests.fakes.training import wait_until

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dlcloud" / "benchmarks"
SAMPLES = Path(__file__).resolve().parent / "samples"


def run_python(python, folder, *words, **variables):
    """Run Python in a folder to its end, with further variables in its environment."""
    return subprocess.run(
        [python, *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        env=os.environ | variables,
    )  # fmt: skip


def read_records(path, kind=""):
    """Return the whole records of a program, or those of one kind."""
    written = [json.loads(line) for line in Path(path).read_text().splitlines() if line.endswith("}")]
    return [record for record in written if kind in {"", record["record"]}]


def is_gone(pid):
    """Return whether a process has ended; its parent may not have buried it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def await_record(path, kind):
    """Wait until a program that runs has written a record of a kind."""
    wait_until(lambda: path.exists() and f'"record":"{kind}"' in path.read_text(), f"a {kind} in {path}")


@pytest.fixture
def alone(tmp_path):
    """Give a folder that holds nothing but the package `benchmarks`, with the sample workloads added."""
    shutil.copytree(PACKAGE, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    for sample in SAMPLES.glob("*.py"):
        shutil.copy(sample, tmp_path / "benchmarks")
    return tmp_path


@pytest.fixture(scope="session")
def engine_python():
    """Give a Python with the pinned packages of ONNX Runtime alone, built once per set of pins."""
    return _environment("quantization_onnxruntime")


@pytest.fixture(scope="session")
def openvino_python():
    """Give a Python with the pinned packages of the quantization benchmark on its default."""
    return _environment("quantization")


@pytest.fixture(scope="session")
def tensorflow_python():
    """Give a Python with the pinned packages of the TensorFlow benchmark."""
    return _environment("tensorflow")


@pytest.fixture(scope="session")
def pytorch_python():
    """Give a Python with the pinned packages of the quantization benchmark on PyTorch."""
    return _environment("quantization_pytorch")


@pytest.fixture(scope="session")
def language_python():
    """Give a Python with the pinned packages of the language benchmark, without llama.cpp and vLLM."""
    return _environment("language")


def _environment(name):
    return python_with(PACKAGE / "requirements" / f"{name}.txt")
