"""Real workers on torchft: one life of a run, with everything that may happen to it."""

import os
import random
import signal

import pytest

from tests.fakes.training import Cluster, check_exactly_once, wait_until

BATCH, STEPS_PER_EPOCH, SAMPLES = 96, 15, 1437
DIGITS = ["-m", "trainer.examples.digits", "--delay-ms", "30"]


def samples(step):
    return BATCH if step % STEPS_PER_EPOCH else SAMPLES - BATCH * (STEPS_PER_EPOCH - 1)


@pytest.mark.timeout(420)
def test_a_run_survives_joins_a_drain_a_kill_and_a_lighthouse_restart(trainer_python, alone):
    """Exact mode: the loss of every step is that of one fixed worker, whatever happened."""
    script = [*DIGITS, "--epochs", "6", "--shards", "4"]
    with Cluster(trainer_python, alone, script) as cluster:
        cluster.start("fixed", lighthouse=None, ledger=None)
        cluster.start("a", checkpoints=str(alone / "checkpoints"), durable=True)
        cluster.start("b")
        cluster.start("c")
        cluster.wait_for_step("c", 30)
        wait_until(lambda: cluster.steps("a")[-1]["world_size"] == 3, "all three")
        cluster.kill("b")
        cluster.wait_for_step("a", cluster.steps("a")[-1]["step"] + 5)
        cluster.kill_lighthouse()
        cluster.start("d")
        cluster.start_lighthouse()
        cluster.wait_for_step("d", 60)
        cluster.signal("c", signal.SIGTERM)
        assert cluster.wait("c") == 10
        assert cluster.wait("a") == cluster.wait("d") == cluster.wait("fixed") == 0
        check_life(cluster)
        check_latecomer(cluster)


def check_life(cluster):
    elastic = [cluster.steps(name) for name in "abcd"]
    check_exactly_once(elastic, samples)
    fixed = {record["step"]: record for record in cluster.steps("fixed")}
    assert len(fixed) == 6 * STEPS_PER_EPOCH
    for record in (step for worker in elastic for step in worker):
        assert record["hash"] == fixed[record["step"]]["hash"], f"step {record['step']} of {record['worker']}"
    assert cluster.events("a", "lost")
    assert cluster.events("a", "leaving_seen")
    assert cluster.events("d", "healed")
    assert cluster.steps("d")[0]["step"] > 1
    assert cluster.events("a", "checkpoint")
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


@pytest.mark.timeout(300)
def test_a_run_that_lost_all_workers_resumes_from_its_checkpoint(trainer_python, alone):
    folder = str(alone / "checkpoints")
    with Cluster(trainer_python, alone, [*DIGITS, "--epochs", "3"]) as cluster:
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


@pytest.mark.skipif("DLCLOUD_ELASTIC_ROUNDS" not in os.environ, reason="minutes: set DLCLOUD_ELASTIC_ROUNDS")
@pytest.mark.timeout(3600)
def test_random_lives(trainer_python, alone):
    """DLCLOUD_ELASTIC_ROUNDS=N tries N lives, from DLCLOUD_ELASTIC_SEED on; a failure says its seed."""
    first = int(os.environ.get("DLCLOUD_ELASTIC_SEED", "0"))
    for seed in range(first, first + int(os.environ["DLCLOUD_ELASTIC_ROUNDS"])):
        folder = alone / f"life-{seed}"
        folder.mkdir()
        (folder / "trainer").symlink_to(alone / "trainer")
        with Cluster(trainer_python, folder, [*DIGITS, "--epochs", "12"]) as cluster:
            try:
                live(cluster, random.Random(seed))
            except AssertionError as error:
                raise AssertionError(f"DLCLOUD_ELASTIC_SEED={seed}: {error}") from error


def live(cluster, chance):
    """Start, stop, continue, drain and kill at random moments; the worker named `a` outlives it all."""
    names, frozen = iter("bcdefghijklmnopqrstuvwxyz"), None
    cluster.start("a")
    cluster.wait_for_step("a", 3)
    while cluster.workers["a"].poll() is None:
        others = [name for name, process in cluster.workers.items() if name != "a" and process.poll() is None]
        action = chance.choice(["start", "start", "kill", "drain", "freeze"])
        if action == "start" and len(others) < 3 and (name := next(names, None)):
            cluster.start(name)
        elif others and action in {"kill", "drain", "freeze"}:
            name = chance.choice(others)
            number = {"kill": signal.SIGKILL, "drain": signal.SIGTERM, "freeze": signal.SIGSTOP}[action]
            cluster.signal(name, number)
            frozen = name if action == "freeze" else frozen
        wait_some_steps(cluster, chance.randint(2, 20))
        if frozen:
            cluster.signal(frozen, signal.SIGCONT)
            frozen = None
    for name, process in cluster.workers.items():
        assert process.wait(60) in {0, 10, -9}, f"{name}: {cluster.output(name)}"
    check_exactly_once([cluster.steps(name) for name in cluster.workers], samples)


def wait_some_steps(cluster, count):
    reached = cluster.steps("a")[-1]["step"] + count

    def passed():
        return cluster.steps("a")[-1]["step"] >= reached or cluster.workers["a"].poll() is not None

    wait_until(passed, f"step {reached}")
