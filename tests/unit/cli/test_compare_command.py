"""`dlcloud compare` and `cost-report` over a store: what words mean, and what is refused."""

import json
from datetime import timedelta

import pytest

from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, run


def records(setting_speeds, packages):
    start = {"record": "start", "hardware": {"cpu_model": "Xeon"}, "software": {"packages": packages}}
    yield start
    for setting, speed in setting_speeds.items():
        metric = {"value": speed, "low": speed * 0.98, "high": speed * 1.02, "unit": "images/s", "samples": 9}
        yield {"record": "result", "case": "vgg16", "setting": setting, "metrics": {"throughput": metric}}


@pytest.fixture(autouse=True)
def _filled(home):
    home.mkdir(mode=0o700)
    database = Database(home / "store.sqlite")
    runs = Runs(database)
    for name, kind, day, speeds, packages in (
        ("one-1", "c5.large", 0, {"fp32": 10.0, "int8": 30.0}, {"onnx": "1.0"}),
        ("two-1", "c7i.large", 1, {"fp32": 20.0}, {"onnx": "2.0"}),
        ("three-1", "c7i.large", 2, {"fp32": 20.1}, {"onnx": "2.0"}),
    ):
        of = run(name, instance_type=kind, started_at=THEN + timedelta(days=day), cluster_name=name[:-2])
        runs.add(of)
        text = "".join(json.dumps(record) + "\n" for record in records(speeds, packages))
        runs.add_records(name, 0, text.encode())
    database.close()


@pytest.mark.parametrize(
    ("words", "verdicts"),
    [
        (["c5.large", "c7i.large"], [("fp32", 2.01, "faster")]),
        (["c7i", "c5"], [("fp32", 0.4975, "slower")]),
        (["fp32", "int8"], [("fp32", 3.0, "faster")]),
        (["2026-09-02", "2026-09-03"], [("fp32", 1.005, "no difference seen")]),
        (["one", "two"], [("fp32", 2.0, "faster")]),
        (["one-1", "run:two-1"], [("fp32", 2.0, "faster")]),
        (["c5.large,int8", "c7i.large,fp32"], [("int8", 0.67, "slower")]),
    ],
)
def test_runs_types_settings_and_days_are_distinguished(dlcloud, words, verdicts):
    done = dlcloud("compare", *words, "-o", "json")
    assert done.status == 0, done.stderr
    compared = json.loads(done.stdout)["result"]["records"]
    assert [
        (record["setting_a"], round(record["ratio"], 4), record["verdict"]) for record in compared
    ] == verdicts


def test_software_and_hardware_that_differ_are_listed(dlcloud):
    done = dlcloud("compare", "one", "two")
    assert done.status == 0, done.stderr
    assert "software.packages.onnx  1.0" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["c5.large", "p3.2xlarge"], "nothing stored is called p3.2xlarge"),
        (["c5.large", "date:yesterday"], "is not a date like"),
        (["c5.large", "c7i,c5"], "both a type"),
        (["c5.large", ","], "is empty"),
        (["c5.large,int8", "c7i.large,int8"], "nothing was measured of c7i.large,int8"),
        (["c5.large,int8", "c7i.large"], "measured nothing in common"),
    ],
)
def test_what_means_nothing_is_refused_in_words(dlcloud, words, message):
    done = dlcloud("compare", *words)
    assert done.status == 2
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


def test_the_report_takes_filters_and_says_what_there_is(dlcloud):
    done = dlcloud("cost-report", "--type", "c7i", "--since", "2026-09-03", "-o", "json")
    assert [record["run"] for record in json.loads(done.stdout)["result"]["records"]] == ["three-1"]
    every = dlcloud("cost-report", "--all", "-o", "json")
    assert len(json.loads(every.stdout)["result"]["records"]) == 4
    assert "types: c5.large, c7i.large" in dlcloud("cost-report", "--type", "p3").stdout
    refused = dlcloud("cost-report", "--since", "yesterday")
    assert refused.status == 2
    assert "is not a date like" in refused.stderr


def test_without_credentials_the_bill_is_missing_and_the_report_is_not(dlcloud, home):
    database = Database(home / "store.sqlite")
    Clusters(database).add(cluster())
    database.close()
    without_credentials = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(home)}
    done = dlcloud("cost-report", "--billed", "-o", "json", **without_credentials)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)["result"]
    assert "AWS's side is not known" in document["billed"]["unanswered"]
    assert "credentials" in document["billed"]["unanswered"]
    assert len(document["records"]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plot", "report.jpg"], "which format?"),
        (["--html", "no/such/folder/page.html"], "cannot be written"),
        (["--html", "page.html", "--timeline", "missing.jsonl"], "No such file"),
        (["--html", "page.html", "--timeline", "home/store.sqlite"], "no step of a training is in it"),
    ],
)
def test_pictures_that_cannot_be_drawn_are_refused_in_words(dlcloud, home, words, message):
    done = dlcloud("cost-report", *words)
    assert done.status == 2
    assert message in done.stderr
    assert not list(home.parent.glob("*page*"))
