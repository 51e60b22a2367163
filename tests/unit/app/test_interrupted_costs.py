"""The report of a run that was interrupted has the cost of every instance that it ran on."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.app.context import Context
from dlcloud.app.results.rows import rows_of_runs
from dlcloud.model.cluster import Member
from dlcloud.report.cost_tables import cost_report, run_cost_section
from dlcloud.report.table import Format, render
from tests.fakes.samples import PRICE_DATE, THEN, cluster, instance, run

RESULT = {"record": "result", "case": "train", "setting": "as it is", "metrics": {}}
HOUR = timedelta(hours=1)


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    # Not entered: that takes over the signals of the process, which here is pytest's.
    made = Context("test")
    yield made
    made.__exit__()


def test_the_runs_before_an_interruption_are_in_the_bill(context):
    context.clusters.add(cluster())
    names = ("i-0001", "i-0002")
    members = [
        Member(
            instance=instance(name, launched_at=THEN + place * HOUR),
            hourly_usd=Decimal("0.1785"),
            price_source="bundled table",
            price_as_of=PRICE_DATE,
            ended_at=THEN + (place + 1) * HOUR,
        )
        for place, name in enumerate(names)
    ]
    context.clusters.put_members("c0ffee", members)
    for place, (name, state) in enumerate(zip(names, (RunState.LOST, RunState.DONE), strict=True)):
        begun = THEN + place * HOUR
        context.runs.add(
            run(
                name, instance_id=name, state=state, started_at=begun, ended_at=begun + HOUR, workload="train"
            )
        )
    context.runs.add(run("other", state=RunState.LOST, started_at=THEN, workload="another"))
    context.runs.add_records("i-0002", 0, json.dumps(RESULT).encode() + b"\n")
    rows = rows_of_runs(context.measurements, ["i-0002"], THEN + 2 * HOUR)
    (section,) = run_cost_section(rows, whole=True)
    assert [row[0] for row in section.rows] == ["i-0001", "i-0002"]
    assert [row[-1] for row in section.rows] == ["0.189", "0.189"]
    text = render(cost_report(rows), Format.TABLE)
    assert "interrupted, and repeated or continued by the run below: i-0001" in text
