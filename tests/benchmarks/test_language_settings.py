"""What the language benchmark decides without an engine; the engines run where that is asked for."""

import json
import os
import subprocess

import pytest

from dlcloud.benchmarks.harness.worker import Worker, _measure
from dlcloud.benchmarks.language.arguments import ENTRY, parse
from dlcloud.benchmarks.language.engines import ENGINES, PRECISIONS
from dlcloud.benchmarks.language.networks import NETWORKS, is_encoder, title_of
from dlcloud.benchmarks.language.text import read_text
from dlcloud.benchmarks.language.training_settings import LanguageTraining

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
