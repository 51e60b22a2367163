"""A full disk does not keep an instance alive: first it is terminated, then that is stored."""

import pytest

from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import UnwritableError
from tests.fakes.disk import full_disk
from tests.fakes.samples import RECIPE


def test_down_on_a_full_disk_terminates_and_says_what_is_not_stored(world):
    world.provision(RECIPE)
    with (
        full_disk(),
        pytest.raises(UnwritableError, match="every instance of sample-1a2b is") as caught,
    ):
        world.launcher.destroy()
    assert world.cloud.alive() == []
    assert caught.value.hint.endswith("dlcloud down sample-1a2b")
    world.launcher.destroy()
    assert world.state is ClusterState.DOWN


def test_down_stores_the_ends_when_the_disk_has_space_again(world):
    world.provision(RECIPE)
    terminate = world.cloud.instances.terminate

    def terminate_on_full_disk(ids):
        with full_disk():
            world.clusters.set_disk("c0ffee", 60)
            return terminate(ids)

    world.cloud.instances.terminate = terminate_on_full_disk
    members = world.launcher.destroy()
    assert all(member.ended_at for member in members)
    assert world.state is ClusterState.DOWN
