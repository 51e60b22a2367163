"""A world in memory: a cloud, a store on disk, and commands that come, are killed, and come again."""

from dataclasses import replace

import pytest

from dlcloud.launch.launcher import Launcher
from dlcloud.launch.provision import Provisioner
from dlcloud.planning.plan import make_plan
from dlcloud.ssh.keys import create_key, new_secret
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths, Store
from dlcloud.store.runs import Runs
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import FakeCloud, Killed
from tests.fakes.machine import FakeDial
from tests.fakes.samples import RECIPE, cluster, observed, recipe

ONE_TYPE = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[c7i.xlarge]")


class World:
    """One cluster and what surrounds it."""

    def __init__(self, folder):
        self.clock = FakeClock()
        self.cloud = FakeCloud(self.clock)
        self.database = Database(folder / "store.sqlite")
        self.clusters = Clusters(self.database)
        self.paths = Paths(folder / "home")
        self.dial = FakeDial(clock=self.clock)
        self.events = []
        self.cluster = cluster()
        self.clusters.add(self.cluster)
        self.paths.make_folder(self.paths.cluster(self.cluster.cluster_id))
        create_key(self.paths.key(self.cluster.cluster_id))
        self.paths.host_secret(self.cluster.cluster_id).write_text(new_secret())
        self.store = Store(clusters=self.clusters, runs=Runs(self.database), paths=self.paths)

    @property
    def launcher(self):
        """The launcher of a command that begins now."""
        return Launcher(
            cluster=self.cluster,
            cloud=self.cloud,
            store=self.store,
            dialer=self.dial,
            clock=self.clock,
            emit=self.events.append,
        )

    def plan(self, text=ONE_TYPE, *prices):
        facts = replace(observed(*prices), reservations=self.cloud.capacity.reservations())
        return make_plan(recipe(text), facts)

    def provisioner(self, text=ONE_TYPE, plan=None):
        group = self.cloud.network.create_group(self.cluster.cluster_id, self.cluster.tags)
        return Provisioner(managed=self.launcher, plan=plan or self.plan(text), security_group_id=group)

    def provision(self, text=ONE_TYPE):
        """Provision as a command does that begins now."""
        plan = self.plan(text)
        return self.provisioner(text).provision(minimum=plan.min_count).members

    def killed_while_provisioning(self, text=ONE_TYPE):
        with pytest.raises(Killed):
            self.provision(text)

    @property
    def tokens(self):
        return [request.client_token for request in self.cloud.requests]

    @property
    def state(self):
        return self.clusters.find(self.cluster.cluster_id).state


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.database.close()
