"""What is remembered of benches."""

from datetime import timedelta

from dlcloud.planning.fit import LeftOut
from dlcloud.store.clusters import Benches
from dlcloud.store.runs import Runs
from tests.fakes.samples import run

NOW = run("r").started_at


def test_the_newest_bench_is_resumed_unless_it_is_complete_or_old(database):
    benches = Benches(database)
    assert benches.incomplete("d", NOW) is None
    benches.begin("one", "d", NOW)
    assert benches.incomplete("d", NOW - timedelta(days=1)) == "one"
    assert benches.incomplete("other", NOW - timedelta(days=1)) is None
    assert benches.incomplete("d", NOW + timedelta(days=1)) is None
    benches.begin("two", "d", NOW + timedelta(minutes=1))
    assert benches.incomplete("d", NOW) == "two"
    benches.end("two", NOW + timedelta(minutes=2))
    assert benches.incomplete("d", NOW) is None


def test_the_runs_of_a_bench_are_those_of_its_clusters(database):
    benches, runs = Benches(database), Runs(database)
    benches.begin("one", "d", NOW)
    for _ in range(2):
        benches.add_cluster("one", "mine")
    runs.add(run("a", cluster_id="mine"))
    runs.add(run("b", cluster_id="other"))
    assert [each.run_id for each in benches.runs("one")] == ["a"]


def test_a_left_out_case_is_stored_once(database):
    benches = Benches(database)
    benches.begin("one", "d", NOW)
    left = LeftOut(benchmark="mixed", setting="", reason="no GPU")
    for _ in range(2):
        benches.put_left_out("one", "c5.large", [left])
    assert benches.left_out("one") == [("c5.large", left)]
