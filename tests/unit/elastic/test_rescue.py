"""Ctrl-C on a training brings its newest checkpoint, and the files that are kept, home."""

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.elastic.rescue import bring_home
from dlcloud.elastic.train import warn_if_nothing_is_kept
from dlcloud.launch.managed import ManagedCluster
from dlcloud.model.cluster import Member
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths, Store
from dlcloud.store.runs import Runs
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import FakeCloud
from tests.fakes.machine import FakeDial, FakeMachine
from tests.fakes.samples import cluster, instance, recipe, request, run

RECIPE = """\
name: training
instances: {types: [c7i.xlarge], count: 2}
workload: {command: python3 train.py, elastic: {}}
keep: {files: [model.pt]}
"""
OLD, NEW = (f"step-{step:012d}-{'0' * 32}.pt" for step in (9, 120))


class World:
    """Two workers of one training, on instances that keep their checkpoints."""

    def __init__(self, folder):
        self.database = Database(folder / "store.sqlite")
        self.clock = FakeClock()
        self.paths, self.runs = Paths(folder), Runs(self.database)
        clusters = Clusters(self.database)
        clusters.add(cluster())
        self.machines = [FakeMachine(name) for name in ("i-0001", "i-0002")]
        cloud = FakeCloud(self.clock)
        cloud.instances.launch(request(count=2))
        members = [
            Member(instance=instance(machine.instance_id, host=f"198.51.100.{number}"))
            for number, machine in enumerate(self.machines, start=1)
        ]
        clusters.put_members("c0ffee", members)
        for number, machine in enumerate(self.machines):
            name = f"run-{number}"
            self.runs.add(
                run(name, instance_id=machine.instance_id, workload="training", state=RunState.RUNNING)
            )
        self.events = []
        self.managed = ManagedCluster(
            cluster=cluster(),
            cloud=cloud,
            store=Store(clusters=clusters, runs=self.runs, paths=self.paths),
            dialer=FakeDial(*self.machines, clock=self.clock),
            clock=self.clock,
            emit=self.events.append,
        )

    def put(self, number, *names):
        folder = f"dlcloud/runs/run-{number}"
        self.machines[number].answers["ls -1"] = "".join(f"{name}\n" for name in names).encode()
        self.machines[number].kept[f"{folder}/checkpoints"] = dict.fromkeys(names, b"state")
        self.machines[number].kept[f"{folder}/work"] = {"model.pt": b"model"}

    def texts(self):
        return "\n".join(event.message for event in self.events)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.database.close()


def test_the_newest_checkpoint_of_all_workers_and_kept_files_come_home(world):
    world.put(0, OLD)
    world.put(1, OLD, NEW)
    bring_home(world.managed, recipe(RECIPE))
    path = world.paths.run("run-1") / "checkpoints" / NEW
    assert path.read_bytes() == b"state"
    assert (world.paths.run_files("run-1") / "model.pt").read_bytes() == b"model"
    assert f"the checkpoint of step 120 is kept: {path}" in world.texts()
    assert any(" stop " in command for command in world.machines[1].commands), "it writes a newer one"
    assert f"1 file(s) downloaded to {world.paths.run_files('run-1')}" in world.texts()


def test_a_worker_that_does_not_stop_leaves_its_checkpoint_and_an_instance_that_is_gone_hides_none(world):
    world.put(1, NEW)
    world.machines[0].gone = True
    world.machines[1].failing[" stop "] = (1, b"no such process")
    bring_home(world.managed, recipe(RECIPE))
    assert "the checkpoint of step 120 is kept" in world.texts()


def test_checkpoints_in_s3_are_not_copied(world):
    world.put(0, NEW)
    bring_home(world.managed, recipe(f"{RECIPE}checkpoints: s3://bucket/run\n"))
    assert not (world.paths.run("run-0") / "checkpoints").exists()
    assert "model.pt" in [path.name for path in world.paths.run_files("run-0").iterdir()]


def test_before_the_first_checkpoint_nothing_is_copied(world):
    bring_home(world.managed, recipe(RECIPE))
    assert world.events == []


def test_only_where_no_worker_has_the_files_there_is_a_warning(world):
    warn_if_nothing_is_kept(world.managed, ["model.pt"])
    assert "no file that the run wrote matches model.pt" in world.texts()
    world.events.clear()
    folder = world.paths.make_folder(world.paths.run_files("run-1"))
    (folder / "model.pt").write_bytes(b"model")
    warn_if_nothing_is_kept(world.managed, ["model.pt"])
    assert world.events == []
