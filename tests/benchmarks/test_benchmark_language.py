"""Language models: what is decided without an engine, the load of a server; the engines where asked for."""

import asyncio
import json
import os
import random
import struct
import threading
from argparse import Namespace
from contextlib import contextmanager
from itertools import pairwise

import pytest

from dlcloud.benchmarks.harness.case import VariantError
from dlcloud.benchmarks.harness.worker import Worker, _measure
from dlcloud.benchmarks.language import serving
from dlcloud.benchmarks.language.networks import NETWORKS, NetworkSize, is_encoder, read_text, title_of
from dlcloud.benchmarks.language.serving import Answer, LoadResult, arrivals, percentile, send_load
from dlcloud.benchmarks.language.settings import ENGINES, ENTRY, PRECISIONS, LanguageTraining, parse
from tests.benchmarks.conftest import read_records, run_python

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
    words = ["-m", "benchmarks.language", *options, "--task", task, "--rounds", "1", "--output", "r.jsonl"]
    words += ["--engine", "openvino", "pytorch", "--cache", str(alone / "cache")]
    done = run_python(language_python, alone, *words)
    assert done.returncode == 0, done.stderr
    results = read_records(alone / "r.jsonl", "result")
    assert results
    assert all(result["metrics"]["throughput"]["unit"] == "tokens/s" for result in results)
    compared = [result["facts"] for result in results if "cosine_similarity" in result["facts"]]
    assert all(facts["cosine_similarity"] > 0.99 for facts in compared)
    assert all(0 < result["facts"]["share_of_peak_percent"] <= 100 for result in results)


FIRST_S, BETWEEN_S, TOKENS = 0.03, 0.01, 5
TIMER_S = 0.001
"""Timers may be that early, and requests are due one after the other."""


class Server:
    """An OpenAI-compatible server that answers one request at a time, with known delays."""

    def __init__(self, *, status=b"200 OK", split=False):
        self.status, self.split = status, split
        self.bodies = []
        self._turn = asyncio.Lock()

    async def answer(self, reader, writer):
        headers = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((line for line in headers.splitlines() if "Content-Length" in line), "0: 0")
        body = await reader.readexactly(int(length.split(":")[1]))
        self.bodies.append(json.loads(body) if body else None)
        writer.write(b"HTTP/1.1 " + self.status + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        if body and self.status.startswith(b"200"):
            async with self._turn:
                await asyncio.sleep(FIRST_S)
                await self._stream(writer)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def _stream(self, writer):
        for number in range(TOKENS):
            if number:
                await asyncio.sleep(BETWEEN_S)
            await self._event(writer, {"choices": [{"text": f"t{number}"}]})
        await self._event(writer, {"choices": [], "usage": {"completion_tokens": TOKENS + 2}})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n")

    async def _event(self, writer, event):
        line = b"data: " + json.dumps(event).encode() + b"\n\n"
        for piece in (line[:7], line[7:]) if self.split else (line,):
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()


@contextmanager
def running(server):
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        loop.close()


@pytest.mark.parametrize("split", [False, True])
def test_times_are_no_shorter_than_the_servers_delays(split):
    server = Server(split=split)
    with running(server) as url:
        result = send_load(url, ["a"] * 4, rate=1e6, generate=9, seed=0)
    assert result.failures == []
    assert [answer.tokens for answer in result.answers] == [TOKENS + 2] * 4
    assert all(len(answer.token_s) == TOKENS for answer in result.answers)
    # All are due at once and answered one by one: the wait for the others counts.
    whole_s = FIRST_S + (TOKENS - 1) * BETWEEN_S
    ends = sorted(answer.end_s for answer in result.answers)
    assert all(end >= number * (whole_s - TIMER_S) for number, end in enumerate(ends, 1))
    assert all(answer.token_s[-1] >= whole_s - TIMER_S for answer in result.answers)
    assert result.seconds >= ends[-1]
    assert server.bodies[0]["max_tokens"] == 9


def test_a_refusal_is_a_failure_that_says_why():
    with running(Server(status=b"503 Busy")) as url:
        result = send_load(url, ["a"], rate=1.0, generate=1, seed=0)
    assert "503 Busy" in result.failures[0]


def test_without_a_server_a_request_fails():
    result = send_load("http://127.0.0.1:9/v1", ["a"], rate=1.0, generate=1, seed=0)
    assert len(result.failures) == 1


def test_arrivals_are_a_poisson_process():
    moments = arrivals(5.0, 4000, random.Random(1))
    gaps = [after - before for before, after in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.05)
    assert spread == pytest.approx(mean, rel=0.1)


def test_percentiles_are_of_the_values_themselves():
    values = list(range(1, 21))
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [10, 19, 20]
    assert percentile([], 0.5) == float("inf")


def options(**changes):
    values = {
        "rate": [1.0, 2.0, 4.0],
        "requests": 10,
        "prompt": [8],
        "generate": [4],
        "first_token_ms": 100.0,
    }
    return Namespace(**{**values, "seed": 0, **changes})


def variant_of(monkeypatch, first_ms):
    """Return a variant whose server's first tokens take `first_ms(rate)`."""

    def answer(_url, prompts, *, rate, generate, seed):
        del seed
        token_s = (first_ms(rate) / 1000,)
        answers = [Answer(token_s=token_s, tokens=generate, end_s=1.0) for _ in prompts]
        return LoadResult(rate=rate, seconds=len(prompts) / rate, answers=answers)

    monkeypatch.setattr(serving, "send_load", answer)
    return serving.ServingVariant.at("http://127.0.0.1:9/v1", options())


def test_the_highest_rate_that_meets_the_goal_is_measured(monkeypatch):
    variant = variant_of(monkeypatch, lambda rate: 40 * rate)
    variant.warm_up(1.0)
    assert variant.measure(1.0).value == pytest.approx(2.0 * 4)
    facts = variant.finish().facts
    assert facts["requests_per_s"] == 2.0
    assert facts["goal_met"]
    assert facts["first_token_p95_ms"] == pytest.approx(80)
    assert [tried["rate"] for tried in facts["rates_tried"]] == [1.0, 2.0, 4.0]


def test_no_rate_that_meets_the_goal_is_a_failure(monkeypatch):
    variant = variant_of(monkeypatch, lambda _rate: 150.0)
    with pytest.raises(VariantError, match=r"in 150 ms, not 100 ms"):
        variant.warm_up(1.0)


def test_a_server_that_ends_is_a_failure_with_its_last_words():
    variant = serving.ServingVariant(
        name="x",
        goal=serving.ServingGoal.of(options()),
        endpoint="http://127.0.0.1:9/v1",
        command=["sh", "-c", "echo no model >&2; exit 3"],
    )
    with pytest.raises(VariantError, match="ended with status 3: no model"):
        variant.start()
    variant.close()
