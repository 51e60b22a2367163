import io
import json
from datetime import UTC, datetime

from dlcloud.benchmarks.harness import program
from dlcloud.benchmarks.harness.records import Recorder, open_records
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, MetricName, Result

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def recorder(output=None):
    return Recorder(output=output, messages=io.StringIO(), now=lambda: NOON)


def result(setting="fp32", **changes):
    throughput = Measurement(value=10.0, low=9.0, high=11.0, unit="images/s", samples=7)
    fields = {
        "case": "vgg16 batch 1",
        "setting": setting,
        "baseline": setting == "fp32",
        "metrics": {MetricName.THROUGHPUT: throughput},
        "facts": {"model_bytes": 1 << 20, "weights": "random"},
        "warnings": (),
        "stable": True,
    }
    return Result(**{**fields, **changes})


def comparison():
    return Comparison(
        case="vgg16 batch 1",
        baseline="fp32",
        candidate="int8",
        metric=MetricName.THROUGHPUT,
        ratio=3.6,
        low=3.5,
        high=3.7,
        confidence=0.95,
        verdict="faster",
        samples=7,
    )


def test_every_record_is_a_line_of_json_with_its_kind_and_time():
    output = io.StringIO()
    writer = recorder(output)
    writer.start("quantization", {"batch": [1]}, 0, {"hardware": {}, "software": {}})
    writer.progress("warming up", done=0, total=2, remaining_s=60.0)
    writer.sample({"case": "vgg16 batch 1", "value": 10.0})
    writer.result(result())
    writer.comparison(comparison())
    writer.case_end("vgg16 batch 1", ["fp32"], seconds=5, complete=True)
    writer.failure("vgg16 batch 1", "int8", "no")
    writer.end(ok=False, seconds=1.23456)
    records = [json.loads(line) for line in output.getvalue().splitlines()]
    kinds = ["start", "progress", "sample", "result", "comparison", "case", "failure", "end"]
    assert [record["record"] for record in records] == kinds
    assert {(record["schema"], record["time"]) for record in records} == {
        (1, "2026-11-20T12:00:00.000+00:00")
    }
    assert records[3]["metrics"] == {
        "throughput": {"value": 10.0, "low": 9.0, "high": 11.0, "unit": "images/s", "samples": 7}
    }
    assert records[4]["metric"] == "throughput"
    assert records[7] == {**records[7], "ok": False, "seconds": 1.235}


def test_records_are_appended_after_a_line_that_a_crash_cut_off(tmp_path):
    path = tmp_path / "new folder" / "records.jsonl"
    with open_records(path) as file:
        recorder(file).end(ok=True, seconds=1.0)
    with path.open("a") as cut:
        cut.write('{"schema":1,"rec')
    with open_records(path) as file:
        recorder(file).end(ok=True, seconds=2.0)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["seconds"] == 2.0


def test_without_a_path_nothing_is_written():
    with open_records(None) as file:
        assert file is None
        recorder(file).end(ok=True, seconds=1.0)


def test_the_table_shows_results_comparisons_warnings_and_failures():
    writer = recorder()
    writer.result(result())
    writer.result(result("int8", warnings=("other work",), facts={"model_bytes": 1 << 18}))
    writer.comparison(comparison())
    writer.failure("resnet50", None, "no room")
    lines = program.render(writer).splitlines()
    assert lines[0].split("  ")[0] == "case"
    assert "throughput (images/s)" in lines[0]
    assert "10 [9, 11]" in lines[2]
    assert lines[2].rstrip().endswith("baseline")
    assert "3.6 [3.5, 3.7] faster" in lines[3]
    assert lines[4] == "warning: vgg16 batch 1, int8: other work"
    assert "random" in lines[5]
    assert lines[6] == "failed: resnet50, every setting: no room"


def test_the_table_shows_how_settings_compare_with_the_best_baseline():
    writer = recorder()
    writer.result(result())
    writer.result(result("int8"))
    writer.overall_comparison(comparison())
    fp32, int8 = program.render(writer).splitlines()[2:4]
    assert fp32.endswith("the best")
    assert int8.endswith("3.6 [3.5, 3.7] faster")


def test_the_table_of_nothing_is_empty():
    assert program.render(recorder()) == ""
