"""What a workload means, and every fault of one told before anything is launched."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dlcloud.launch.setup import packages_of
from dlcloud.model.errors import RecipeError
from dlcloud.runs.program import program_of
from tests.fakes.samples import RECIPE, recipe

COMMAND = RECIPE.replace("benchmark: quantization", "command: python3 train.py --lr '0.1 2'")


def program(text, folder=Path()):
    return program_of(recipe(text), folder)


def with_workload(*lines):
    return RECIPE.replace("  benchmark: quantization\n", "".join(f"  {line}\n" for line in lines))


def test_benchmarks_need_a_newer_python_than_commands(tmp_path):
    assert program(with_workload("benchmark: quantization")).minimum_python == "3.11"
    assert program(COMMAND, tmp_path).minimum_python == ""


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["benchmark: quantisation"], "there is no benchmark 'quantisation'"),
        (["benchmark: command"], "there is no benchmark 'command'"),
        (["benchmark: quantization", "parameters: {networks: vgg16, speed: 3}"], "speed"),
        (["benchmark: quantization", "parameters: {network: alexnet}"], "alexnet"),
        (["benchmark: quantization", "parameters: {network: tiny, batch: many}"], "many"),
        (["benchmark: quantization", "parameters: {network: tiny, help: me}"], "workload"),
    ],
)
def test_what_a_benchmark_cannot_do_is_reported_before_any_launch(lines, says, capsys):
    with pytest.raises(RecipeError) as caught:
        program(with_workload(*lines))
    assert says in caught.value.message
    assert "quantization" in caught.value.hint
    assert "command" not in caught.value.hint.split(": ")[1].split(", ")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (["json_field: train.rate"], ["--json-field", "train.rate"]),
        (["reported: yes", "final: yes"], ["--reported", "--final"]),
    ],
)
def test_the_other_ways_of_reading_a_throughput(lines, arguments):
    made = program(COMMAND + "".join(f"  {line}\n" for line in lines))
    assert list(made.arguments[-len(arguments) :]) == arguments


def test_a_command_with_one_repeat_runs_once(tmp_path):
    assert "--exact" in program(COMMAND + "  repeats: 1\n", tmp_path).arguments
    assert "--exact" not in program(COMMAND + "  repeats: 2\n", tmp_path).arguments


def test_a_command_runs_in_the_work_folder_under_the_same_protocol(tmp_path):
    (tmp_path / "src").mkdir()
    text = COMMAND + (
        "  files: src\n  throughput: 'x ([0-9]+)'\n  unit: tokens\n  repeats: 5\n"
        "  settings: [{name: a}, {name: b, environment: {N: 3}, arguments: [--fast]}]\n"
        "setup: {requirements: [numpy==1.26.4]}\n"
    )
    made = program(text, tmp_path)
    options = dict(zip(made.arguments[::2], made.arguments[1::2], strict=True))
    assert options["--run"] == "python3 train.py --lr '0.1 2'"
    assert options["--folder"] == "work"
    assert (options["--unit"], options["--repeats"], options["--throughput"]) == ("tokens", "5", "x ([0-9]+)")
    _, second = json.loads(options["--settings"])
    assert second == {
        "name": "b",
        "environment": {"N": "3"},
        "arguments": ["--fast"],
    }
    assert made.name == "command"
    assert made.files == tmp_path / "src"
    assert "numpy==1.26.4" in packages_of(made.requirements)


def test_the_shell_gets_every_argument_whole():
    made = program(COMMAND)
    words = shlex.split(made.command("/a folder/python", host="i-1").removeprefix("cd .. && exec "))
    assert words[:5] == ["/a folder/python", "-m", "benchmarks.command", "--output", "records.jsonl"]
    assert words[5:7] == ["--host", "i-1"]
    assert tuple(words[7:]) == made.arguments


def test_files_that_are_missing_are_reported(tmp_path):
    with pytest.raises(RecipeError, match="src does not exist") as caught:
        program(COMMAND + "  files: src\n", tmp_path)
    assert "relative to the recipe" in caught.value.hint


def test_looking_at_a_program_loads_no_framework():
    code = (
        "import sys; from pathlib import Path; from dlcloud.runs.program import program_of\n"
        "from tests.fakes.samples import recipe; program_of(recipe(), Path())\n"
        "print([name for name in ('onnxruntime', 'onnx', 'torch', 'boto3') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout == "[]\n"


def test_a_model_of_the_users_own_travels_and_is_found_beside_the_program(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.onnx").touch()
    lines = ["benchmark: quantization", "files: models", "parameters: {model: mine.onnx, engine: openvino}"]
    made = program(with_workload(*lines), tmp_path)
    assert made.files == tmp_path / "models"
    assert not made.is_resumable
    command = made.command("/env/bin/python", host="i-1")
    assert command.startswith(
        "PYTHONPATH=.. exec /env/bin/python -m benchmarks.quantization --output ../records.jsonl"
    )
    for other, says in (("files: models", "there is no other.onnx"), ("unit: images", "is not sent")):
        with pytest.raises(RecipeError, match=says):
            program(with_workload(lines[0], other, "parameters: {model: other.onnx}"), tmp_path)
