"""What the language benchmark decides without an engine; the engines run where that is asked for."""

import json
import os
import struct
import subprocess

import pytest

from dlcloud.benchmarks.harness.worker import Worker, _measure
from dlcloud.benchmarks.language.networks import NETWORKS, NetworkSize, is_encoder, read_text, title_of
from dlcloud.benchmarks.language.settings import ENGINES, ENTRY, PRECISIONS, LanguageTraining, parse

HEAVY = os.environ.get("DLCLOUD_TEST_LANGUAGE") == "all"


class Clocked:
    """A workload whose clock goes on by a second a step, and by nothing else."""

    items_per_step = 4

    def __init__(self):
        self.facts = {}
        self.untimed_s = 0.0
        self.steps = 0

    def step(self):
        self.steps += 1
        self.untimed_s -= 1.0

    def outputs(self):
        return []


def test_what_a_workload_does_not_count_is_not_measured():
    workload = Clocked()
    measured = _measure(workload, 2.5, latencies=True)
    assert 0 < workload.steps <= 3
    assert measured["items"] == 4 * workload.steps
    assert measured["seconds"] >= workload.steps


def test_a_worker_warms_such_a_workload_up():
    worker = Worker()
    worker._workload = Clocked()
    assert worker.answer({"do": "warm_up", "seconds": 60.0})["settled"]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_engines_have_known_precisions(engine):
    assert {*engine.precisions, *engine.gpu_precisions} <= set(PRECISIONS)
    assert engine.explain_unsupported("bf16", "cpu", ()) is not None
    assert engine.explain_unsupported("bf16", "cuda", ()) is None or engine.name == "openvino"


def test_networks_are_named_and_one_reads_only():
    assert [name for name, network in NETWORKS.items() if is_encoder({"model_type": network.family})] == [
        "bert-large"
    ]
    assert title_of("hub:Qwen/Qwen2.5-0.5B") == "Qwen2.5-0.5B"


def test_the_text_is_divided_without_overlap():
    training, held_out = read_text()
    assert len(training) > 8 * len(held_out) > 100_000


@pytest.mark.parametrize("text", ["fp16", "bf16+heap", ""])
def test_an_unknown_training_setting_is_refused(text):
    with pytest.raises(ValueError, match=r"begins with|is none of"):
        LanguageTraining.parse(text)


def test_two_spellings_of_a_setting_are_one():
    settings = ["fp32", "bf16+checkpointing+lora", "bf16+lora+checkpointing"]
    arguments = parse(["--task", "training", "--setting", *settings])
    assert arguments.setting == ["fp32", "bf16+lora+checkpointing"]


@pytest.mark.parametrize(
    "options",
    [
        ["--engine", "vllm", "pytorch"],
        ["--endpoint", "http://127.0.0.1:1/v1"],
        ["--task", "serving", "--engine", "pytorch"],
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options):
    with pytest.raises(SystemExit):
        parse(options)


@pytest.mark.parametrize(
    ("engine", "name"),
    [("pytorch", "language.txt"), ("llamacpp", "language_llamacpp.txt"), ("vllm", "language_vllm.txt")],
)
def test_each_engine_has_the_packages_that_it_needs(engine, name):
    requirements = ENTRY.requirements_for(["--engine", engine])
    assert requirements.name == name
    pinned = {line.partition("==")[0] for line in requirements.read_text().splitlines() if "==" in line}
    assert set(ENGINES[engine].packages) <= pinned


def write_weights(folder, shapes):
    """Write the header of a safetensors file, which is all that sizes are read from."""
    header = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


DENSE = {
    "model.embed_tokens.weight": [100, 8],
    "model.layers.0.mlp.weight": [16, 8],
    "model.norm.weight": [8],
}
VALUES = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


def test_a_token_is_multiplied_by_the_weights_and_by_those_before_it(tmp_path):
    write_weights(tmp_path, DENSE)
    size = NetworkSize.of(tmp_path, VALUES)
    assert size == NetworkSize(stored=936, layers=128.0, head=800, attention=8)
    one = size.generating(10, 1, 2 * 936)
    assert one.flop == 2 * (128 + 800) + 4 * 8 * 10
    assert one.bytes == pytest.approx(2 * 928)  # all but the norm
    assert size.generating(10, 4, 2 * 936).bytes == one.bytes / 4
    prompt = size.reading(32, 2, 2 * 936)
    assert prompt.flop == 2 * 128 + 2 * 800 / 32 + 4 * 8 * 32
    assert prompt.bytes == 2 * 936 / 64


def test_an_encoder_has_no_output_layer_and_experts_count_as_chosen(tmp_path):
    experts = {"model.layers.0.mlp.experts.3.up.weight": [16, 8], "lm_head.weight": [100, 8]}
    write_weights(tmp_path, {**DENSE, **experts})
    chosen = {"num_experts": 4, "num_experts_per_tok": 1}
    assert NetworkSize.of(tmp_path, VALUES | chosen).layers == 128 + 128 / 4
    assert NetworkSize.of(tmp_path, VALUES | {"model_type": "bert"}).head == 0


@pytest.mark.skipif(not HEAVY, reason="environments of gigabytes: DLCLOUD_TEST_LANGUAGE=all")
@pytest.mark.parametrize("task", ["inference", "training"])
def test_the_engines_run_the_tiny_network(alone, language_python, task):
    options = [word for name, value in ENTRY.tiny.items() for word in (f"--{name}", value)]
    command = [language_python, "-m", "benchmarks.language", *options, "--task", task, "--rounds", "1"]
    command += ["--engine", "openvino", "pytorch", "--cache", str(alone / "cache"), "--output", "r.jsonl"]
    done = subprocess.run(command, cwd=alone, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (alone / "r.jsonl").read_text().splitlines()]
    results = [record for record in records if record["record"] == "result"]
    assert results
    assert all(result["metrics"]["throughput"]["unit"] == "tokens/s" for result in results)
    compared = [result["facts"] for result in results if "cosine_similarity" in result["facts"]]
    assert all(facts["cosine_similarity"] > 0.99 for facts in compared)
    assert all(0 < result["facts"]["share_of_peak_percent"] <= 100 for result in results)
