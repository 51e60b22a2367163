"""Real workers on a network of their own: two that do not reach each other, and a machine that is gone."""

import os
import time

import pytest

from tests.fakes.lives import samples
from tests.fakes.network import Network
from tests.fakes.training import Cluster, check_exactly_once, wait_until

FOREVER = ["-m", "trainer.examples.digits", "--delay-ms", "30", "--epochs", "100000"]
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

    def sizes(self, name):
        return [record["world_size"] for record in self.steps(name)]

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
        together(cluster, 3)
        for fault, end in (
            (lambda: network.cut("b", "c"), lambda: network.mend("b", "c")),
            (lambda: network.unplug("c"), lambda: network.plug("c")),
        ):
            some_steps(cluster)
            fault()
            together(cluster, 2)
            before = len(cluster.sizes("a"))
            some_steps(cluster, 20)
            assert set(cluster.sizes("a")[before:]) == {2}, "it is not tried again at each step"
            end()
            since = time.monotonic()
            together(cluster, 3)
            assert time.monotonic() - since <= MENDED_S
        check_exactly_once([cluster.steps(name) for name in "abc"], samples)


def together(cluster, size):
    wait_until(lambda: (sizes := cluster.sizes("a")) and sizes[-1] == size, f"{size} workers")


def some_steps(cluster, count=5):
    cluster.wait_for_step("a", cluster.steps("a")[-1]["step"] + count)
