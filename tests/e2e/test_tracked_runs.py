"""`track:` sends results to MLflow, a fake and, where the program is there, a real server on SQLite."""

import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from urllib.request import Request, urlopen

import pytest
from terminal import wait_until

from tests.fakes.mlflow import FakeMlflow

PROGRAM = """
import os, pathlib, sys
x = float(sys.argv[2])
for step in range(3):
    print("score", x * step, flush=True)
folder = pathlib.Path("logs/run")
folder.mkdir(parents=True)
(folder / "events.out.tfevents.1.host.2.0").write_bytes(b"board")
offline = pathlib.Path("wandb/offline-run-20261101_101010-abc/files")
offline.mkdir(parents=True)
(offline / "config.yaml").write_text("x: 1")
"""


def recipe(user, name, track):
    (user.home / "train.py").write_text(PROGRAM)
    path = user.home / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ncloud: local\ninstances: {{types: [c5.large]}}\n"
        "workload: {command: python3 train.py, files: train.py, facts: {score: 'score (.*)'}}\n"
        f"experiment: {{matrix: {{x: [1, 2]}}, metric: score}}\n{track}\n"
    )
    return str(path)


@pytest.fixture(params=["fake", "mlflow"])
def server(request, tmp_path):
    """Return the address of a server."""
    if request.param == "fake":
        fake = FakeMlflow()
        yield fake.url
        fake.close()
        return
    if find_spec("mlflow") is None:
        pytest.skip("mlflow is missing: its server is not tried")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/mlflow.db",
        "--artifacts-destination",
        str(tmp_path),
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words], stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(url))
        yield url
    finally:
        process.terminate()
        process.wait()


def answers(url):
    try:
        with urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def call(url, path, **body):
    request = Request(f"{url}/api/2.0/mlflow/{path}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def runs_at(url, name):
    with urlopen(
        f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}", timeout=60
    ) as answer:
        experiment = json.load(answer)["experiment"]["experiment_id"]
    words = {"filter": "tags.`dlcloud.run` LIKE '%'", "max_results": 1000}
    runs, token = [], {}
    while True:
        page = call(url, "runs/search", experiment_ids=[experiment], **words, **token)
        runs += page.get("runs", [])
        if not page.get("next_page_token"):
            return runs
        token = {"page_token": page["next_page_token"]}


def values(run, kind):
    return {item["key"]: item["value"] for item in run["data"][kind]}


def test_trials_are_runs_with_parameters_metrics_files_and_cost(user, server, request):
    name = f"track-{request.node.callspec.id}"
    path = recipe(user, name, f"track: {{mlflow: '{server}'}}")
    document = user.json("up", path)["result"]
    runs = runs_at(server, name)
    assert len(runs) == 2
    for run, x in zip(sorted(runs, key=lambda run: values(run, "params")["x"]), (1, 2), strict=True):
        parameters = values(run, "params")
        assert parameters["x"] == str(x)
        assert parameters["dlcloud.instance_type"] == "c5.large"
        metrics = values(run, "metrics")
        assert metrics["score"] == 2 * x
        assert metrics["duration"] > 0
        assert metrics["usd"] > 0
        assert run["info"]["status"] == "FINISHED"
    assert {values(run, "tags")["dlcloud.run"] for run in runs} == {
        record["run"] for record in document["records"]
    }
    again = user.run("up", path, "--fresh")
    assert "recorded on MLflow" in again.stderr
    assert len(runs_at(server, name)) == 4


def test_a_tracker_that_is_down_costs_no_result_and_gets_all_later(user):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        path = recipe(user, "down", f"track: {{mlflow: 'http://127.0.0.1:{closed.getsockname()[1]}'}}")
        done = user.run("up", path)
    assert "2 of 2 trials have a result" in done.stdout
    assert "does not answer" in done.stderr
    assert "2 run(s) are not on MLflow" in done.stderr
    cluster = done.stderr.partition("--run ")[2].split()[0].rstrip(";")
    fake = FakeMlflow()
    try:
        fake.is_down = True
        assert "answers 503" in user.run("export", fake.url, "--run", cluster, expect=1).stderr
        fake.is_down = False
        assert "wrote 2 run(s)" in user.run("export", fake.url, "--run", cluster).stderr
        assert [metric["value"] for metric in scores(fake)] == [0, 1, 2, 0, 2, 4]
        user.run("export", fake.url, "--run", cluster)
        assert len(fake.runs) == 2
        assert sum(name.endswith("events.out.tfevents.1.host.2.0") for name in fake.files) == 2
        assert sum("wandb/offline-run-20261101_101010-abc" in name for name in fake.files) == 2
    finally:
        fake.close()


def scores(fake):
    return [
        metric
        for run in sorted(fake.runs.values(), key=lambda run: values(run, "params")["x"])
        for metric in run["data"]["metrics"]
        if metric["key"] == "score"
    ]


@pytest.mark.long
def test_files_of_tensorboard_and_wandb_come_home_without_a_line(user):
    path = recipe(user, "boards", "")
    run = user.json("up", path)["result"]["records"][0]["run"]
    files = user.home / ".dlcloud" / "runs" / run / "files"
    assert (files / "logs/run/events.out.tfevents.1.host.2.0").read_bytes() == b"board"
    assert (files / "wandb/offline-run-20261101_101010-abc/files/config.yaml").exists()
