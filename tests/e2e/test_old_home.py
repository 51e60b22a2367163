"""A home that dlcloud wrote in November 2026, before its code was renamed, opens with the same figures.

`tests/fixtures/home-2026-11` holds its store as SQL and the logs of its runs; keys, proven host keys and the
local EC2 are left out. `expected.json` is what the dlcloud that wrote it printed. Its clusters: `tiny-7534`
is down after its run, `tiny-c5-xlarge-21a2` and `tiny-c7i-xlarge-5926` are those of one bench, `mine` is
kept, `elastic-5fc2` trained through an interruption, `left` is detached, `cut` was killed while it launched.

`tests/fixtures/home-before-ids` is a later one, the last before the ids of launched instances had columns of
their own; both of its clusters are down, `noticed-8711` trained through an interruption. Its `expected.json`
has the commands, too.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terminal import User

from dlcloud.ssh.keys import create_key

FIXTURE = Path(__file__).parents[1] / "fixtures" / "home-2026-11"
LATER_FIXTURE = FIXTURE.with_name("home-before-ids")
COMMANDS = {
    "status": ("status", "--all"),
    "one status": ("status", "mine"),
    "cost report": ("cost-report", "--all"),
    "training": ("training", "elastic-5fc2"),
    "types": ("compare", "c5.xlarge", "c7i.xlarge"),
    "settings": ("compare", "baseline", "tuned"),
}
# What an instance has cost that the store does not know to have ended grows with time.
GROWING = {
    "usd_so_far",
    "run_usd",
    "run_instance_usd",
    "run_volume_usd",
    "run_address_usd",
    "billed_seconds",
    "rest_seconds",
}
UP = {"i-3c0b3707a1b6b5d89", "i-12ea34cc1f7b998c4", "i-a8be804ee137e55dc", "mine-deb5f764"}
LATER_KEYS = {"nodes", "rank", "head_run_id", "experiment", "trial", "trial_values"}
"""Of exported runs."""


def write_home(folder: Path, fixture: Path = FIXTURE) -> None:
    folder.mkdir(mode=0o700, parents=True)
    store = folder / "store.sqlite"
    with sqlite3.connect(store) as connection:
        connection.executescript((fixture / "store.sql").read_text("utf-8"))
        rows = connection.execute("SELECT run_id, line FROM records ORDER BY run_id, position").fetchall()
    connection.close()
    store.chmod(0o600)
    for log in fixture.glob("*.log"):
        run = folder / "runs" / log.stem
        run.mkdir(mode=0o700, parents=True)
        (run / "log").write_bytes(log.read_bytes())
        (run / "records.jsonl").write_text("".join(f"{line}\n" for name, line in rows if name == log.stem))


def figures(user: User) -> dict:
    """Return the documents that the commands print, and a summary of an export."""
    documents = {name: steady(user.json(*command)["result"]) for name, command in COMMANDS.items()}
    user.run("export", "all.jsonl", "--samples", "--commands")
    lines = [json.loads(line) for line in (user.home / "all.jsonl").read_text().splitlines()]
    documents["export"] = [
        {
            "run_id": line["run_id"],
            "state": line["state"],
            "keys": " ".join(sorted(line.keys() - LATER_KEYS)),
            "records": [record["record"] for record in line["records"]],
        }
        for line in lines
        if "elastic" not in line["run_id"]
    ] + [[line["run_id"], len(line["records"])] for line in lines if "elastic" in line["run_id"]]
    return documents


def steady(result: dict) -> dict:
    """Return a result without the figures that grow with time."""
    records = [
        {key: value for key, value in record.items() if key not in GROWING}
        if UP & {record.get("instance_id"), record.get("run")}
        else record
        for record in result["records"]
    ]
    return {**result, "records": records}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    user = User(tmp_path_factory.mktemp("old"))
    write_home(user.home / ".dlcloud")
    yield user
    user.run("local", "stop")


@pytest.fixture(scope="module")
def printed(old: User) -> dict:
    return figures(old)


def without_later_keys(now: Any, then: Any) -> Any:
    """Return what is printed now without the keys that did not exist then."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {key: without_later_keys(value, then[key]) for key, value in now.items() if key in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [without_later_keys(*pair) for pair in zip(now, then, strict=True)]
    return now


EXPECTED = json.loads((FIXTURE / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_home_gives_the_figures_that_it_gave(printed, name):
    assert without_later_keys(printed[name], EXPECTED[name]) == EXPECTED[name]


def test_an_old_home_has_its_logs(old):
    for log in FIXTURE.glob("*.log"):
        assert old.run("logs", log.stem).stdout.strip() == log.read_text("utf-8").strip()


def test_an_old_home_keeps_the_hand_over_of_its_detached_cluster(old):
    refusal = old.run("exec", "left", "true", expect=None)
    assert refusal.returncode != 0
    assert "left" in refusal.stderr


def test_an_old_home_is_imported_by_a_new_one(old, tmp_path):
    old.run("export", "shared.jsonl")
    new = User(tmp_path)
    new.run("import", str(old.home / "shared.jsonl"))
    before, after = (user.json("cost-report", "--all")["result"]["records"] for user in (old, new))
    assert [record["throughput"] for record in before] == [record["throughput"] for record in after]
    assert len(before) == len(EXPECTED["cost report"]["records"])


@pytest.fixture
def reopened(newcomer: User) -> User:
    write_home(newcomer.home / ".dlcloud")
    return newcomer


def test_every_cluster_of_an_old_home_can_be_ended(reopened):
    done = reopened.run("down", "--all", "--output", "json")
    states = {record["cluster"]: record["state"] for record in json.loads(done.stdout)["result"]["records"]}
    assert states == {"mine": "down", "left": "down", "cut": "down"}
    assert "i-12ea34cc1f7b998c4" in done.stderr
    assert reopened.run("status").stdout == "nothing is up\n"


def test_an_unfinished_launch_of_an_old_home_is_completed_by_up(reopened):
    with sqlite3.connect(reopened.home / ".dlcloud" / "store.sqlite") as store:
        ((cluster_id, text),) = store.execute(
            "SELECT cluster_id, recipe_text FROM clusters WHERE name = 'cut'"
        )
    (reopened.home / "cut.yaml").write_text(text)
    folder = reopened.home / ".dlcloud" / "clusters" / cluster_id
    folder.mkdir(mode=0o700, parents=True)
    create_key(folder / "key")
    (folder / "host-secret").write_text("0" * 64)
    reopened.run("up", "cut.yaml", "--name", "cut")
    assert {row["cluster"] for row in reopened.json("cost-report", "cut")["result"]["records"]} == {"cut"}
    clusters = {record["cluster"]: record for record in reopened.json("status", "--all")["result"]["records"]}
    assert clusters["cut"]["cluster_id"] == cluster_id
    assert clusters["cut"]["cluster_state"] == "down"


def test_a_later_home_gives_the_figures_that_it_gave(newcomer):
    write_home(newcomer.home / ".dlcloud", LATER_FIXTURE)
    expected = json.loads((LATER_FIXTURE / "expected.json").read_text("utf-8"))
    for name, words in expected["commands"].items():
        then = expected["documents"][name]
        assert without_later_keys(newcomer.json(*words)["result"], then) == then, name
    with sqlite3.connect(newcomer.home / ".dlcloud" / "store.sqlite") as store:
        rows = store.execute(
            "SELECT fleet_id, instance_ids FROM intents WHERE action = 'launch' AND outcome LIKE '%i-%'"
        )
        launched = [(fleet_id, json.loads(ids)) for fleet_id, ids in rows]
    assert all(ids and all(name.startswith("i-") for name in ids) for _, ids in launched)
    assert len(launched) == 4
