"""Results between stores: each run once, whole, or nothing at all, both ways and as often as one likes."""

import json
from datetime import timedelta

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcloud.analysis.result import RunState
from dlcloud.analysis.transfer import results_schema
from dlcloud.model.cluster import Member
from dlcloud.model.errors import RecipeError
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.measurements import Measurements, Selection
from dlcloud.store.runs import Runs
from dlcloud.store.transfer import ImportCounts, RunTransfer
from tests.fakes.samples import THEN, cluster, instance, price, run

METRIC = {"throughput": {"value": 5, "low": 4, "high": 6, "unit": "images/s", "samples": 9}}
RECORDS = [
    {"record": "start", "arguments": {"run": "train --token=secret", "unit": "images"}, "hardware": {}},
    {"record": "sample", "value": 5.0},
    {"record": "progress", "message": "…"},
    {"record": "result", "case": "a", "setting": "fp32", "metrics": METRIC,
     "facts": {"environment": {"HF_TOKEN": "secret"}, "weights": "random"}},
]  # fmt: skip


class Home:
    """A store of its own."""

    def __init__(self, path):
        self.database = Database(path)
        self.runs = Runs(self.database)
        self.transfer = RunTransfer(self.database)
        self.measurements = Measurements(self.database)

    def measure(self, name, **other):
        self.runs.add(run(name, **other))
        self.runs.put_prices(name, [price()])
        self.write(name)

    def write(self, name):
        content = "".join(json.dumps(record) + "\n" for record in RECORDS)
        self.runs.add_records(name, 0, content.encode())

    def lines(self, *, samples=False, commands=False, **selection):
        lines = self.transfer.export_lines(Selection(**selection), samples=samples, commands=commands)
        return [line.encode() for line in lines]

    def take(self, *lines):
        return self.transfer.import_lines([("file", lines)])


@pytest.fixture
def homes(tmp_path):
    made = [Home(tmp_path / name) for name in ("one.sqlite", "two.sqlite")]
    yield made
    for each in made:
        each.database.close()


def test_two_stores_become_alike_however_often_they_exchange(homes):
    one, two = homes
    one.measure("a")
    one.measure("b", hourly_usd=None, price_as_of=None, ended_at=THEN + timedelta(hours=1))
    two.measure("c")
    assert two.take(*one.lines()) == ImportCounts(added=2)
    assert one.take(*two.lines()) == ImportCounts(added=1, unchanged=2)
    assert two.take(*one.lines(), *one.lines()) == ImportCounts(unchanged=6)
    assert one.lines() == two.lines()
    assert one.runs.all() == two.runs.all()


def test_runs_arrive_with_their_prices_and_billing_periods(homes):
    one, two = homes
    clusters = Clusters(one.database)
    clusters.add(cluster())
    ended = THEN + timedelta(minutes=5)
    member = Member(instance=instance(), hourly_usd=None, price_source="", price_as_of=None, ended_at=ended)
    clusters.put_members("c0ffee", [member])
    one.measure("a")
    two.take(*one.lines())
    there = two.measurements
    chosen = there.select(Selection(), newest=True)
    (result,) = there.results(chosen)["a"]
    assert (result.setting, result.metrics["throughput"].high) == ("fp32", 6.0)
    assert there.market_prices(["a"]) == one.measurements.market_prices(["a"])
    assert there.billing_periods(["i-0001"]) == one.measurements.billing_periods(["i-0001"])
    assert there.billing_periods(["i-0001"])["i-0001"].ended_at == ended
    assert two.runs.own() == []


def test_a_run_that_was_exported_while_it_ran_is_completed(homes):
    one, two = homes
    one.runs.add(run("a", state=RunState.RUNNING))
    two.take(*one.lines())
    one.write("a")
    one.runs.end("a", RunState.DONE, 0, THEN + timedelta(hours=1))
    assert two.take(*one.lines()) == ImportCounts(completed=1)
    assert two.runs.all() == one.runs.all()
    assert len(two.measurements.select(Selection(), newest=True)) == 1


def test_commands_variables_and_samples_are_exported_only_on_request(homes):
    one, _ = homes
    one.measure("a")
    (line,) = one.lines()
    assert b"secret" not in line
    assert [each["record"] for each in json.loads(line)["records"]] == ["start", "result"]
    (line,) = one.lines(samples=True, commands=True)
    assert b"HF_TOKEN" in line
    assert [each["record"] for each in json.loads(line)["records"]] == ["start", "sample", "result"]


def test_selected_runs_are_exported_even_without_results(homes):
    one, _ = homes
    one.measure("a")
    one.runs.add(run("b", instance_type="c5.large"))
    assert len(one.lines()) == 2
    assert len(one.lines(types=("c5",))) == 1
    assert len(one.lines(settings=("fp32",))) == 1
    assert one.lines(settings=("int8",)) == []


def test_every_line_keeps_to_the_schema(homes):
    one, _ = homes
    one.measure("a")
    one.runs.add(run("b", hourly_usd=None, price_as_of=None))
    lines = one.lines()
    assert len(lines) == 2
    for line in lines:
        jsonschema.validate(json.loads(line), results_schema())


def changed(line, **fields):
    return json.dumps({**json.loads(line), **fields}).encode()


BAD_RESULT = {"record": "result", "case": "a", "setting": "b", "metrics": {"throughput": {"low": 1}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": 2}, "file:2: schema: Input should be 1: this dlcloud reads schema 1"),
        ({"run_id": "../../etc/passwd"}, "file:2: run_id: "),
        ({"hourly_usd": "-1"}, "file:2: hourly_usd: "),
        ({"hourly_usd": "NaN"}, "file:2: hourly_usd: "),
        ({"started_at": "2026-09-01T12:00:00"}, "file:2: started_at: "),
        ({"market": "black"}, "file:2: market: "),
        ({"workload": "\x1b[2J"}, "file:2: workload: "),
        ({"records": [{"value": 3}]}, "file:2: records.0: it has no kind"),
        ({"records": [BAD_RESULT]}, "file:2: records.0: this result cannot be read"),
        (
            {"records": [{"record": "result", "case": "\x1b[31m"}]},
            "file:2: records.0: has control characters",
        ),
        ({"records": [3]}, "file:2: records.0: "),
        ({"prices": [{"market": "spot"}]}, "file:2: prices.0.hourly_usd: "),
        ({"instance": {"launched_at": "today"}}, "file:2: instance.launched_at: "),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(homes, fields, message):
    one, two = homes
    one.measure("a")
    (line,) = one.lines()
    with pytest.raises(RecipeError) as caught:
        two.take(line, changed(line, **{"run_id": "b", **fields}), changed(line, run_id="c"))
    assert caught.value.message.startswith(message)
    assert caught.value.hint == "nothing was imported"
    assert two.runs.all() == []


def test_bad_lines_are_reported_together_up_to_a_number(homes):
    _, two = homes
    with pytest.raises(RecipeError) as caught:
        two.take(b"x", b"", b"[1]", b"\xff", b"{}")
    assert [line.partition(": ")[0] for line in caught.value.message.splitlines()] == [
        "file:1",
        "file:3",
        "file:4",
        "file:5",
    ]
    with pytest.raises(RecipeError) as caught:
        two.take(*[b"x"] * 100)
    assert len(caught.value.message.splitlines()) == 21


def test_another_run_of_the_same_name_is_refused(homes):
    one, two = homes
    one.measure("a")
    two.measure("a", instance_id="i-other")
    with pytest.raises(RecipeError, match="run_id: another run a is stored"):
        two.take(*one.lines())


def test_a_newer_dlcloud_may_have_more_keys(homes):
    one, two = homes
    one.measure("a")
    (line,) = one.lines()
    assert two.take(changed(line, colour="blue")) == ImportCounts(added=1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    key=st.sampled_from(["run_id", "prices", "instance", "records", "state", "hourly_usd"]), value=json_values
)
def test_any_line_is_imported_or_refused(homes, key, value):
    one, two = homes
    if not one.runs.all():
        one.measure("a")
    (line,) = one.lines()
    before, message = two.runs.all(), ""
    try:
        two.take(changed(line, **{key: value}))
    except RecipeError as error:
        message = error.message
    assert not message or (message.startswith("file:1: ") and two.runs.all() == before)
