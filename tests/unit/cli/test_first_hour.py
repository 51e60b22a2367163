"""A newcomer's first hour: what was in the way of the first decisions."""

import json
import shlex
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from threading import Timer

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.model.cluster import ClusterState
from dlcloud.runs.matrix import matrix_of_benchmarks
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, run


@pytest.fixture
def database(home):
    home.mkdir(mode=0o700)
    database = Database(home / "store.sqlite")
    yield database
    database.close()


@pytest.fixture
def measured(database):
    runs = Runs(database)
    Clusters(database).add(cluster(created_at=THEN))
    for name, kind in (("one-1", "c5.large"), ("two-1", "c7i.large")):
        runs.add(run(name, instance_type=kind, started_at=THEN + timedelta(days=1)))
        for setting, speed in (("onnxruntime fp32", 10.0), ("onnxruntime int8", 30.0)):
            metric = {
                "value": speed,
                "low": speed * 0.98,
                "high": speed * 1.02,
                "unit": "images/s",
                "samples": 9,
            }
            record = {
                "record": "result",
                "case": "vgg16",
                "setting": setting,
                "metrics": {"throughput": metric},
            }
            runs.add_records(name, runs.stored_bytes(name), json.dumps(record).encode() + b"\n")


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


def test_a_misspelt_region_is_answered_with_the_nearest(dlcloud, home):
    for words in (
        ("up", "quickstart", "--region", "us-esat-1"),
        ("image", "--list", "--region", "us-esat-1"),
    ):
        refused = dlcloud(*words)
        assert refused.status == 2
        assert "there is no region us-esat-1" in refused.stderr
        assert "did you mean us-east-1" in refused.stderr
    assert not (home / "local" / "state.json").exists()


@pytest.mark.parametrize("target", [(), ("quickstart",), ("c7i.xlarge",)])
def test_doctor_asks_aws_unless_it_is_told_otherwise(dlcloud, target):
    done = dlcloud("doctor", *target)
    assert (done.status, done.stdout.splitlines()[0].startswith("AWS, us-east-1: would ")) == (3, True)
    assert "not checked: there are no credentials" in done.stdout
    verdict, hint = done.stderr.splitlines()[-2:]
    assert verdict.startswith(
        f"error: {(*target, 'quickstart')[0]} would not start: checking the credentials"
    )
    assert hint.startswith("hint: aws configure")


def test_selftest_asks_aws_unless_it_is_told_otherwise(dlcloud):
    done = dlcloud("selftest")
    first, *_, verdict, hint = done.stderr.splitlines()
    assert (done.status, first[:29]) == (3, "self-test of AWS, us-east-1: ")
    assert verdict.startswith("error: the self-test of AWS, us-east-1 was not started: ")
    assert hint == "hint: dlcloud doctor --cloud aws"


@pytest.mark.parametrize("named", [("-i", "c7i.xlarge"), ("-b", "language"), ("mixed-precision",)])
def test_bench_without_an_account_offers_what_works_as_pasted(dlcloud, named):
    done = dlcloud("bench", *named, "-i", "c5.18xlarge")
    assert done.status == 3
    assert done.stderr.count("there are no AWS credentials") == 1
    hint = done.stderr.splitlines()[-1].removeprefix("hint: ")
    assert " # about " in hint
    assert "in full about " in hint
    assert "no account is needed" in hint
    command = shlex.split(hint, comments=True)[1:]
    assert command[:1] + command[-3:] == ["bench", "--cloud", "local", "--tiny"]
    offered = dlcloud(*command, "--max-hours", "nonsense")
    assert "nonsense" in offered.stderr.splitlines()[-1], "every other word of it is understood"


def test_bench_runs_the_language_models_only_if_they_are_named():
    for names, runs in (((), False), (("language",), True)):
        matrix = matrix_of_benchmarks(["c7i.xlarge"], names, {"cloud": "local"}, tiny=False)
        assert ("language" in {job.name for job in matrix.jobs}) is runs
