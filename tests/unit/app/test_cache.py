"""What the caches of a home take, and what of them is removed."""

import json
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from dlcloud.app.account import caches
from dlcloud.model.errors import BudgetError
from dlcloud.store.home import Paths


@pytest.fixture
def context(tmp_path):
    for name, size in (
        ("local/cache/dlcloud/environments/abc/lib/a.py", 5 << 20),
        ("local/cache/dlcloud/environments/def/b.py", 1 << 20),
        ("local/cache/pip/wheel", 2 << 20),
        ("cache/prices.json", 4096),
        ("runs/r/log", 4096),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    clusters = SimpleNamespace(up=[])
    clusters.active = lambda: clusters.up
    events = []
    clock = SimpleNamespace(now=lambda: datetime.now(UTC))
    return SimpleNamespace(
        paths=Paths(tmp_path), clusters=clusters, clock=clock, emit=events.append, events=events
    )


@pytest.fixture
def six_mib(context, monkeypatch):
    """Let caches of more than 6 MiB shrink; the environment `def` was used last, `abc` before."""
    monkeypatch.setattr(caches, "MOST_BYTES", 6 << 20)
    for age, name in enumerate(("dlcloud/environments/def", "dlcloud/environments/abc", "pip")):
        folder = context.paths.home / "local/cache" / name
        os.utime(folder, (1e9, 1e9 - age))
    (context.paths.home / "local/cache/dlcloud/environments/def/complete").touch()


@pytest.mark.usefixtures("six_mib")
def test_beyond_a_size_what_was_not_used_for_longest_goes(context):
    caches.trim_caches(context)
    assert [name for _, name in names(context)] == ["def", "prices.json"]
    assert "removed 7 MiB of caches beyond 6 MiB: packages of pip, environment" in context.events[0].message


@pytest.mark.usefixtures("six_mib")
def test_caches_do_not_shrink_twice_a_day_nor_beside_a_cluster(context):
    context.clusters.up = [SimpleNamespace(cloud="local")]
    caches.trim_caches(context)
    context.clusters.up = []
    assert len(names(context)) == 4
    (context.paths.home / "local/cache/looked-at").touch()
    caches.trim_caches(context)
    assert len(names(context)) == 4
    later = datetime.now(UTC) + timedelta(days=1, minutes=1)
    context.clock.now = lambda: later
    caches.trim_caches(context)
    assert len(names(context)) == 2


def test_caches_below_the_size_stay(context):
    caches.trim_caches(context)
    assert (len(names(context)), context.events) == (4, [])


def names(context):
    return [(entry.kind, entry.path.name) for entry in caches.list_entries(context)]


def test_each_environment_is_listed_the_largest_first(context, capsys):
    caches.run(context, dry_run=True, yes=False, output="json")
    records = json.loads(capsys.readouterr().out)["result"]["records"]
    assert [record["path"].rpartition("/")[2] for record in records] == ["abc", "pip", "def", "prices.json"]
    assert records[0]["bytes"] >= 5 << 20
    assert names(context)[0] == ("environment", "abc")


def test_what_is_shown_is_removed_and_results_stay(context, capsys):
    with pytest.raises(BudgetError, match="not a terminal"):
        caches.run(context, dry_run=False, yes=False, output="table")
    caches.run(context, dry_run=False, yes=True, output="table")
    assert names(context) == []
    assert (context.paths.home / "runs/r/log").exists()
    assert "removed 8 MiB" in capsys.readouterr().err


def test_what_instances_share_stays_while_a_cluster_is_up(context, capsys):
    context.clusters.up = [SimpleNamespace(cloud="local")]
    caches.run(context, dry_run=False, yes=True, output="table")
    assert [name for _, name in names(context)] == ["abc", "pip", "def"]
    assert "a cluster of the local EC2 is up" in capsys.readouterr().out


def test_a_cache_that_is_a_link_is_left_to_others(context):
    local = context.paths.home / "local"
    (local / "cache").rename(local / "own")
    (local / "cache").symlink_to(local / "own")
    assert names(context) == [("catalogs and prices", "prices.json")]
