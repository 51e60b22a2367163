"""Records that a hostile instance sends: all that reads them goes on, and prints plain text and valid JSON.

DLCLOUD_FUZZ sets the number of lines (default 600), DLCLOUD_FUZZ_SEED the seed, which a failure names.
"""

import json
import os
import re
from copy import deepcopy
from random import Random
from types import SimpleNamespace

import pytest

from dlcloud.analysis.ranking import By, Group
from dlcloud.analysis.result import parse_record
from dlcloud.analysis.resume import finished_cases
from dlcloud.analysis.training import summarize_training
from dlcloud.app.results.rows import load_rows
from dlcloud.app.results.training import timelines_of_runs
from dlcloud.app.terminal.console import line_of
from dlcloud.benchmarks.harness.schema import Measurement
from dlcloud.elastic.registry import TrainingProgress, TrainingRegistry, parse_reports
from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.model.untrusted import parse_json, printable
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import View, cost_report
from dlcloud.report.page import page
from dlcloud.report.table import Format, render
from dlcloud.report.training import timeline_charts, training_report
from dlcloud.resources.texts import template
from dlcloud.runs.run import LiveOutput, Runner
from dlcloud.store.database import Database
from dlcloud.store.measurements import Measurements, Selection
from dlcloud.store.runs import Runs
from dlcloud.store.transfer import RunTransfer
from tests.fakes.clock import FakeClock
from tests.fakes.samples import THEN, instance, price, run

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
VALUES = (
    *(None, True, 0, -1, 10**400, 2**63, -(2**63) - 1),
    *(0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", "nan", "1", "x" * 3000, ESCAPE, "\ud800", "\x00", "../../etc/passwd", "i-0002.0"),
    *("<script>alert(1)</script>", "=cmd|' /C calc'!A0", "{0.__class__}{cause}"),
    *("2026-09-01T12:00:00+00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+14:00"),
    *([], [[]], [None, {}], {}, {"name": None}, {"value": "x"}),
    {"throughput": {"value": float("nan"), "low": float("inf"), "high": None, "unit": ESCAPE}},
)
_METRIC = {"value": 10.5, "low": 10.0, "high": 11.0, "unit": "images/s", "samples": 9}
_HARDWARE = {"cpu_model": "Xeon", "physical_cores": 2, "logical_cpus": 4, "cpu_flags": ["avx512"]}
_OF_WORKER = {"run": "r", "worker": "i-0001.0"}
_STEP = {"samples": 64, "loss": 2.5, "world_size": 2, "seconds": 0.5, "lineage": "a", "generation": 1}


def _record(kind, second=None, **values):
    """Return a record of a kind, with a time if it has one."""
    time = {} if second is None else {"time": f"2026-09-01T12:00:0{second}+00:00"}
    return {"record": kind, **time, **values}


RECORDS = (
    _record(
        "start",
        second=0,
        benchmark="quantization",
        arguments={"run": "train.py", "settings": {}},
        settings={"steps": 40},
        hardware={**_HARDWARE, "memory_gib": 8.0, "gpus": [{"name": "T4"}]},
        facts={"environment": "x"},
    ),
    _record(
        "result",
        case="vgg16",
        setting="fp32",
        baseline=True,
        stable=True,
        metrics={"throughput": _METRIC, "latency": _METRIC, "memory": _METRIC},
        facts={"dtype": "fp32", "threads": 2, "top1": 0.7},
        warnings=["noisy"],
    ),
    _record("result", case="vgg16", setting="int8", metrics={"throughput": _METRIC}),
    _record(
        "comparison",
        case="vgg16",
        baseline="fp32",
        candidate="int8",
        metric="throughput",
        ratio=1.9,
        low=1.8,
        high=2.0,
        verdict="faster",
    ),
    _record("overall", case="vgg16", baseline="b", candidate="int8", ratio=2, low=1, high=3),
    _record("progress", message="vgg16", done=1, total=4, remaining_s=100.0),
    _record("failure", case="vgg16", setting="int8", message="no memory"),
    _record("skip", case="vgg16", reason="no GPU"),
    _record("sample", case="vgg16", setting="int8", value=5.0),
    _record("case", second=5, case="vgg16", complete=True),
    *(_record("step", second=step, step=step, **_OF_WORKER, **_STEP) for step in (1, 2, 3)),
    *(
        _record("event", second=second, event=event, cause="spot", step=3, **_OF_WORKER)
        for second, event in ((1, "joined"), (2, "notice"), (3, "waiting"))
    ),
)


def hostile_record(random: Random) -> dict:
    """Return a record that has between none and four wrong values."""
    record = json.loads(json.dumps(random.choice(RECORDS)))
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        place = record
        while True:
            key = random.choice([*place] if isinstance(place, dict) else [*range(len(place))])
            inner = place[key]
            if isinstance(inner, dict | list) and inner and random.random() < 0.7:
                place = inner
                continue
            break
        chance = random.random()
        if chance < 0.15 and isinstance(place, dict) and key != "record":
            del place[key]
        elif chance < 0.3 and isinstance(place, dict):
            place[random.choice(("extra", ESCAPE, "", "metrics", "hardware"))] = deepcopy(
                random.choice(VALUES)
            )
        elif place is not record or key != "record" or random.random() < 0.1:
            place[key] = deepcopy(random.choice(VALUES))
        if not record:
            break
    return record


def hostile_line(random: Random) -> bytes:
    """Return a line, most often a record, sometimes cut off, joined with another, or no text at all."""
    text = json.dumps(hostile_record(random), ensure_ascii=random.random() < 0.5)
    line = text.encode("utf-8", "surrogatepass")
    chance = random.random()
    if chance < 0.03:
        line = line[: random.randrange(len(line) + 1)]
    elif chance < 0.06:
        place = random.randrange(len(line) + 1)
        line = line[:place] + random.randbytes(random.randrange(1, 9)) + line[place:]
    elif chance < 0.07:
        line = b'{"record": "result", "x": ' + b"[" * 20_000
    elif chance < 0.08:
        line = b'{"record": "progress", "done": ' + b"9" * 5000 + b"}"
    return line.replace(b"\n", b" ") + b"\n"


VIEWS = (View(), View(details=True), View(wide=True, by=By.LATENCY, group=Group.TYPE))
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MEMBER = Member(instance=instance("i-0001"), hourly_usd=price().hourly_usd, price_source="", price_as_of=THEN)


def read_all(database, run_id, lines):
    """Store a run's lines, and return all texts that the commands print of them."""
    runs, emitted = Runs(database), []

    def emit(event):
        emitted.append(line_of(event))

    runs.add(run(run_id, instance_id="i-0001"))
    records = runs.add_records(run_id, 0, b"".join(lines))
    runner = object.__new__(Runner)
    object.__setattr__(runner, "managed", SimpleNamespace(emit=emit))
    runner._emit_records(run(run_id), records, LiveOutput(emit=emit, instance_id="i-0001"))
    registry = TrainingRegistry()
    registry.add(MEMBER)
    progress = TrainingProgress(registry=registry, clock=FakeClock(), emit=emit)
    for report in parse_reports("i-0001", records):
        registry.observe("i-0001", report)
        progress.show_event("i-0001", report)
        progress.show_step()
    emitted.append(f"{registry.loss} {registry.step} {registry.waiting}")
    finished_cases(runs.all_lines(run_id))
    return [*emitted, *_reports(database, run_id)]


def _reports(database, run_id):
    store = Measurements(database)
    selection = Selection(run_ids=[run_id])
    rows = load_rows(store, selection, THEN)
    reports = [cost_report(rows, view, empty="nothing") for view in VIEWS]
    charts = cost_charts(rows, Market.ON_DEMAND)
    for place, timeline in enumerate(timelines_of_runs(store, [run_id])):
        charts += timeline_charts(timeline, place)
        training = summarize_training(timeline, [MEMBER], on_demand={}, disk_gib=50, now=THEN)
        reports.append(training_report(training, cluster="c", rehearsal=False))
    html = page(template("report.html"), "", reports[0], charts, title="t", subtitle="s")
    assert "<script>alert" not in html
    texts = [render(report, form) for report in reports for form in Format]
    for text in (render(report, Format.JSON) for report in reports):
        json.loads(text, parse_constant=_refuse)
    lines = list(RunTransfer(database).export_lines(selection, samples=True, commands=True))
    for line in lines:
        json.loads(line, parse_constant=_refuse)
        line.encode()
    return texts


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")


LINES = int(os.environ.get("DLCLOUD_FUZZ", "600"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))
OF_ONE_RUN = 12


@pytest.mark.timeout(7200)
def test_readers_of_records_take_whatever_an_instance_sends(tmp_path):
    database = Database(tmp_path / "store.sqlite")
    database.write("PRAGMA synchronous = OFF")
    for number in range(LINES // OF_ONE_RUN):
        random = Random(SEED * 1_000_003 + number)
        lines = [hostile_line(random) for _ in range(OF_ONE_RUN)]
        try:
            texts = read_all(database, f"r-{number}", lines)
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, run {number}: {error!r}") from error
        unsafe = [text for text in texts if CONTROL.search(text)]
        assert not unsafe, f"DLCLOUD_FUZZ_SEED={SEED}, run {number}"
    database.close()


def test_an_interval_whose_ends_are_swapped_is_none(tmp_path):
    """It was the logarithm of a negative number where a winner is looked for."""
    values = {"value": 10.5, "low": 10.0, "high": -1, "unit": "images/s", "samples": 9}
    records = [
        {"record": "result", "case": "c", "setting": setting, "metrics": {"throughput": values}}
        for setting in ("a", "b")
    ]
    assert Measurement(**values).interval is None
    database = Database(tmp_path / "store.sqlite")
    assert read_all(database, "r-1", [f"{json.dumps(record)}\n".encode() for record in records])
    database.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, None) for text in ("NaN", "-Infinity", "1e999", "1e300", "9" * 5000)),
        ("12", 12),
        ("-0.5", -0.5),
        ('"\\u001b[2J"', "\ufffd[2J"),
        ('"\\ud800"', "\ufffd"),
        ('{"\\u0000": ["a\\nb\\tc"]}', {"\ufffd": ["a\nb\tc"]}),
    ],
)
def test_json_of_an_instance_is_finite_and_printable(text, value):
    assert parse_json(text) == value


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"a": ' * 50_000, "{'a': 1}"])
def test_text_that_is_no_json_is_an_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_record(text) is None


def test_escapes_are_not_printable():
    assert not CONTROL.search(printable(ESCAPE))
    assert printable("größer\n\t日本") == "größer\n\t日本"
