"""Real workers: one life of a run, with everything that may happen to it."""

import signal

from tests.fakes.lives import STEPS_PER_EPOCH, samples
from tests.fakes.training import Cluster, check_exactly_once, read_records, wait_until

EPOCHS = 5
VECTOR_BYTES = 4 * (160 + 4640 + 32832 + 650 + 8)  # the parameters of each layer, and what else is summed
DIGITS = ["-m", "trainer.examples.digits", "--delay-ms", "60"]


def held(cluster, name, *, step):
    """True if a worker waited for others at a step or after it."""
    return any(event["step"] >= step for event in cluster.events(name, "hold"))


def test_a_run_survives_joins_a_drain_a_kill_and_a_lighthouse_restart(trainer_python, alone):
    """Exact mode: the loss of every step is that of one fixed worker, whatever happened.

    Below three workers the run waits: it must not end before the fourth, which takes its time to start.
    """
    script = [*DIGITS, "--epochs", str(EPOCHS), "--shards", "4"]
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
        assert {step["reduced_bytes"] for step in cluster.steps("b")} == {VECTOR_BYTES}
