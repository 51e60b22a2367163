"""Whole trainings by real workers: joins, drains, kills, hangs, cuts, lost coordinators; some on demand."""

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes.agents import Agents, Proxy
from tests.fakes.lives import MACHINES, STEPS_PER_EPOCH, Fleet, LongLife, samples
from tests.fakes.metadata import NOTICE, Service
from tests.fakes.network import Network
from tests.fakes.training import Cluster, check_exactly_once, read_records, wait_until

EPOCHS = 5
VECTOR_BYTES = 4 * (160 + 4640 + 32832 + 650 + 8)  # the parameters of each layer, and what else is summed
DIGITS = ["-m", "trainer.examples.digits", "--delay-ms"]
FOREVER = [*DIGITS, "30", "--epochs", "100000"]


def held(cluster, name, *, step):
    """True if a worker waited for others at a step or after it."""
    return any(event["step"] >= step for event in cluster.events(name, "hold"))


def test_a_run_survives_joins_a_drain_a_kill_and_a_lighthouse_restart(trainer_python, alone):
    """Exact mode: the loss of every step is that of one fixed worker, whatever happened.

    Below three workers the run waits: it must not end before the fourth, which takes its time to start.
    """
    script = [*DIGITS, "60", "--epochs", str(EPOCHS), "--shards", "4"]
    with Cluster(trainer_python, alone, script) as cluster:
        cluster.start("fixed", lighthouse=None, ledger=None)
        for name in "abcd":
            cluster.write_control(name, minimum=3)
        cluster.start("a", checkpoints=str(alone / "checkpoints"), durable=True)
        cluster.start("b")
        cluster.start("c")
        cluster.wait_for_step("c", 30)
        cluster.kill("b")
        wait_until(lambda: held(cluster, "a", step=30), "the others to wait")
        cluster.kill_lighthouse()
        cluster.start("d")
        cluster.start_lighthouse()
        cluster.wait_for_step("d", 31)
        for name in "acd":
            cluster.write_control(name, minimum=1)
        cluster.signal("c", signal.SIGTERM)
        assert cluster.wait("c") == 10
        assert cluster.wait("a") == cluster.wait("d") == cluster.wait("fixed") == 0
        check_life(cluster)
        check_latecomer(cluster)


def check_life(cluster):
    elastic = [cluster.steps(name) for name in "abcd"]
    check_exactly_once(elastic, samples)
    fixed = {record["step"]: record for record in cluster.steps("fixed")}
    assert len(fixed) == EPOCHS * STEPS_PER_EPOCH
    for record in (step for worker in elastic for step in worker):
        assert record["hash"] == fixed[record["step"]]["hash"], f"step {record['step']} of {record['worker']}"
    assert cluster.events("a", "lost")
    assert cluster.events("a", "leaving_seen")
    assert cluster.events("d", "healed")
    assert cluster.steps("d")[0]["step"] > 1
    assert cluster.events("a", "checkpoint")
    assert {record["step"] for record in read_records(cluster.journal)} == set(fixed), "a record is missing"
    redone = sum(record["attempts"] - 1 for record in cluster.steps("a"))
    assert redone <= len(cluster.events("a", "retry"))


def check_latecomer(cluster):
    """A worker that comes when all is over must not train a copy; one of another run is refused."""
    cluster.start("late")
    assert cluster.wait("late") == 0
    assert not cluster.steps("late")
    assert cluster.events("late", "done")[0]["cause"] == "the run is done"
    cluster.start("stranger", run="another")
    assert cluster.wait("stranger") == 1
    assert "serves run run-1, not another" in cluster.output("stranger")


def test_a_run_that_lost_all_workers_resumes_from_its_checkpoint(trainer_python, alone):
    folder = str(alone / "checkpoints")
    with Cluster(trainer_python, alone, [*DIGITS, "60", "--epochs", "3"]) as cluster:
        cluster.start("a", checkpoints=folder, checkpoint_s=0.5, durable=True)
        cluster.wait_for_step("a", 15)
        wait_until(lambda: len(cluster.events("a", "checkpoint")) > 1, "a second checkpoint")
        cluster.kill("a")
        cluster.start("phantom")
        wait_until(lambda: cluster.events("phantom", "hold"), "the phantom to hold")
        assert "neither a peer nor a checkpoint" in cluster.events("phantom", "hold")[0]["cause"]
        cluster.start("b", checkpoints=folder, durable=True)
        assert cluster.wait("b") == cluster.wait("phantom") == 0
        resumed = cluster.events("b", "resumed")[0]["step"]
        assert resumed >= cluster.events("a", "checkpoint")[-2]["step"]
        assert cluster.steps("b")[0]["step"] == resumed + 1
        assert cluster.steps("phantom")[0]["step"] > 1
        assert {step["reduced_bytes"] for step in cluster.steps("b")} == {VECTOR_BYTES}


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
    script, all_three = [*DIGITS, "30", "--epochs", "8", "--shards", "2"], ["--minimum", "3"]
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
    agents = Agents(trainer_python, alone, [*DIGITS, "30", "--epochs", "6"])
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


@pytest.mark.long
def test_the_workers_of_an_instance_join_and_leave_together_at_a_notice(trainer_python, alone):
    """Each change of membership costs all workers new connections: two workers cause two, not four."""
    with Service() as service, Agents(trainer_python, alone, FOREVER) as agents:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        agents.start("first", "--lighthouse", "--workers", "1")
        wait_until(lambda: agents.steps("first"), "the first instance to train")
        options = ["--workers", "2", "--metadata", service.url, "--margin", "20", "--last-seconds", "2"]
        agents.start("second", *options)
        wait_until(lambda: len(agents.steps("second")) >= 20, "the second instance to train")
        at = datetime.now(UTC) + timedelta(seconds=21)
        service.documents[NOTICE] = json.dumps({"action": "terminate", "time": at.isoformat()})
        assert agents.wait("second") == 10
        left_at = agents.steps("first")[-1]["step"]
        wait_until(lambda: agents.steps("first")[-1]["step"] > left_at + 5, "the first to train on")
        agents.agents["first"].send_signal(signal.SIGTERM)
        assert agents.wait("first") == 10
        events = [record for record in agents.records("second") if record["record"] == "event"]
        for name in ("joined", "drained"):
            steps = [event["step"] for event in events if event["event"] == name]
            assert (len(steps), len(set(steps))) == (2, 1), (name, steps)
        assert not [record for record in events if record["event"] in {"killed", "lost", "retry"}]
        own = {record["step"]: record for record in agents.steps("first")}
        sizes = [(own[step]["world_size"], own[step]["instances"]) for step in sorted(own)]
        assert [size for size, _ in itertools.groupby(sizes)] == [(1, 1), (3, 2), (1, 1)]


MENDED_S = 10.0


class Spread(Cluster):
    """Workers that are machines of a network; the lighthouse is at the bridge."""

    def __init__(self, python, folder, network):
        super().__init__(python, folder, FOREVER, lighthouse=["--host", network.host])
        self.network, self.host = network, network.host

    def start_machine(self, name):
        host = self.network.host
        addresses = {"lighthouse": f"{host}:{self.port}", "ledger": f"{host}:{self.ledger_port}"}
        self.start(name, host=self.network.addresses[name], **addresses)

    def _spawn(self, name, command, extra, **options):
        if name in self.network.addresses:
            command, extra = self.network.command(name, command), {**extra, "GLOO_SOCKET_IFNAME": "eth0"}
        return super()._spawn(name, command, extra, **options)


@pytest.mark.long
@pytest.mark.skipif("DLCLOUD_FAULTS" not in os.environ or os.geteuid(), reason="root, and DLCLOUD_FAULTS=1")
def test_workers_go_on_where_a_network_is_cut_or_a_machine_gone(trainer_python, alone):
    with Network("abc") as network, Spread(trainer_python, alone, network) as cluster:
        for name in "abc":
            cluster.start_machine(name)
        together(cluster, "a", 3)
        for fault, end in (
            (lambda: network.cut("b", "c"), lambda: network.mend("b", "c")),
            (lambda: network.unplug("c"), lambda: network.plug("c")),
        ):
            some_steps(cluster, "a")
            fault()
            together(cluster, "a", 2)
            before = len(cluster.steps("a"))
            some_steps(cluster, "a", 20)
            sizes = {step["world_size"] for step in cluster.steps("a")[before:]}
            assert sizes == {2}, "it is not tried again at each step"
            end()
            since = time.monotonic()
            together(cluster, "a", 3)
            assert time.monotonic() - since <= MENDED_S
        check_exactly_once([cluster.steps(name) for name in "abc"], samples)


EVENTS = "DLCLOUD_LIFE_EVENTS"


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def live(fleet, seed, count):
    life = LongLife(fleet, random.Random(seed))
    limit_s = 60 * float(os.environ.get("DLCLOUD_LIFE_MINUTES", "inf"))
    try:
        life.run(count, say, limit_s)
    except BaseException as error:
        message = f"seed {seed}, {life.summary()}, last {life.story}: {error}\n{fleet.story()}"
        raise AssertionError(message) from error
    return life


@pytest.mark.long
def test_a_training_holds_through_one_event_of_each_quick_kind(trainer_python, alone):
    """The network is whole, and the order is fixed; the long form below has everything."""
    with Fleet(trainer_python, alone) as fleet:
        life = LongLife(fleet, random.Random(1))
        for event in (life.join, life.join, life.clock, life.lighthouse, life.coordinator, life.notice):
            event()
            life.check()
        life.compare()


@pytest.mark.skipif(EVENTS not in os.environ or os.geteuid() != 0, reason=f"root, an hour: set {EVENTS}=500")
@pytest.mark.timeout(12 * 3600)
def test_one_training_holds_through_hundreds_of_events(trainer_python, alone):
    """DLCLOUD_LIFE_EVENTS events by DLCLOUD_LIFE_SEED, or those of DLCLOUD_LIFE_MINUTES; a failure tells."""
    seed = int(os.environ.get("DLCLOUD_LIFE_SEED", "0"))
    with (
        Network(MACHINES) as network,
        Fleet(trainer_python, alone, network) as fleet,
    ):
        say(live(fleet, seed, int(os.environ[EVENTS])).summary())
