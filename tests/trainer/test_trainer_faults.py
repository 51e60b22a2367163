"""Real workers under faults: a coordinator that is lost for good, hangs, slowness, a network cut in two."""

import pytest

from tests.fakes.training import Cluster, check_exactly_once, wait_until

BATCH, STEPS_PER_EPOCH, SAMPLES = 96, 15, 1437
DIGITS = ["-m", "trainer.examples.digits", "--delay-ms", "30"]


def samples(step):
    return BATCH if step % STEPS_PER_EPOCH else SAMPLES - BATCH * (STEPS_PER_EPOCH - 1)


def together(cluster, name, size):
    """Wait until a worker takes steps with so many."""
    wait_until(lambda: (s := cluster.steps(name)) and s[-1]["world_size"] == size, f"{size} workers", 60)


def newest(cluster, name):
    return cluster.steps(name)[-1]["step"]


@pytest.mark.timeout(200)
def test_workers_turn_to_a_new_coordinator_with_the_state_that_they_have(trainer_python, alone):
    """The instance with lighthouse, ledger and a worker is gone at once; a newcomer has none of it."""
    with Cluster(trainer_python, alone, [*DIGITS, "--epochs", "8", "--shards", "2"]) as cluster:
        for name in "abc":
            cluster.start(name)
        together(cluster, "b", 3)
        cluster.wait_for_step("b", newest(cluster, "b") + 5)
        cluster.kill_lighthouse()
        cluster.kill("a")
        reached = max(newest(cluster, name) for name in "bc")
        cluster.replace_lighthouse(reached)
        cluster.start("d")
        wait_until(lambda: cluster.events("d", "hold"), "the newcomer to hold")
        assert not cluster.steps("d")
        wanted = {"generation": 1, "coordinator": f"127.0.0.1:{cluster.port}", "least": reached}
        for name in "bc":
            cluster.tell(name, **wanted)
        for name in "bcd":
            assert cluster.wait(name) == 0
        steps = [cluster.steps(name) for name in "abcd"]
        check_exactly_once(steps, samples)
        every = {(each["step"], each["hash"]) for worker in steps for each in worker}
        assert len(every) == 8 * STEPS_PER_EPOCH, "a step has two states"
        assert cluster.events("b", "coordinator")
        assert cluster.steps("d")[0]["step"] > reached
