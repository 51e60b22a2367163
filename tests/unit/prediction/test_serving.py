"""What a language model costs on types, of what others published."""

import json
from dataclasses import replace
from math import exp, log

import pytest

from dlcloud.app.results.predict_model import answers
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.prediction.measured_servings import measured_servings
from dlcloud.prediction.measured_types import Kind, Reference
from dlcloud.prediction.serving import (
    GPUS,
    Setup,
    Source,
    demand_of,
    parse_config,
    read_demand,
    read_model,
    serve_on_gpus,
    setup_of,
    speed_of,
)
from dlcloud.report.served_types import served_report
from dlcloud.report.table import Format, render
from dlcloud.resources.type_table import find_model, serving_table, type_table
from tests.fakes.samples import run
from tests.unit.report.conftest import lines, metric, result


@pytest.fixture(scope="module")
def table():
    return serving_table()


def demand(model="8B", precision="fp8", ttft="200ms", tpot="30ms", tokens="1000/200"):
    return read_demand(read_model(model), precision, ttft, tpot, tokens)


def test_models_are_named_or_described_by_their_parameters():
    assert read_model("meta-llama/Llama-3.1-70B-Instruct").name == "Llama-3.1-70B"
    sparse = read_model("235b-a22b")
    assert (sparse.parameters, sparse.active) == (235, 22)
    for text in ("", "big", "0B", "8B-A9B", "-1B"):
        with pytest.raises(RecipeError, match="--model"):
            read_model(text)


LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def test_a_configuration_states_the_model_and_finds_a_listed_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert find_model(str(tmp_path)).name == "Llama-3.1-8B"
    sparse = {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": LLAMA | sparse}))
    mixtral = find_model(str(tmp_path / "config.json"))
    assert (round(mixtral.parameters, 1), round(mixtral.active, 1)) == (46.7, 12.9)
    for text in ("{}", "[]", "{", json.dumps(LLAMA | {"hidden_size": None})):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecipeError, match="not the configuration"):
            find_model(str(tmp_path))
    with pytest.raises(RecipeError, match="cannot be read"):
        find_model(str(tmp_path / "none.json"))


@pytest.mark.parametrize("word", [{"ttft": "soon"}, {"tpot": "0ms"}, {"tokens": "512"}, {"tokens": "0/5"}])
def test_what_is_no_goal_is_refused(word):
    with pytest.raises(RecipeError, match="not "):
        demand(**word)


def test_a_published_setup_is_answered_as_published_and_others_are_predicted(table):
    row = next(row for row in table.rows if row.model == "Llama-3.1-70B" and row.gpu == "H100")
    token, _, is_published = table.estimate(demand_of(row), setup_of(row))
    assert is_published
    assert token == row.token_s
    other = replace(setup_of(row), concurrency=row.concurrency + 1)
    near, _, is_published = table.estimate(demand_of(row), other)
    assert not is_published
    assert 0.5 < near / row.token_s < 2


def test_more_gpus_and_more_bandwidth_never_take_longer_by_the_parts_alone(table):
    one = demand()
    setups = (Setup(gpu=name, gpus=1, concurrency=8, server="vllm") for name in ("H100", "H200"))
    slow, fast = (table.sums(one, setup)[0] for setup in setups)
    assert fast < slow
    assert GPUS["H200"].bandwidth > GPUS["H100"].bandwidth


def test_more_gpus_divide_a_cache_of_heads_and_copy_a_latent_one(table):
    latent = demand("DeepSeek-R1", tokens="100000/1000")
    heads = replace(latent, model=replace(latent.model, cache_heads=8))
    setup = Setup(gpu="H200", gpus=8, concurrency=64, server="sglang")
    assert table.sums(latent, setup)[0] > 1.1 * table.sums(heads, setup)[0]


def test_without_fp8_memory_or_time_there_is_no_answer(table):
    assert serve_on_gpus(table, demand(), "p4d.24xlarge", "A100", 8) == "A100 has no fp8"
    assert "memory" in serve_on_gpus(table, demand("671B-A37B", "bf16"), "p5.4xlarge", "H100", 1)
    assert "goals" in serve_on_gpus(table, demand("400B", ttft="1ms"), "p5.48xlarge", "H100", 8)


def test_speed_is_interpolated_over_sizes_and_falls_as_bytes_grow():
    tests = [Reference(name="x", kind=Kind.GENERATION, file_bytes=size, tokens=128) for size in (1000, 4000)]
    levels = [log(40.0), log(10.0)]
    assert exp(speed_of(tests, levels, Kind.GENERATION, 128, 2000)) == pytest.approx(20.0)
    assert exp(speed_of(tests, levels, Kind.GENERATION, 128, 8000)) == pytest.approx(5.0)
    assert speed_of(tests, [log(40.0), None], Kind.GENERATION, 128, 2000) is None


def test_the_table_says_what_each_figure_rests_on_and_why_the_others_are_missing():
    asked = demand("1B", "int4", ttft="5s", tpot="100ms")
    names = ("p5.4xlarge", "g4dn.xlarge", "c7i.4xlarge", "g5.xlarge", "g6f.large", "t3.large", "c7i.large")
    catalog = Catalog()
    served, refused = answers(asked, type_table(), {name: catalog.hardware(name) for name in names})
    prices = {
        price.instance_type: {Market.ON_DEMAND: price.hourly_usd}
        for price in catalog.listed_prices("us-east-1")
    }
    report = served_report(
        served, refused, prices, demand=asked, region="us-east-1", market=Market.ON_DEMAND, most=9
    )
    records = json.loads(render(report, Format.JSON))["result"]["records"]
    types = {record["instance_type"] for record in records}
    assert {"p5.4xlarge", "g4dn.xlarge", "g5.xlarge", "c7i.4xlarge"} <= types
    assert all(record["source"] in {*Source} for record in records)
    for record in records:
        figure = float(record["on_demand_usd_per_million"])
        if record["source"] == Source.PREDICTED:
            assert float(record["on_demand_usd_per_million_low"]) < figure
    text = render(report, Format.TABLE, 120)
    assert "g6f.large: nothing is published of it" in text
    assert "t3.large: it slows down" in text


def test_the_heading_says_how_large_the_model_of_a_configuration_is():
    sparse = parse_config(json.dumps(LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}), "mine")
    asked = replace(demand(), model=sparse)
    report = served_report([], {}, {}, demand=asked, region="us-east-1", market=Market.ON_DEMAND, most=9)
    assert report.sections[0].heading.startswith("mine (47.5B, 13.7B for a token) in fp8")


def served(name, case, facts, rate, *, setting="vllm fp8", **of):
    job = replace(run(), instance_type=name, rank=0, **of)
    measured = metric(rate, 0.9 * rate, 1.1 * rate, "tokens/s")
    return lines(result(setting, case=case, throughput=measured, facts=facts), of=job)


def test_own_results_of_the_model_are_marked_as_measured():
    asked = demand("Llama-3.1-8B", tokens="1000/200", ttft="1s", tpot="50ms")
    read = {"prompt_tokens": 1024, "streams": 8}
    load = {
        "prompt_bytes": 4000,
        "generated_tokens": 200,
        "requests_per_s": 2.0,
        "first_token_p95_ms": 400.0,
        "between_tokens_p50_ms": 20.0,
    }
    title = "Llama-3.1-8B-Instruct"
    rows = [
        *served("g5.xlarge", f"{title} prompt 1024 streams 8", read, 16000.0),
        *served("g5.xlarge", f"{title} generate 128", read | {"generated_tokens": 128}, 400.0),
        *served("g6.xlarge", f"{title} serving 4000+200", load, 300.0),
        *served("g6e.xlarge", f"{title} serving 4000+200", load | {"first_token_p95_ms": 1500.0}, 900.0),
        *served("p5.4xlarge", f"{title} generate 128", read | {"generated_tokens": 128}, 400.0),
        *served("c7i.xlarge", f"{title} serving 4000+200", load, 30.0, cloud="local"),
        *served("c7a.xlarge", "llama-3.1-70b serving 4000+200", load, 30.0),
        *served("c6a.xlarge", f"{title} serving 4000+200", load, 30.0, setting="vllm bf16"),
        *served("c6i.xlarge", f"{title} serving 400+20", load | {"prompt_bytes": 400}, 30.0),
    ]
    found = measured_servings(rows, asked)
    assert set(found) == {"g5.xlarge", "g6.xlarge", "g6e.xlarge"}
    assert found["g6e.xlarge"] == "measured: the goals are missed"
    apart, loaded = found["g5.xlarge"], found["g6.xlarge"]
    assert (apart.source, loaded.source) == (Source.MEASURED, Source.MEASURED)
    assert (apart.first_token_s, apart.token_s) == pytest.approx((0.5, 0.02))
    assert apart.tokens_s == pytest.approx(8 * 200 / 4.5)
    assert (loaded.tokens_s, loaded.first_token_s, loaded.token_s) == pytest.approx((300.0, 0.4, 0.02))
    assert loaded.error == pytest.approx(0.1, abs=0.01)
