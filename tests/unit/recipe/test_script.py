"""A script as its syntax tree and its output show it, and the recipe that is made of it."""

import time

import pytest

from dlcloud.benchmarks.command.output import JsonField, Pattern
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.recipe.script import read_script, throughput_of_output
from dlcloud.recipe.script_recipe import ScriptRecipe

SCRIPT = """
import argparse, logging
import torch, cv2, mymodel
from sklearn.datasets import load_digits
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", default=64)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--out", required=True)
model = torch.nn.Linear(1, 1).to("cuda")
"""


def script(more=""):
    return read_script(SCRIPT + more, "train.py")


def recipe_text(facts):
    return ScriptRecipe(
        name="train",
        script=facts,
        command="python3 train.py",
        files="train.py",
        requirements=["numpy==2.4.6"],
        unpinned=["cv2"],
        throughput=facts.throughput,
        schema="recipe.schema.json",
    ).text()


def test_files_that_it_writes_are_seen():
    more = """
torch.save(model, "out/model.pt")
torch.save(model, name)
model.save_pretrained("./final")
TrainingArguments(output_dir="ckpt")
parser.add_argument("--log-dir", default="logs/")
frame.to_csv("/tmp/elsewhere.csv")
open("log.txt", "w").write("x")
open("data.txt").read()
"""
    assert set(script(more).written) == {"out/model.pt", "final", "ckpt", "logs", "log.txt"}
    assert "keep:" not in recipe_text(script(more)), "what a run writes is downloaded by default"


PRINTS = [
    ('print(f"step {s}: {b / t:.1f} images/s")', "step 3: 12.5 images/s", "images", 12.5),
    ('print(f"throughput {x} img/sec, loss {l}")', "throughput 12.5 img/sec, loss 3", "images", 12.5),
    ('print("samples/sec: %.2f" % x)', "samples/sec: 12.5", "samples", 12.5),
    ('print("samples/sec:", x)', "samples/sec: 12.5", "samples", 12.5),
    ('logging.info("{} tokens per second".format(x))', "INFO 12.5 tokens per second", "tokens", 12.5),
    ('print(f"{x:,.1f} images/s")', "12,622.7 images/s", "images", 12622.7),
    ('print(f"{x} images/s")', "12.6K images/s", "images", 12600.0),
    ('print(f"{x:e} images/s")', "1.262e+04 images/s", "images", 12620),
    ('print(f"{x} fps")', "60 fps", "frames", 60),
    ('print(f"epoch {e} images/s: {x}")', "epoch 3 images/s: 12.5", "images", 12.5),
    ('print({"tokens_per_sec": x})', "{'tokens_per_sec': 12.5}", "tokens", 12.5),
    ('print({"tokens_per_sec": f"{x}"})', "{'tokens_per_sec': '12.5'}", "tokens", 12.5),
    ('print(f"train/samples_per_second={x}")', "train/samples_per_second=12.5", "samples", 12.5),
    ('print(json.dumps({"samples_per_second": x}))', '{"samples_per_second": 12.5}', "samples", 12.5),
    ('print(json.dumps({"perf": {"it/s": x}}))', '{"perf": {"it/s": 12.5}}', "steps", 12.5),
    ('print(f"Throughput: {x}")', "Throughput: 12.5", "items", 12.5),
    ('print(f"{x} images/sec/gpu")', "12.5 images/sec/gpu", "images", 12.5),
]
"""What scripts print, and what is read of it."""


def values(throughput, line):
    """Read a line as a run does."""
    pattern, field = throughput.pattern, throughput.json_field
    return (Pattern.parse(pattern) if pattern else JsonField(field)).values(line)


@pytest.mark.parametrize(("line", "output", "unit", "value"), PRINTS)
def test_a_throughput_is_seen_in_prints_and_in_output(line, output, unit, value):
    for throughput in (throughput_of_output(["started", output]), script(line).throughput):
        assert throughput.unit == unit
        assert values(throughput, output) == [value]


TRAINER = "{'train_runtime': '9.1', 'train_samples_per_second': '79.78', 'train_steps_per_second': '9.97'}"
BAR = " 33%|███▎      | 4/12 [00:02<00:05,  1.45it/s]"
SLOW = " 41%|████▏     | 5/12 [00:09<00:15,  2.25s/it]"
KERAS = "63/63 ━━━━━━━━━━━━━━━━━━━━ 1s 9ms/step - accuracy: 0.5 - loss: 1.2"


def test_bars_are_read_as_rates_and_as_times():
    bar = throughput_of_output(["loading", "  0%|    | 0/12 [00:00<?, ?it/s]", BAR])
    assert (bar.unit, values(bar, BAR), values(bar, SLOW)) == ("steps", [1.45], [1 / 2.25])
    assert throughput_of_output([SLOW]) == bar
    assert throughput_of_output([BAR], bars=False) is None
    keras = throughput_of_output([KERAS])
    assert (keras.unit, values(keras, KERAS)) == ("steps", [pytest.approx(1000 / 9)])
    assert values(keras, "1/1 ━━━━ 0s 0s/step - loss: 1") == []
    apart = throughput_of_output(["step 3: 4.5 M tokens/s"])
    assert (apart.unit, values(apart, "step 400: 980 k tokens/s")) == ("tokens", [9.8e5])
    scaled = throughput_of_output(["40%|██  | 4k/9k [00:01<00:02, 1.25kimg/s]"])
    assert (scaled.unit, values(scaled, "50%|█  | 4k/9k [00:01<00:02, 1.25kimg/s]")) == ("images", [1250])


@pytest.mark.parametrize(
    ("source", "line", "unit"),
    [
        ("import transformers\ntransformers.Trainer(m).train()", TRAINER, "samples"),
        ("from trl import SFTTrainer\nSFTTrainer(m).train()", TRAINER, "samples"),
    ],
)
def test_what_a_trainer_prints_at_its_end_is_known(source, line, unit):
    throughput = read_script(source, "x.py").throughput
    assert (throughput.unit, values(throughput, line)) == (unit, [79.78])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("from tqdm import tqdm\nfor x in tqdm(y): pass", BAR),
        ("from tqdm.auto import trange\nfor x in trange(9): pass", SLOW),
        (
            "import lightning as L\nL.Trainer().fit(m)",
            "Epoch 0: 100%|███| 32/32 [00:00<00:00, 412.5it/s, v_num=0]",
        ),
        ("import keras\nmodel.fit(x, y)", KERAS),
        ("import tensorflow as tf\nmodel.fit(x, y, verbose=2)", "63/63 - 1s - 9ms/step - loss: 1"),
    ],
)
def test_the_bars_of_libraries_are_known(source, line):
    facts = read_script(source, "x.py")
    assert facts.throughput is None
    assert len(values(facts.bar, line)) == 1


def test_bars_that_are_turned_off_are_not_expected():
    assert read_script("import keras\nmodel.fit(x, verbose=0)", "x.py").bar is None
    assert read_script("from tqdm import tqdm\ntqdm(x, disable=True)", "x.py").bar is None


def test_a_pattern_of_a_recipe_takes_linear_time():
    lines = ["12.5 images/s", "images/s: 12.5", TRAINER, BAR, KERAS]
    for throughput in filter(None, (throughput_of_output([line]) for line in lines)):
        for long in ("1" * 200_000, "1," * 100_000, " " * 200_000, "images/s" + " " * 200_000):
            began = time.process_time()
            values(throughput, long)
            assert time.process_time() - began < 2  # quadratic time would be minutes


@pytest.mark.parametrize(
    ("source", "gpu", "bf16"),
    [
        ("import torch\nTrainingArguments(bf16=True)", "bf16=True", True),
        ("TrainingArguments(fp16=True)", "fp16=True", False),
        ("TrainingArguments(fp16=False)", "", False),
        ("AutoModel.from_pretrained(x, device_map='auto')", "device_map='auto'", False),
        ("AutoModel.from_pretrained(x, device_map='cpu')", "", False),
        ("options = {'bf16': True}\nTrainingArguments(**options)", "bf16=True", True),
        ("args.fp16 = True", "fp16=True", False),
        (
            "from accelerate import Accelerator\nAccelerator(mixed_precision='bf16')",
            "mixed_precision='bf16'",
            True,
        ),
        ("from accelerate import Accelerator\nAccelerator()", "Accelerator", False),
        ("from accelerate import Accelerator\nAccelerator(cpu=True)", "", False),
        ("import lightning as L\nL.Trainer(accelerator='gpu')", "accelerator='gpu'", False),
        ("import lightning as L\nL.Trainer(accelerator='cpu')", "", False),
        ("import lightning as L\nL.Trainer(precision='bf16-mixed')", "precision='bf16-mixed'", True),
        ("from transformers import Trainer\nTrainer(m).train()", "Trainer", False),
        ("from transformers import Trainer\nTrainer(m, A(use_cpu=True)).train()", "", False),
        (
            "import keras\nkeras.mixed_precision.set_global_policy('mixed_float16')",
            "set_global_policy('mixed_float16')",
            False,
        ),
        ("import xgboost\nxgboost.train({'device': 'cuda'})", "device='cuda'", False),
        ("import xgboost\nxgboost.train({'tree_method': 'hist'})", "", False),
        ("import jax\njax.devices('gpu')", "devices('gpu')", False),
        ("import bitsandbytes", "import bitsandbytes", False),
        ("print('gpu')", "", False),
    ],
)
def test_what_means_a_gpu(source, gpu, bf16):
    facts = read_script(source, "x.py")
    assert (facts.gpu, facts.uses_bf16) == (gpu, bf16)
    types = read_recipe(recipe_text(facts), "x.yaml").instances.types
    assert types[0].startswith("g") == bool(gpu)
    assert "g4dn.xlarge" not in types or not bf16, "a T4 has no bfloat16"


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("from transformers import Trainer", ["torch", "transformers"]),
        ("from transformers import Trainer\nTrainer(m)", ["accelerate", "torch", "transformers"]),
        ("import keras", ["keras", "tensorflow-cpu"]),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", ["jax", "keras"]),
        ("import jax, xgboost", ["jax", "xgboost"]),
        ("import transformers\nF(load_in_4bit=True)", ["bitsandbytes", "torch", "transformers"]),
    ],
)
def test_packages_that_are_needed_without_an_import(source, packages):
    assert read_script(source, "x.py").packages(()) == packages


def test_output_without_a_throughput_is_none():
    assert throughput_of_output(["epoch 1", "loss 0.5 after 3 s", "images/s unknown"]) is None
    assert script('print("images/s unknown")').throughput is None
    assert throughput_of_output(["model.bin: 100%|███| 9.1M/9.1M [00:01<00:00, 12.3MB/s]"]) is None


def test_what_is_no_python_is_refused_with_its_line():
    with pytest.raises(RecipeError, match="this is no Python"):
        read_script("x = 1\ny = = 2\n", "train.py")


@pytest.mark.parametrize(
    "source",
    [
        SCRIPT,
        'import dlcloud_report\nprint("x")',
        "from dlcloud.trainer import train",
        "import dlcloud.trainer.training",
        'import numpy\nprint(f"it\'s {x} images/s")',
        "",
    ],
)
def test_the_recipe_of_any_script_is_read(source):
    facts = read_script(source, "train.py")
    text = recipe_text(facts)
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    workload = read_recipe(text, "train.yaml").workload
    assert workload.command == "python3 train.py"
    assert (workload.elastic is not None) == ("trainer" in source)
    assert workload.reported == ("dlcloud_report" in source)


def test_the_recipe_of_an_elastic_script_says_what_spot_needs():
    text = recipe_text(read_script("from dlcloud.trainer import train", "train.py"))
    assert "market: on-demand # or spot-then-on-demand, then also on_demand_base: 1," in text
    spot = text.replace("market: on-demand #", "market: spot-then-on-demand\n  on_demand_base: 1 #")
    assert read_recipe(spot, "train.yaml").instances.on_demand_base == 1


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("from transformers import Trainer\nTrainer(model).train()", "Hugging Face's Trainer"),
        ("from transformers import Seq2SeqTrainer\nSeq2SeqTrainer(model).train()", "Hugging Face's Trainer"),
        ("import lightning as L\nL.Trainer(max_epochs=3).fit(model)", "Lightning"),
        ("import pytorch_lightning as pl\npl.Trainer().fit(model)", "Lightning"),
        ("import keras\nmodel.fit(x, y)", "Keras"),
        ("import tensorflow as tf\ntf.keras.Sequential().fit(x, y)", "Keras"),
        ("import xgboost as xgb\nxgb.train({}, data)", "XGBoost"),
        ("from lightgbm import LGBMRegressor\nLGBMRegressor().fit(x, y)", "LightGBM"),
        ("import torch, dlcloud_report\ndlcloud_report.checkpoint(model)", "dlcloud_report.checkpoint"),
    ],
)
def test_a_script_whose_framework_resumes_gets_a_recipe_that_does(source, title):
    script = read_script(source, "train.py")
    assert script.resumes == title
    workload = read_recipe(recipe_text(script), "train.yaml").workload
    assert workload.resume == "auto"
    assert workload.checkpoints == ["checkpoints/"]
    assert not workload.reported


@pytest.mark.parametrize(
    "arguments", ['"results/a"', 'output_dir="./results/a", logging_dir="logs"', "*arguments"]
)
def test_the_folder_in_which_a_framework_saves_is_among_the_checkpoints(arguments):
    source = f"import transformers\nopen('x', 'w')\nTrainer(model, TrainingArguments({arguments}))"
    script = read_script(source, "train.py")
    workload = read_recipe(recipe_text(script), "train.yaml").workload
    assert workload.checkpoints == ["checkpoints/", *(["results/a/"] if "results" in arguments else [])]


@pytest.mark.parametrize(
    "source", ["import torch\nloss.backward()", "from transformers import pipeline\npipeline()"]
)
def test_a_script_of_its_own_loop_does_not_resume(source):
    assert read_script(source, "train.py").resumes == ""
