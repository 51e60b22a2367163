"""One command as one job over all instances: ranks, addresses, failures, and whose files come home."""

import sqlite3
from pathlib import Path

import pytest

RECIPE = """
name: {name}
cloud: local
instances: {{types: [c5.large], count: 3}}
workload:
  nodes: all
  command: {command}
  throughput: 'images/sec: ([0-9]+)'
  repeats: {repeats}
keep: {{files: '*.txt', all_nodes: {all_nodes}}}
"""

# Rank 2 fails once rank 0 has begun, which it tells at the job's own address and port.
FAILS = """\
reached() { python3 -c "import os, socket
socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))" 2>/dev/null; }
if [ "$RANK" = 2 ]; then
  until reached; do sleep 0.2; done
  echo no such module; exit 3
fi
echo begun
[ "$RANK" = 0 ] && python3 -m http.server --bind "$MASTER_ADDR" "$MASTER_PORT"
sleep 600
"""


def recipe(user, name, command, *, repeats=1, all_nodes="false"):
    path = user.home / f"{name}.yaml"
    script = user.home / f"{name}.sh"
    script.write_text(command)
    path.write_text(
        RECIPE.format(name=name, command=f"sh {name}.sh", repeats=repeats, all_nodes=all_nodes).replace(
            "  nodes: all\n", f"  nodes: all\n  files: {script}\n"
        )
    )
    return str(path)


def test_a_job_runs_on_all_instances_and_rank_0_reports(user):
    command = (
        'echo "$RANK $WORLD_SIZE $DLCLOUD_NODE_ADDRESSES" >>nodes.txt\n[ $RANK = 0 ] && echo images/sec: 6\n:'
    )
    document = user.json("up", recipe(user, "job", command, repeats=2, all_nodes="true"))
    (record,) = document["result"]["records"]

    assert (record["case"], record["throughput"], record["nodes"]) == ("job on 3 nodes", 6, 3)
    alone = float(record["hourly_usd"]) * 1_000_000 / 6 / 3600
    assert float(record["usd_per_million"]) / alone > 2.99
    texts = [path.read_text() for path in Path(user.home).rglob("runs/*/files/nodes.txt")]
    lines = [[tuple(line.split()) for line in text.splitlines()] for text in texts]
    assert sorted("".join({rank for rank, *_ in node}) for node in lines) == ["0", "1", "2"]
    assert len({tuple(others) for node in lines for _, *others in node}) == 1


@pytest.mark.long
def test_the_failure_of_one_node_is_that_of_the_job(user):
    ended = user.run("up", recipe(user, "fails", FAILS), expect=4)
    printed = user.run("logs")

    assert "rank 2 of 3" in ended.stderr
    assert "no such module" in ended.stderr
    assert "begun\n" in printed.stdout
    assert "rank 0 of 3; the other nodes: dlcloud logs" in printed.stderr
    assert user.alive() == []


@pytest.mark.long
def test_the_rest_of_a_job_that_lost_a_node_is_ended_first(user):
    path = recipe(user, "again", "echo images/sec: 6")
    user.run("up", path, "--keep", "--name", "again")
    with sqlite3.connect(user.home / ".dlcloud" / "store.sqlite") as store:
        store.execute("UPDATE runs SET state = 'running' WHERE cluster_name = 'again' AND rank = 0")
    try:
        (record,) = user.json("up", path, "--keep", "--name", "again")["result"]["records"][-1:]
        with sqlite3.connect(user.home / ".dlcloud" / "store.sqlite") as store:
            states = store.execute(
                "SELECT state FROM runs WHERE cluster_name = 'again' ORDER BY started_at, rank"
            )
            assert [state for (state,) in states] == ["failed", *["done"] * 5]
        assert record["throughput"] == 6
    finally:
        user.run("down", "again")


@pytest.mark.long
def test_bench_measures_each_count_on_one_cluster(user):
    path = recipe(user, "scales", "[ $RANK = 0 ] && echo images/sec: $((10 + 5 * WORLD_SIZE))\n:", repeats=2)
    document = user.json("bench", "--recipe", path, "--nodes", "1,3")
    (scaling,) = document["result"]["scaling"]

    assert [(point["nodes"], point["throughput"]) for point in scaling["points"]] == [(1, 15), (3, 25)]
    assert round(scaling["points"][1]["efficiency"], 2) == 0.56
    assert scaling["cheapest"]["nodes"] is None
    assert scaling["rehearsal"]
    with sqlite3.connect(user.home / ".dlcloud" / "store.sqlite") as store:
        query = "SELECT count(DISTINCT instance_id) FROM runs WHERE cluster_name LIKE 'scales%'"
        ((instances,),) = store.execute(query)
    assert instances == 3
    assert user.alive() == []
