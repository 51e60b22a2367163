"""The page in a real browser: what it shows is what the store holds, and nothing complains."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlcloud.analysis.cost import RunCost
from dlcloud.analysis.result import RunState
from dlcloud.analysis.trials import TrialState, TrialStatus, number_trials
from dlcloud.app.clusters.experiment import write_page
from dlcloud.app.context import SystemClock
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.instance import Market, Price
from dlcloud.report.experiment import ExperimentTable
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths
from dlcloud.store.runs import Runs
from tests.fakes.browser import Browser, program
from tests.fakes.samples import PRICE_DATE, THEN, cluster, instance, run
from tests.needs import needs

pytest.importorskip("vl_convert", reason="the extra plot is not installed")
pytestmark = [
    pytest.mark.skipif(program() is None, reason="there is no chromium (apt-get install chromium)"),
    needs("bash"),
]

SPEEDS = {"c7i.xlarge": (10.0, 34.5), "g4dn.xlarge": (180.25, 420.75)}
PRICES = {"c7i.xlarge": ("0.1785", "0.066"), "g4dn.xlarge": ("0.526", "0.21")}


def records(speeds):
    yield {"record": "start", "hardware": {"cpu_model": "Xeon <8488C>", "physical_cores": 2}}
    for setting, speed in zip(("fp32", "int8"), speeds, strict=True):
        bounds = {"value": speed, "low": speed * 0.98, "high": speed * 1.03}
        metric = {**bounds, "unit": "images/s", "samples": 9}
        result = {
            "record": "result",
            "case": "vgg16 batch 1",
            "setting": setting,
            "baseline": setting == "fp32",
        }
        yield {**result, "metrics": {"throughput": metric}}
    ratio = speeds[1] / speeds[0]
    comparison = {"ratio": ratio, "low": ratio * 0.95, "high": ratio * 1.04, "verdict": "faster"}
    yield {
        "record": "comparison",
        "case": "vgg16 batch 1",
        "baseline": "fp32",
        "candidate": "int8",
        **comparison,
    }
    for step in range(1, 21):
        at = THEN.replace(second=step).isoformat()
        values = {"step": step, "world_size": 1 + step // 10, "samples": 64, "loss": 2 / step, "seconds": 1.0}
        yield {"record": "step", "time": at, "run": "digits", "worker": "w0", **values}
    event = {"event": "drain", "cause": "notice", "worker": "w0"}
    yield {"record": "event", "time": THEN.replace(second=12).isoformat(), "run": "digits", **event}


def prices(kind):
    for market, usd in zip(Market, PRICES[kind], strict=True):
        yield Price(
            instance_type=kind, region="us-east-1", market=market, hourly_usd=Decimal(usd), as_of=PRICE_DATE,
            source="AWS Pricing API", zone="us-east-1a" if market is Market.SPOT else "",
        )  # fmt: skip


def dlcloud(home, *words):
    return subprocess.run(
        [sys.executable, "-c", "from dlcloud.cli.main import main; main()", *words],
        env=os.environ | {"DLCLOUD_HOME": str(home)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return a browser that shows the page, the report's records, and a folder."""
    folder = tmp_path_factory.mktemp("page")
    home = folder / "home"
    home.mkdir()
    database = Database(home / "store.sqlite")
    runs = Runs(database)
    for kind, speeds in SPEEDS.items():
        runs.add(run(kind, instance_type=kind, hourly_usd=None))
        runs.put_prices(kind, [*prices(kind)])
        runs.add_records(kind, 0, "".join(json.dumps(record) + "\n" for record in records(speeds)).encode())
    database.close()
    answer = json.loads(dlcloud(home, "cost-report", "--html", str(folder / "page.html"), "-o", "json"))
    browser = Browser()
    try:
        browser.open(folder / "page.html")
        yield browser, answer["result"]["records"], folder
    finally:
        browser.close()


def values(browser, name):
    return browser.evaluate(f"window.views[{json.dumps(name)}].data('lines')")


def cells(browser, heading):
    """Return the rows of the table below a heading."""
    return browser.evaluate(
        "[...document.querySelectorAll('section')]"
        f".find(s => s.querySelector('h2')?.textContent.startsWith({json.dumps(heading)}))"
        ".querySelectorAll('tbody tr').values().map(r => [...r.cells].map(c => c.textContent)).toArray()"
    )


def test_the_page_needs_nothing_and_nothing_complains(shown):
    browser, _, folder = shown
    assert browser.complaints() == []
    assert browser.requests() == [(folder / "page.html").as_uri()]
    assert (folder / "page.html").stat().st_size < 2_000_000


def test_the_values_of_the_charts_are_those_of_the_store(shown):
    browser, records, _ = shown
    drawn = {(record["type"], record["setting"]): record for record in values(browser, "pareto-1")}
    assert len(drawn) == len(records) == 4
    for record in records:
        point = drawn[record["instance_type"], record["setting"]]
        assert point["throughput"] == record["throughput"]
        assert point["throughput_low"] == record["throughput_low"]
        assert round(point["usd"], 6) == float(record["usd_per_million"])
    bars = {record["name"]: record["ratio"] for record in values(browser, "speed-ups-2")}
    measured = {
        f"{record['instance_type']}, int8 over fp32": record["speed_up"]
        for record in records
        if record["speed_up"]
    }
    assert bars == measured


def test_every_value_is_drawn_and_can_be_read_without_seeing_it(shown):
    browser, records, _ = shown
    labels = browser.evaluate(
        "[...document.querySelectorAll('#pareto-1 path[role=graphics-symbol]')].map(m => m.ariaLabel)"
    )
    assert len(labels) == len(records)
    for record in records:
        (label,) = [
            text for text in labels if text.startswith(f"{record['instance_type']} {record['setting']}")
        ]
        assert f"{record['throughput']:.4g}" in label
    assert browser.evaluate("document.querySelectorAll('[id^=timeline] svg').length") == 4


def test_the_tables_are_those_of_the_terminal(shown):
    browser, records, folder = shown
    rows = cells(browser, "quantization")
    table = dlcloud(folder / "home", "cost-report")
    assert len(rows) == len(records)
    printed = [line.split() for line in table.splitlines()]
    for row in rows:
        assert " ".join(row).split() in printed


def test_the_keyboard_reaches_every_mark_and_shows_its_value(shown):
    browser, records, _ = shown
    is_there = "document.activeElement.closest('#pareto-1') && document.activeElement.ariaLabel !== null"
    for _ in range(20):
        browser.press("Tab")
        if browser.evaluate(is_there):
            break
    seen = set()
    for _ in records:
        seen.add(browser.evaluate("document.querySelector('#pareto-1 .reading').textContent"))
        browser.press("ArrowRight")
    assert len(seen) == len(records)
    browser.press("Home")
    first = browser.evaluate("document.activeElement.ariaLabel")
    browser.press("End")
    assert browser.evaluate("document.activeElement.ariaLabel") != first


def test_hovering_shows_the_values(shown):
    browser, _, _ = shown
    place = browser.evaluate(
        "(() => { const m = document.querySelector('#pareto-1 path[role=graphics-symbol]');"
        " m.scrollIntoView(); const b = m.getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2, m.ariaLabel]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    answer = browser.evaluate("document.getElementById('vg-tooltip-element').textContent")
    assert place[2].split()[0] in answer
    assert "images/s" in answer


MEDIA = [
    ("light", "screen", [255, 255, 255]),
    ("dark", "screen", [22, 24, 29]),
    ("dark", "print", [255, 255, 255]),
]


@pytest.mark.parametrize(("scheme", "kind", "background"), MEDIA)
def test_light_dark_and_paper_have_their_own_colours_and_words_stand_out(shown, scheme, kind, background):
    browser, _, folder = shown
    browser.media(scheme=scheme, kind=kind)
    style = "getComputedStyle(document.body).backgroundColor"
    assert browser.evaluate(f"{style}.match(/\\d+/g).map(Number)") == background
    words = browser.evaluate(
        "(() => { const t = document.querySelector('#pareto-1 svg text');"
        " return getComputedStyle(t).fill.match(/\\d+/g).map(Number); })()"
    )
    assert abs(sum(words[:3]) - sum(background)) > 500
    browser.screenshot(folder / f"{scheme}-{kind}.png")
    assert (folder / f"{scheme}-{kind}.png").stat().st_size > 20_000
    browser.media()


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_pictures_for_papers_are_written(shown, form, begins):
    _, _, folder = shown
    dlcloud(folder / "home", "cost-report", "--plot", str(folder / f"plot.{form}"))
    content = (folder / f"plot.{form}").read_bytes()
    assert content.startswith(begins)
    assert b"currentColor" not in content


CROWD = ("c5.large", "c7i.xlarge", "c7i.4xlarge", "m7i.2xlarge", "g4dn.xlarge", "g6.xlarge")
BOXES = """(() => {
  const isShown = (text) => text.textContent.trim() && getComputedStyle(text).visibility !== "hidden"
    && getComputedStyle(text).opacity !== "0" && text.getBoundingClientRect().width > 0;
  const faults = [];
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than the screen");
  for (const figure of document.querySelectorAll("figure")) {
    const texts = [...figure.querySelectorAll(".chart svg text")].filter(isShown)
      .map((text) => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([name, box], place) => {
      if (box.left < -1 || box.right > innerWidth + 1) faults.push(`${figure.id}: ${name} is outside`);
      for (const [other, beside] of texts.slice(place + 1)) {
        const width = Math.min(box.right, beside.right) - Math.max(box.left, beside.left);
        const height = Math.min(box.bottom, beside.bottom) - Math.max(box.top, beside.top);
        if (width > 1 && height > 2) faults.push(`${figure.id}: ${name} overlaps ${other}`);
      }
    });
  }
  return faults;
})()"""


CUT = """[...document.querySelectorAll(".wide")]
    .filter((wide) => wide.clientWidth && wide.scrollWidth > wide.clientWidth)
    .map((wide) => wide.textContent.slice(0, 40))"""
"""The tables of which a column is out of sight."""

ELASTIC = """
name: night
instances: {types: [c7i.xlarge]}
workload: {command: python3 train.py, elastic: {}}
"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Return a page of six types with three settings each, spending and a training."""
    folder = tmp_path_factory.mktemp("crowd")
    home = folder / "home"
    home.mkdir()
    database = Database(home / "store.sqlite")
    runs, clusters = Runs(database), Clusters(database)
    clusters.add(cluster("night", state=ClusterState.DOWN, recipe_text=ELASTIC))
    ended = THEN + timedelta(hours=30)
    member = Member(instance=instance(), hourly_usd=Decimal("0.5"), ended_at=ended)
    clusters.put_members("c0ffee", [member])
    for place, kind in enumerate(CROWD):
        runs.add(run(kind, instance_type=kind, hourly_usd=Decimal("0.1") * (place + 1)))
        speeds = (3.0 * 2**place, 10.5 * 2**place)
        lines = [json.dumps(record) + "\n" for record in records(speeds) if record["record"] != "start"]
        runs.add_records(kind, 0, "".join(lines).encode())
    database.close()
    dlcloud(home, "cost-report", "--html", str(folder / "page.html"), "--job", "1.2M images")
    return folder / "page.html"


@pytest.mark.parametrize("width", [360, 1100])
def test_no_column_of_a_table_is_cut_off(crowded, width):
    browser = Browser()
    try:
        browser.resize(width, 900)
        browser.open(crowded)
        assert browser.wait_for("document.documentElement.dataset.ready === 'true'")
        assert browser.evaluate(CUT) == []
        browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert browser.wait_for(f"{CUT}.length === 0"), browser.evaluate(CUT)
    finally:
        browser.close()


@pytest.mark.parametrize("width", [400, 1280])
def test_no_text_overlaps_another_or_leaves_the_screen(crowded, width):
    browser = Browser()
    try:
        browser.resize(width, 900)
        browser.open(crowded)
        # Names are placed once Vega has drawn; until then they may overlap.
        assert browser.wait_for(f"{BOXES}.length === 0"), browser.evaluate(BOXES)
        assert browser.complaints() == []
        named = "[...document.querySelectorAll('#pareto-1 g.mark-text.role-mark text')]"
        shown = f"{named}.filter(t => getComputedStyle(t).visibility !== 'hidden').length"
        assert browser.evaluate(shown) >= 6
    finally:
        browser.close()


def test_the_page_begins_with_the_answer_and_has_spending_and_trainings(crowded):
    browser = Browser()
    try:
        browser.open(crowded)
        headings = browser.evaluate(
            "[...document.querySelectorAll('h2, figcaption')].map(h => h.textContent)"
        )
    finally:
        browser.close()
    assert headings[0].startswith("Buy g6.xlarge (int8) on-demand for quantization, vgg16 batch 1: ")
    assert headings[1].startswith("the answer: quantization, vgg16 batch 1")
    assert headings[2].startswith("your job: 1.2M images")
    assert any(heading.endswith("cost, the cheapest setting of each type") for heading in headings)
    assert "spending by cluster (billed)" in headings
    assert "spending by day (billed)" in headings
    assert "elastic trainings" in headings
    assert {"night: workers by market and type", "night: USD so far", "night: loss"} <= {*headings}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Return the page of an experiment of 40 trials, two of which were given up, on four instances."""
    home = tmp_path_factory.mktemp("experiment")
    context = SimpleNamespace(paths=Paths(home), clock=SystemClock())
    runs, statuses = Runs(Database(home / "store.sqlite")), []
    for trial in number_trials([{"lr": f"{10 ** -(n % 4)}", "depth": str(n)} for n in range(40)]):
        is_good, began = trial.number % 20 != 0, THEN + timedelta(seconds=trial.number * 9)
        state = RunState.DONE if is_good else RunState.FAILED
        one = run(
            f"sweep-{trial.number:02}", instance_id=f"i-0123456789abcde0{trial.number % 4}", state=state
        )
        one = replace(one, started_at=began, ended_at=began + timedelta(seconds=30))
        runs.add(replace(one, experiment="e", trial=trial.number, trial_values=trial.key))
        context.paths.make_folder(context.paths.run(one.run_id))
        context.paths.run_log(one.run_id).write_text(
            "epoch 1\nTraceback of the user\nit diverged " + "x" * 90
        )
        ended = TrialState.DONE if is_good else TrialState.FAILED
        value = trial.number / 40 if is_good else None
        statuses.append(
            TrialStatus(trial=trial, state=ended, run=one, failures=2 * (not is_good), value=value)
        )
    cost = RunCost(
        boot_s=0,
        setup_s=0,
        run_s=30,
        rest_s=0,
        instance_usd=Decimal("0.5"),
        volume_usd=Decimal(0),
        final=True,
    )
    costs = {status.run.run_id: cost for status in statuses}
    table = ExperimentTable(
        name="sweep",
        statuses=statuses,
        costs=costs,
        metric="accuracy",
        maximize=True,
        rehearsal=False,
        total=40,
    )
    write_page(context, str(home / "page.html"), table, SimpleNamespace(runs=runs, digest="e"))
    return home / "page.html"


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_the_page_of_an_experiment_fits_and_has_its_failures(experiment, width, scheme):
    browser = Browser()
    try:
        browser.media(scheme=scheme)
        browser.resize(width, 900)
        browser.open(experiment)
        assert browser.wait_for(f"{BOXES}.length === 0"), browser.evaluate(BOXES)
        assert browser.wait_for(f"{CUT}.length === 0"), browser.evaluate(CUT)
        browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        text = browser.evaluate("document.body.innerText")
        assert "the last lines of these trials" in text.lower()
        assert "Traceback of the user / it diverged" in text
        assert "accuracy by lr" in text
        if pictures := os.environ.get("DLCLOUD_TEST_PICTURES"):
            browser.screenshot(Path(pictures) / f"experiment-{width}-{scheme}.png")
        assert browser.complaints() == []
    finally:
        browser.close()
