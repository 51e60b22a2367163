"""Runs and their records: each line once, whatever is read again, however it was cut."""

import json
import random
from datetime import timedelta

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.model.instance import hardware_of
from dlcloud.store.measurements import Selection
from tests.fakes.samples import THEN, run

LINES = [json.dumps({"record": "sample", "value": number, "text": "é" * number}) for number in range(40)]
CONTENT = "".join(line + "\n" for line in LINES).encode()


@pytest.fixture
def stored(runs):
    runs.add(run())
    return runs


def feed(runs, position, content):
    return runs.add_records("sample-1a2b-0001", position, content)


def lines(runs, kind="sample"):
    return runs.lines("sample-1a2b-0001", kind)


def test_a_run_comes_back_as_it_was(runs):
    first = run("b", started_at=THEN)
    second = run(
        "a", started_at=THEN + timedelta(seconds=1), cluster_id="2", hourly_usd=None, price_as_of=None
    )
    runs.add(second)
    runs.add(first)
    assert runs.all() == [first, second]
    assert runs.of_cluster("2") == [second]


def test_the_end_of_a_run_is_remembered(stored):
    ended = THEN + timedelta(seconds=90)
    stored.end("sample-1a2b-0001", RunState.FAILED, 3, ended)
    (known,) = stored.all()
    assert (known.state, known.exit_status, known.ended_at) == (RunState.FAILED, 3, ended)


def test_records_are_stored_once_however_often_they_come(stored):
    assert len(feed(stored, 0, CONTENT)) == 40
    assert feed(stored, 0, CONTENT) == []
    half = CONTENT.index(b"\n", len(CONTENT) // 2) + 1
    assert feed(stored, half, CONTENT[half:]) == []
    assert lines(stored) == LINES
    assert stored.stored_bytes("sample-1a2b-0001") == len(CONTENT)


def test_overlapping_pieces_that_end_mid_line_are_stored_once(stored):
    draw = random.Random(7)
    records = []
    while stored.stored_bytes("sample-1a2b-0001") < len(CONTENT):
        known = stored.stored_bytes("sample-1a2b-0001")
        starts = [0, *(index + 1 for index, byte in enumerate(CONTENT[:known]) if byte == 10)]
        begin = draw.choice(starts)
        records += feed(stored, begin, CONTENT[begin : begin + draw.randrange(1, 900)])
    assert [record["value"] for record in records] == list(range(40))
    assert lines(stored) == LINES


def test_a_torn_line_is_read_again_when_it_is_whole(stored):
    assert [record["value"] for record in feed(stored, 0, CONTENT[:80])] == [0]
    known = stored.stored_bytes("sample-1a2b-0001")
    assert CONTENT[:known].endswith(b"\n")
    feed(stored, known, CONTENT[known:])
    assert lines(stored) == LINES


def test_lines_that_are_not_records_are_skipped_and_counted(stored):
    content = b'Epoch 1\r\n\xff\xfe\n{"record": "sample"}\n{"record"\n\n{"record": "end", "ok": true}\n'
    assert [record["record"] for record in feed(stored, 0, content)] == ["sample", "end"]
    assert stored.stored_bytes("sample-1a2b-0001") == len(content)
    assert lines(stored, "end") == ['{"record": "end", "ok": true}']


def test_kinds_of_a_newer_program_are_kept(stored):
    feed(stored, 0, b'{"record": "energy", "joule": 3}\n')
    assert lines(stored, "energy") == ['{"record": "energy", "joule": 3}']


def test_nothing_is_stored_of_an_unknown_run(runs):
    assert runs.stored_bytes("missing") == 0


def test_results_come_back_by_run(stored, measurements):
    stored.add(run("other", cluster_id="2"))
    metric = {"throughput": {"value": 5, "low": 4, "high": 6, "unit": "images/s", "samples": 9}}
    result = {"record": "result", "case": "a", "setting": "int8", "metrics": metric}
    comparison = {"record": "comparison", "case": "a", "candidate": "int8", "ratio": 2, "low": 1.5, "high": 3}
    overall = {**comparison, "record": "overall", "ratio": 1.5}
    start = {"record": "start", "hardware": {"cpu_model": "Xeon", "physical_cores": 2}}
    content = "".join(json.dumps(record) + "\n" for record in (start, result, comparison, overall))
    feed(stored, 0, content.encode())
    stored.add_records("other", 0, (json.dumps(result) + "\n").encode())
    every = measurements.select(Selection(), newest=False)
    assert set(every) == {"sample-1a2b-0001", "other"}
    assert set(measurements.results(every)) == {"sample-1a2b-0001", "other"}
    assert measurements.results(every)["sample-1a2b-0001"][0].metrics["throughput"].high == 6.0
    assert measurements.comparisons(every)["sample-1a2b-0001"][0].ratio == 2.0
    assert [each.ratio for each in measurements.overall_comparisons(every)["sample-1a2b-0001"]] == [1.5]
    assert hardware_of(measurements.start_records(every)["sample-1a2b-0001"]).label == "Xeon, 2 cores"


@pytest.mark.parametrize(
    "broken",
    [
        {"metrics": None},
        {"metrics": {"throughput": {"low": 3}}},
        {"metrics": {"throughput": 3}},
        {"metrics": {"throughput": {"value": "fast"}}},
        {"warnings": 3},
    ],
)
def test_one_record_that_cannot_be_read_hides_no_other(stored, measurements, broken):
    good = {"record": "result", "case": "a", "setting": "b", "metrics": {}}
    content = "".join(json.dumps(record) + "\n" for record in (good, good | broken, good))
    feed(stored, 0, content.encode())
    every = measurements.select(Selection(), newest=False)
    assert len(measurements.results(every)["sample-1a2b-0001"]) == 2
    assert len(lines(stored, "result")) == 3


@pytest.mark.parametrize(("ok", "state"), [(True, RunState.DONE), (False, RunState.LOST)])
def test_a_run_whose_instance_is_gone_is_done_if_its_last_record_says_so(runs, ok, state):
    runs.add(run("r-1"))
    runs.add_records("r-1", 0, json.dumps({"record": "end", "ok": ok}).encode() + b"\n")
    assert runs.end_lost("r-1", THEN) is state
    assert runs.all()[0].state is state


def test_the_start_of_a_run_that_had_waited_is_corrected(runs):
    runs.add(run("r-1"))
    later = THEN + timedelta(hours=1)
    runs.put_start("r-1", later)
    assert runs.all()[0].started_at == later
