"""Recipes at small sizes on fresh images: set-up commands, apt, pip and programs are the real ones."""

import json
import os
from pathlib import Path

import pytest

from dlcloud.resources.texts import recipe_text

pytestmark = pytest.mark.timeout(2400)
UP_S = 2100
REPOSITORY = "https://github.com/tensorflow/benchmarks.git"
QUICK = "max-seconds: 2\n    warm-up-seconds: 0.5\n    slice-seconds: 0.05"
SMALL = {
    "quantization-int8": {
        "network: [ssd300, vgg16, vgg19, digits]": "network: [tiny]",
        "batch: [1, 8]": "batch: [2]",
        "max-seconds: 60": QUICK,
    },
    "quantization-bigdl": {
        "network: [vgg16, vgg19, digits]": "network: [tiny]",
        "batch: [8]": "batch: [2]",
        "max-seconds: 300": QUICK,
    },
    "mixed-precision": {
        "[vgg16, mobilenet, resnet50, efficientnet-b0, efficientnet-b1, efficientnet-b2, efficientnet-b3,\n"
        "              efficientnet-b4, efficientnet-b5, digits]": (
            "[tiny]\n    setting: [fp32, bf16, fp32+compile]"
        ),
        "batch: 8": "batch: 2",
        "max-seconds: 60": QUICK,
    },
    "tensorflow-tuned": {
        "network: [alexnet, googlenet, inception3, resnet50, resnet152, vgg16]": "network: [tiny]",
        "batch: [1, 32, 64, 96, 128]": "batch: [8]",
        "search-batch: 32": "search-batch: 8\n    knobs: [onednn, allocator]\n    search-seconds: 1",
        "max-seconds: 60": QUICK,
    },
    "tf-cnn-benchmarks": {
        "--model=resnet50 --batch_size=32 --num_batches=100": (
            "--model=trivial --batch_size=4 --num_batches=10 --num_warmup_batches=1"
        ),
        "unit: images": "unit: images\n  repeats: 1",
    },
}


def run_small(user, name):
    """Run a recipe in its small form, on its last type; return what the instance measured, by setting."""
    text = recipe_text(name)[0]
    for whole, small in SMALL[name].items():
        assert whole in text, whole
        text = text.replace(whole, small)
    path = user.home / f"{name}.yaml"
    path.write_text(text)
    types = text.partition("types: [")[2].partition("]")[0].split(", ")
    arguments = [
        "bench",
        "--recipe",
        str(path),
        "--cloud",
        "local",
        "-i",
        types[-1],
        "--yes",
        "--output",
        "json",
    ]
    out, err = user.begin(*arguments).communicate(timeout=UP_S)
    print(err, user.run("cost-report").stdout, sep="\n")
    assert out, err
    assert user.alive() == []
    return {row["setting"] for row in json.loads(out)["result"]["records"]}


def test_int8_runs_with_both_of_its_engines(boot_containers):
    settings = run_small(boot_containers("noble"), "quantization-int8")
    assert {setting.split()[0] for setting in settings} >= {"openvino", "onnxruntime"}


def test_bigdl_runs_with_the_java_and_python_of_its_set_up(boot_containers):
    assert "bigdl int8" in run_small(boot_containers("bookworm"), "quantization-bigdl")


def test_mixed_precision_compiles_with_its_set_up(boot_containers):
    settings = run_small(boot_containers("bookworm"), "mixed-precision")
    assert any("compile" in setting for setting in settings), settings


def test_tensorflow_finds_the_allocators_of_its_set_up(boot_containers):
    assert len(run_small(boot_containers("noble"), "tensorflow-tuned")) > 1


def test_the_original_tf_cnn_benchmarks_runs(boot_containers, tmp_path):
    """DLCLOUD_TF_CNN_BENCHMARKS is the folder of a clone, which stands for GitHub's."""
    clone = os.environ.get("DLCLOUD_TF_CNN_BENCHMARKS")
    if not clone:
        pytest.skip(f"DLCLOUD_TF_CNN_BENCHMARKS: the folder of a clone of {REPOSITORY}")
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "/srv/benchmarks"]\n\tinsteadOf = {REPOSITORY}\n[safe]\n\tdirectory = *\n')
    folders = (f"{Path(clone).resolve()}=/srv/benchmarks", f"{config}=/etc/gitconfig")
    settings = run_small(boot_containers("noble", *folders), "tf-cnn-benchmarks")
    assert settings == {"stock", "article", "today"}
