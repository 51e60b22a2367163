"""Everything that reads the records of an instance, from their arrival to reports, pages and exports."""

import json
import re
from types import SimpleNamespace

from dlcloud.analysis.ranking import By, Group
from dlcloud.analysis.resume import finished_cases
from dlcloud.analysis.training import summarize_training
from dlcloud.app.results.rows import load_rows
from dlcloud.app.results.training import timelines_of_runs
from dlcloud.app.terminal.console import line_of
from dlcloud.elastic.registry import TrainingProgress, TrainingRegistry, parse_reports
from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import View, cost_report
from dlcloud.report.page import page
from dlcloud.report.table import Format, render
from dlcloud.report.training import timeline_charts, training_report
from dlcloud.resources.texts import template
from dlcloud.runs.run import LiveOutput, Runner
from dlcloud.store.measurements import Measurements, Selection
from dlcloud.store.runs import Runs
from dlcloud.store.transfer import RunTransfer
from tests.fakes.clock import FakeClock
from tests.fakes.samples import THEN, instance, price, run

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
