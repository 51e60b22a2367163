"""`dlcloud.trainer` and `dlcloud_report` where no PyTorch is installed, and on instances."""

import inspect
import subprocess
import sys
from importlib.util import find_spec

import pytest

import dlcloud.trainer
import dlcloud_report
from dlcloud.elastic.agents import ALIAS


def test_the_report_does_nothing_outside_of_a_benchmark(monkeypatch):
    monkeypatch.delenv("DLCLOUD_REPORT", raising=False)
    dlcloud_report.step(64)
    dlcloud_report.throughput(12.5)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_a_script_is_imported_and_a_call_says_so():
    with pytest.raises(ModuleNotFoundError, match="train needs PyTorch: pip install torch"):
        dlcloud.trainer.train()
    assert issubclass(dlcloud.trainer.DrainedError, SystemExit)
    with pytest.raises(AttributeError):
        _ = dlcloud.trainer.nothing


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_help_shows_what_train_takes():
    signature = inspect.signature(dlcloud.trainer.train)
    assert list(signature.parameters)[:5] == ["model", "optimizer", "dataset", "loss", "batch"]
    assert signature.parameters["seed"].default == 0
    assert signature.return_annotation == "Outcome"
    assert "schedule: Factor of the initial learning rates" in dlcloud.trainer.train.__doc__
    assert "this worker's model" in dlcloud.trainer.device.__doc__


def test_on_instances_the_same_import_finds_the_folder_beside(tmp_path):
    (tmp_path / "dlcloud").mkdir()
    (tmp_path / "dlcloud" / "__init__.py").write_bytes(ALIAS)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("train = 'found'")
    code = "from dlcloud.trainer import train; print(train)"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ".."},
        timeout=60,
        check=False,
    )
    assert done.stdout == "found\n", done.stderr
