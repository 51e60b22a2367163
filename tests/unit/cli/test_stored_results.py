"""Commands over stored results: `compare`, `cost-report`, `export` and `logs`."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from threading import Timer

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.model.cluster import ClusterState
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, run


def add_measured(runs, name, speeds, packages=None, **of):
    """Store a run that has measured these speeds, by their settings."""
    runs.add(run(name, **of))
    records = [
        {"record": "start", "hardware": {"cpu_model": "Xeon"}, "software": {"packages": packages or {}}}
    ]
    for setting, speed in speeds.items():
        metric = {"value": speed, "low": speed * 0.98, "high": speed * 1.02, "unit": "images/s", "samples": 9}
        records.append(
            {"record": "result", "case": "vgg16", "setting": setting, "metrics": {"throughput": metric}}
        )
    runs.add_records(name, 0, "".join(json.dumps(record) + "\n" for record in records).encode())


@pytest.fixture
def database(home):
    home.mkdir(mode=0o700)
    with closing(Database(home / "store.sqlite")) as database:
        yield database


@pytest.fixture
def compared(database):
    runs = Runs(database)
    for name, kind, day, speeds, packages in (
        ("one-1", "c5.large", 0, {"fp32": 10.0, "int8": 30.0}, {"onnx": "1.0"}),
        ("two-1", "c7i.large", 1, {"fp32": 20.0}, {"onnx": "2.0"}),
        ("three-1", "c7i.large", 2, {"fp32": 20.1}, {"onnx": "2.0"}),
    ):
        of = {"instance_type": kind, "started_at": THEN + timedelta(days=day), "cluster_name": name[:-2]}
        add_measured(runs, name, speeds, packages, **of)


@pytest.fixture
def measured(database):
    runs = Runs(database)
    Clusters(database).add(cluster(created_at=THEN))
    for name, kind in (("one-1", "c5.large"), ("two-1", "c7i.large")):
        speeds = {"onnxruntime fp32": 10.0, "onnxruntime int8": 30.0}
        add_measured(runs, name, speeds, instance_type=kind, started_at=THEN + timedelta(days=1))


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
@pytest.mark.usefixtures("compared")
def test_runs_types_settings_and_days_are_distinguished(dlcloud, words, verdicts):
    done = dlcloud("compare", *words, "-o", "json")
    assert done.status == 0, done.stderr
    compared = json.loads(done.stdout)["result"]["records"]
    assert [
        (record["setting_a"], round(record["ratio"], 4), record["verdict"]) for record in compared
    ] == verdicts


@pytest.mark.usefixtures("compared")
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
@pytest.mark.usefixtures("compared")
def test_what_means_nothing_is_refused_in_words(dlcloud, words, message):
    done = dlcloud("compare", *words)
    assert done.status == 2
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


@pytest.mark.usefixtures("compared")
def test_the_report_takes_filters_and_says_what_there_is(dlcloud):
    done = dlcloud("cost-report", "--type", "c7i", "--since", "2026-09-03", "-o", "json")
    assert [record["run"] for record in json.loads(done.stdout)["result"]["records"]] == ["three-1"]
    every = dlcloud("cost-report", "--all", "-o", "json")
    assert len(json.loads(every.stdout)["result"]["records"]) == 4
    assert "types: c5.large, c7i.large" in dlcloud("cost-report", "--type", "p3").stdout
    refused = dlcloud("cost-report", "--since", "yesterday")
    assert refused.status == 2
    assert "is not a date like" in refused.stderr


@pytest.mark.usefixtures("compared")
def test_without_credentials_the_bill_is_missing_and_the_report_is_not(dlcloud, database, home):
    Clusters(database).add(cluster())
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
@pytest.mark.usefixtures("compared")
def test_pictures_that_cannot_be_drawn_are_refused_in_words(dlcloud, home, words, message):
    done = dlcloud("cost-report", *words)
    assert done.status == 2
    assert message in done.stderr
    assert not list(home.parent.glob("*page*"))


@pytest.mark.usefixtures("measured")
def test_a_job_is_answered_in_hours_and_dollars(dlcloud):
    done = dlcloud("cost-report", "--job", "90 epochs", "--epoch", "1.28M", "--summary")
    assert done.status == 0
    assert "90 epochs: USD, time" in done.stdout
    wrong = dlcloud("cost-report", "--job", "90 epochs")
    assert wrong.status == 2
    assert '--epoch "1.28M images"' in wrong.stderr


@pytest.mark.usefixtures("measured")
def test_a_part_of_a_setting_names_it_in_compare(dlcloud):
    done = dlcloud("compare", "fp32", "int8")
    assert (done.status, "3.00x" in done.stdout) == (0, True)


@pytest.mark.usefixtures("measured")
def test_export_reports_what_it_wrote(dlcloud):
    assert "wrote 4 result(s) to all.csv" in dlcloud("export", "all.csv").stderr
    written = json.loads(dlcloud("export", "all.jsonl", "-o", "json").stdout)["result"]
    assert written == {"file": "all.jsonl", "count": 2}


@pytest.mark.usefixtures("measured")
def test_tables_use_the_columns_of_the_terminal(dlcloud):
    narrow, wide = (dlcloud("cost-report", COLUMNS=columns).stdout for columns in ("80", "200"))
    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) > 100
    assert "measured" in wide


@pytest.mark.usefixtures("measured")
def test_the_log_of_an_older_run_is_not_printed_for_a_failed_set_up(dlcloud, database):
    failed = cluster("later", cluster_id="id-later", created_at=THEN + timedelta(days=2))
    Clusters(database).add(replace(failed, state=ClusterState.DOWN))
    refused = dlcloud("logs")
    assert refused.status == 2
    assert "later has run no program: its launch or its set-up failed" in refused.stderr
    assert "dlcloud logs two-1 prints the run before it" in refused.stderr


@pytest.mark.usefixtures("measured")
def test_logs_are_found_by_the_beginning_of_a_clusters_name(dlcloud, database, home):
    Clusters(database).add(cluster("later-1a2b", cluster_id="id-later", created_at=THEN))
    (home / "runs" / "two-1").mkdir(parents=True, mode=0o700)
    (home / "runs" / "two-1" / "log").write_text("step 1\n")
    assert dlcloud("logs", "samp").stdout == "step 1\n"
    refused = dlcloud("logs", "later")
    assert "error: later-1a2b has run no program" in refused.stderr
    assert "hint: dlcloud status later-1a2b" in refused.stderr
    assert "no run nothing" in dlcloud("logs", "nothing").stderr


@pytest.mark.usefixtures("measured")
def test_the_log_of_a_lost_worker_does_not_hide_that_of_another(dlcloud, database, home):
    runs = Runs(database)
    for name, state in (("kept", RunState.DONE), ("lost", RunState.LOST)):
        runs.add(run(name, instance_id=f"i-{name}", state=state, started_at=THEN + timedelta(days=2)))
    (home / "runs" / "kept").mkdir(parents=True, mode=0o700)
    (home / "runs" / "kept" / "log").write_text("step 1\n")
    assert dlcloud("logs").stdout == dlcloud("logs", "sample-1a2b").stdout == "step 1\n"
    for name in ("lost", "i-lost"):
        assert "the log of lost was not copied back" in dlcloud("logs", name).stderr


@pytest.mark.usefixtures("measured")
def test_logs_that_are_followed_wait_for_the_first_run(dlcloud, database, home):
    clusters = Clusters(database)
    clusters.set_state("c0ffee", ClusterState.DOWN)
    clusters.add(cluster("later-1a2b", cluster_id="id-later", created_at=THEN + timedelta(days=2)))
    begun = run("begun", cluster_id="id-later", state=RunState.DONE, started_at=THEN + timedelta(days=3))

    def begin():
        (home / "runs" / "begun").mkdir(parents=True, mode=0o700)
        (home / "runs" / "begun" / "log").write_text("step 1\n")
        with closing(Database(home / "store.sqlite")) as other:
            Runs(other).add(begun)

    timer = Timer(1.0, begin)
    timer.start()
    assert dlcloud("logs", "later-1a2b", "-f").stdout == "step 1\n"
    timer.join()
