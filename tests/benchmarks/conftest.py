"""The benchmark programs copied alone, as an instance gets them, and the environment their pins describe."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.environments import python_with

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
    """Return the records of a program, or those of one kind."""
    written = map(json.loads, Path(path).read_text().splitlines())
    return [record for record in written if kind in {"", record["record"]}]


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
def training_python(pytorch_python):
    """Give a Python that has the pinned packages of the mixed-precision benchmark, and more."""
    return pytorch_python


@pytest.fixture(scope="session")
def language_python():
    """Give a Python with the pinned packages of the language benchmark, without llama.cpp and vLLM."""
    return _environment("language")


def _environment(name):
    return python_with(PACKAGE / "requirements" / f"{name}.txt")
