import pytest

from dlcloud.benchmarks.quantization.__main__ import compare_accuracy
from tests.benchmarks.conftest import read_records, run_python

SHORT = ["--rounds", "1", "--slice-seconds", "0.01", "--max-seconds", "0.1", "--batch", "8"]


@pytest.mark.long
def test_trained_digits_keep_their_accuracy_in_int8_on_every_engine(alone, openvino_python):
    words = ["-m", "benchmarks.quantization", "--network", "digits", *SHORT, "--cache", "models"]
    engines = ["--engine", "onnxruntime", "openvino"]
    done = run_python(openvino_python, alone, *words, *engines, "--output", "records.jsonl")
    assert done.returncode == 0, done.stderr
    facts = {one["setting"]: one["facts"] for one in read_records(alone / "records.jsonl", "result")}
    for engine in ("onnxruntime", "openvino"):
        int8 = facts[f"{engine} int8"]
        assert int8["images_judged"] == 1797
        assert int8["baseline_accuracy_percent"] > 97
        assert abs(int8["accuracy_drop_points"]) < 0.5
        assert int8["same_answer_percent"] > 99
        assert int8["weights"] == "trained"
    baselines = {
        facts[f"{engine} int8"]["baseline_accuracy_percent"] for engine in ("onnxruntime", "openvino")
    }
    assert len(baselines) == 1
    assert facts["openvino int8"]["layers_computed_in"].keys() <= {"u8", "i8"}
    assert "drop (points)" in done.stdout
    assert "random" not in done.stdout


@pytest.mark.long
def test_training_is_repeatable_and_gradients_are_those_of_the_loss(alone, openvino_python):
    script = """
import numpy as np
from benchmarks.harness.digits import Fold, load_folds
from benchmarks.quantization import digits
fold = load_folds(0)[0]
few = Fold(training=fold.training[:64], training_labels=fold.training_labels[:64],
                  held_out=fold.held_out, held_out_labels=fold.held_out_labels)
one, other = digits.train(few, 3), digits.train(few, 3)
assert all((a.weight == b.weight).all() for a, b in zip(one, other) if hasattr(a, "weight"))

layers = digits.make_network(np.random.default_rng(1))
images, labels = few.training[:8].astype(float), few.training_labels[:8]
for layer in layers:
    if hasattr(layer, "weight"):
        layer.weight, layer.bias = layer.weight.astype(float), layer.bias.astype(float)

def loss():
    values = digits.logits(layers, images)
    values = values - values.max(axis=1, keepdims=True)
    return np.mean(np.log(np.exp(values).sum(axis=1)) - values[np.arange(8), labels])

digits.compute_gradients(layers, images, labels)
for layer in layers:
    if hasattr(layer, "weight"):
        kept = layer.gradients[0].copy()
        place = np.unravel_index(abs(kept).argmax(), kept.shape)
        before = layer.weight[place]
        layer.weight[place] = before + 1e-5
        above = loss()
        layer.weight[place] = before - 1e-5
        below = loss()
        layer.weight[place] = before
        assert abs((above - below) / 2e-5 - kept[place]) < 1e-3 * abs(kept[place]), (layer, place)
print("equal")
"""
    done = run_python(openvino_python, alone, "-c", script)
    assert done.stdout == "equal\n", done.stderr


def test_every_image_is_held_out_once(alone, openvino_python):
    script = (
        "import numpy as np; from benchmarks.harness.digits import load_folds; folds = load_folds(5);"
        "print(sum(len(f.held_out) for f in folds), {len(f.held_out) + len(f.training) for f in folds});"
        "print(np.bincount(np.concatenate([f.held_out_labels for f in folds])).tolist())"
    )
    done = run_python(openvino_python, alone, "-c", script)
    counts = "[178, 182, 177, 183, 181, 182, 181, 179, 174, 180]"
    assert done.stdout == f"1797 {{1797}}\n{counts}\n"


def test_accuracy_counts_right_answers_and_the_drop_in_points():
    reference = [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
    other = [[0.2, 0.8], [0.4, 0.6], [0.3, 0.7], [0.6, 0.4]]
    facts = compare_accuracy([1, 0, 1, 1], reference, other)
    assert facts["baseline_accuracy_percent"] == 75
    assert facts["accuracy_percent"] == 50
    assert facts["accuracy_drop_points"] == pytest.approx(25)
    assert facts["same_answer_percent"] == 75
