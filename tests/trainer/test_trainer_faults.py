"""Real workers under faults: a coordinator that is lost for good, hangs, slowness, a network cut in two."""

import signal

import pytest

from tests.fakes.agents import Agents, Proxy
from tests.fakes.lives import STEPS_PER_EPOCH, samples
from tests.fakes.training import Cluster, check_exactly_once, read_records, wait_until

DIGITS = ["-m", "trainer.examples.digits", "--delay-ms", "30"]
FOREVER = [*DIGITS, "--epochs", "1000"]


def together(cluster, name, size):
    """Wait until a worker takes steps with so many."""
    wait_until(lambda: (s := cluster.steps(name)) and s[-1]["world_size"] == size, f"{size} workers")


def newest(cluster, name):
    return cluster.steps(name)[-1]["step"]


def some_steps(cluster, name, count=5):
    cluster.wait_for_step(name, newest(cluster, name) + count)


@pytest.mark.long
def test_workers_turn_to_a_new_coordinator_with_their_state(trainer_python, alone):
    """The instance with lighthouse, ledger and a worker is gone at once; a newcomer has none of it."""
    script, all_three = [*DIGITS, "--epochs", "8", "--shards", "2"], ["--minimum", "3"]
    with Cluster(trainer_python, alone, script, lighthouse=all_three) as cluster:
        for name in "abc":
            cluster.start(name)
        together(cluster, "b", 3)
        some_steps(cluster, "b")
        cluster.kill_lighthouse()
        cluster.kill("a")
        reached = max(newest(cluster, name) for name in "bc")
        cluster.replace_lighthouse(reached)
        cluster.start("d")
        wait_until(lambda: cluster.events("d", "hold"), "the newcomer to hold")
        assert not cluster.steps("d")
        control = {"generation": 1, "coordinator": f"127.0.0.1:{cluster.port}", "least": reached}
        for name in "bc":
            cluster.write_control(name, **control)
        for name in "bcd":
            assert cluster.wait(name) == 0
        steps = [cluster.steps(name) for name in "abcd"]
        check_exactly_once(steps, samples)
        states = {(record["step"], record["hash"]) for worker in steps for record in worker}
        assert len(states) == 8 * STEPS_PER_EPOCH, "a step has two states"
        recorded = {record["step"] for record in read_records(cluster.journal)}
        assert recorded == set(range(1, 8 * STEPS_PER_EPOCH + 1)), "the new one has the steps of before, too"
        assert cluster.events("b", "coordinator")
        assert cluster.steps("d")[0]["step"] > reached


@pytest.mark.long
def test_a_worker_that_hangs_or_is_cut_off_is_left_behind_and_comes_back(trainer_python, alone):
    """The hung one holds a sum up until the others break it off; the one cut off knows that it is."""
    with Cluster(trainer_python, alone, FOREVER) as cluster, Proxy(cluster.port) as proxy:
        cluster.start("a")
        cluster.start("hung")
        cluster.start("cut", lighthouse=f"127.0.0.1:{proxy.port}")
        together(cluster, "a", 3)
        some_steps(cluster, "a")
        cluster.signal("hung", signal.SIGSTOP)
        last = newest(cluster, "a") + 1  # which it may have been in the middle of
        together(cluster, "a", 2)
        some_steps(cluster, "a")
        # On a busy machine the two may also be "a" and "hung", while the one behind the proxy is late.
        of_two = {step["step"] for step in cluster.steps("a") if step["world_size"] == 2}
        without = {step["step"] for step in cluster.steps("cut") if step["step"] > last} & of_two
        cluster.signal("hung", signal.SIGCONT)
        together(cluster, "a", 3)
        proxy.cut()
        together(cluster, "a", 2)
        some_steps(cluster, "a")
        proxy.mend()
        together(cluster, "a", 3)
        some_steps(cluster, "a")
        steps = [cluster.steps(name) for name in ("a", "hung", "cut")]
    kept = check_exactly_once(steps, samples)
    assert without
    taken = [record for record in steps[1] if record["step"] in without and record in kept[record["step"]]]
    assert not taken, ("it took no part while it slept", last, taken, [kept[r["step"]] for r in taken])
    assert all(record["quorum"] for record in steps[2])


@pytest.mark.long
def test_below_its_minimum_a_run_waits_and_goes_on_when_others_join(trainer_python, alone):
    with Cluster(trainer_python, alone, FOREVER) as cluster:
        for name in "abc":
            cluster.write_control(name, minimum=2)
        folder = alone / "checkpoints"
        cluster.start("a", checkpoints=str(folder), checkpoint_s=1000)
        cluster.start("b")
        together(cluster, "a", 2)
        some_steps(cluster, "a")
        cluster.kill("b")
        wait_until(lambda: cluster.events("a", "hold"), "the survivor to wait")
        held = newest(cluster, "a")
        saved = {"step": held}.items()
        wait_until(
            lambda: any(saved <= e.items() for e in cluster.events("a", "checkpoint")), "its checkpoint"
        )
        cluster.start("c")
        together(cluster, "c", 2)
        some_steps(cluster, "a")
        assert "1 of 2 instances needed" in cluster.events("a", "hold")[0]["cause"]
        assert all(record["world_size"] == 2 for record in cluster.steps("a"))
        assert cluster.steps("c")[0]["step"] == held + 1
        check_exactly_once([cluster.steps(name) for name in "abc"], samples)


@pytest.mark.long
def test_a_run_that_waits_goes_on_alone_once_its_minimum_is_lowered(trainer_python, alone):
    with Cluster(trainer_python, alone, FOREVER) as cluster:
        for name in "ab":
            cluster.write_control(name, minimum=2)
            cluster.start(name)
        together(cluster, "a", 2)
        cluster.signal("b", signal.SIGTERM)
        assert cluster.wait("b") == 10
        wait_until(lambda: cluster.events("a", "hold"), "the one that stays to wait")
        cluster.write_control("a", minimum=1)
        together(cluster, "a", 1)
        some_steps(cluster, "a")
        check_exactly_once([cluster.steps(name) for name in "ab"], samples)


@pytest.mark.long
def test_an_agent_takes_lighthouse_and_ledger_over_from_one_that_is_lost(trainer_python, alone):
    """Agents start everything: the lighthouse of the first, then, once promoted, that of the second."""
    agents = Agents(trainer_python, alone, [*DIGITS, "--epochs", "6"])
    with agents:
        agents.start("a", "--lighthouse", "--minimum", "2")
        agents.start("b")
        wait_until(lambda: (s := agents.steps("b")) and s[-1]["world_size"] == 2, "both")
        wait_until(lambda: any(s["step"] >= 10 for s in agents.steps("b")), "ten steps")
        agents.kill("a")
        reached = agents.steps("b")[-1]["step"]
        agents.promote("b", step=reached)
        assert agents.wait("b") == 0
        events = {record["event"] for record in agents.records("b") if record["record"] == "event"}
        assert {"lighthouse_started", "coordinator", "done", "checkpoint"} <= events
        steps = [agents.steps(name) for name in "ab"]
        check_exactly_once(steps, samples)
        assert steps[1][-1]["step"] == 6 * STEPS_PER_EPOCH
        (ledger,) = alone.glob("b/ledger.json")
        assert '"done": true' in ledger.read_text()
