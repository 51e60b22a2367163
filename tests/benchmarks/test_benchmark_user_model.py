import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlcloud.benchmarks import catalog
from dlcloud.benchmarks.quantization import settings
from dlcloud.benchmarks.quantization.settings import parse

SHORT = ["--rounds", "1", "--slice-seconds", "0.01", "--max-seconds", "0.1", "--cache", "models"]

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


def run(python, folder, *arguments):
    command = [python, "-m", "benchmarks.quantization", *SHORT, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def made(alone, openvino_python):
    subprocess.run([openvino_python, "-c", MAKE], cwd=alone, check=True, timeout=600)
    return alone


@pytest.mark.long
def test_the_users_own_model_is_judged_by_their_own_data(made, openvino_python):
    arguments = ["--model", "mine.onnx", "--engine", "onnxruntime", "bigdl", "--batch", "1"]
    done = run(openvino_python, made, *arguments, "--data", "labelled.npz", "--output", "records.jsonl")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (made / "records.jsonl").read_text().splitlines()]
    facts = {record["setting"]: record["facts"] for record in records if record["record"] == "result"}
    assert {record["case"] for record in records if record["record"] == "result"} == {"mine.onnx batch 1"}
    int8 = facts["onnxruntime int8"]
    assert int8["images_judged"] == 100
    assert int8["baseline_accuracy_percent"] > 80
    assert int8["weights"] == "the user's"
    skipped = {record["setting"]: record["reason"] for record in records if record["record"] == "skip"}
    assert skipped["bigdl"] == "bigdl does not read ONNX files here"
    assert "random" not in done.stdout

    of_int8 = ["--model", "mine.onnx", "--batch", "1", "--precision", "int8"]
    unlabelled = run(openvino_python, made, *of_int8, "--data", "plain.npy")
    assert unlabelled.returncode == 0, unlabelled.stderr
    assert "cosine to baseline" in unlabelled.stdout
    assert "accuracy (%)" not in unlabelled.stdout
    assert [line.split()[3] for line in unlabelled.stdout.splitlines()[2:4]] == ["fp32", "int8"]

    wrong = run(openvino_python, made, "--model", "mine.onnx", "--data", "wrong.npy")
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
    done = run(sys.executable, alone, "--model", name)
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


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("m.onnx", "quantization.txt"),
        ("m.pt2", "quantization_pytorch.txt"),
        ("m.keras", "quantization_pytorch.txt"),
        ("saved_model", "quantization.txt"),
    ],
)
def test_the_requirements_suit_the_format(model, name):
    entry = catalog.BENCHMARKS["quantization"]
    assert entry.requirements_for(["--model", model]).name == name


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
    done = run(pytorch_python, alone, *arguments, "--output", "records.jsonl")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (alone / "records.jsonl").read_text().splitlines()]
    facts = {record["setting"]: record["facts"] for record in records if record["record"] == "result"}
    (int8,) = (values for setting, values in facts.items() if setting.endswith("int8"))
    assert int8["weights"] == "the user's"
    assert int8["images_judged"] == 20
    assert int8["baseline_accuracy_percent"] == 100
    assert int8["accuracy_percent"] >= 90
