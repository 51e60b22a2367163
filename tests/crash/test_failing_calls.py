"""Every API call of a cluster's life fails in turn, in every way; in the end nothing is left.

Of all calls and ways a few are chosen at random; DLCLOUD_CRASH_SEED repeats a choice, and
DLCLOUD_FAILING_CALLS=all runs all of them.
"""

import contextlib
import os
import random
import secrets
from dataclasses import replace

import pytest

from dlcloud.app.context import SystemClock
from dlcloud.launch import managed
from dlcloud.launch.launcher import Launcher
from dlcloud.local.site import LocalSite
from dlcloud.model.cluster import CLUSTER_TAG, ClusterState
from dlcloud.model.errors import CloudError
from dlcloud.planning.plan import make_plan
from dlcloud.ssh.keys import create_key, new_secret
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths, Store
from dlcloud.store.runs import Runs
from tests.fakes.local_ec2 import Rig
from tests.fakes.machine import FakeDial
from tests.fakes.samples import RECIPE, cluster, observed, recipe
from tests.prefork import Daemons
from tests.unit.local.test_instance_roles import cloud_of

SEED = int(os.environ.get("DLCLOUD_CRASH_SEED") or random.SystemRandom().randrange(10**6))
ONE_TYPE = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[c7i.xlarge]").replace("count: 2", "count: 1")
FLEET = RECIPE.replace("count: 2", "count: 2\n  market: spot-then-on-demand")
CALLS = {ONE_TYPE: 16, FLEET: 20}
"""At least so many calls a cluster's life has; a fault beyond its last call strikes nothing."""
WAYS = {
    "throttled": {"code": "RequestLimitExceeded", "status": 503, "times": 1},
    "failed": {"code": "InternalError", "status": 500, "times": 1},
    "failed, carried out": {"code": "InternalError", "status": 500, "times": 1, "carried_out": True},
    "no answer": {"code": "", "status": 0, "times": 1},
    "no answer, carried out": {"code": "", "status": 0, "times": 1, "carried_out": True},
    "denied": {"code": "UnauthorizedOperation", "status": 403, "times": 1},
    "credentials expire": {"code": "RequestExpired", "status": 400, "times": None},
    "the network is gone": {"code": "", "status": 0, "times": 40},
    "late": None,
}
EVERY = [(text, way, number) for text, last in CALLS.items() for way in WAYS for number in range(last)]
SAMPLES = len(EVERY) if os.environ.get("DLCLOUD_FAILING_CALLS") == "all" else 4


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    site = LocalSite(tmp_path_factory.mktemp("site"))
    yield Rig(site, Daemons.of_this_process().start(site))
    site.stop()


@pytest.fixture
def launcher(rig, tmp_path, monkeypatch):
    """Make a launcher of a new cluster on the local EC2; its instances need not boot."""
    monkeypatch.setattr(managed, "CONSISTENCY_WINDOW_S", 1.0)
    cluster_id = f"fail{secrets.token_hex(4)}"
    database, paths = Database(tmp_path / "store.sqlite"), Paths(tmp_path / "home")
    clusters = Clusters(database)
    made = replace(cluster(), cluster_id=cluster_id, created_at=SystemClock().now())
    clusters.add(made)
    paths.make_folder(paths.cluster(cluster_id))
    create_key(paths.key(cluster_id))
    paths.host_secret(cluster_id).write_text(new_secret())
    yield Launcher(
        cluster=made,
        cloud=cloud_of(rig.clients()),
        store=Store(clusters=clusters, runs=Runs(database), paths=paths),
        dialer=FakeDial(),
        clock=SystemClock(),
        emit=lambda _: None,
    )
    database.close()


def plan(launcher, text):
    image = launcher.cloud.images.resolve("auto", gpu=False)
    return make_plan(recipe(text), replace(observed(), image=image))


def left(rig, cluster_id):
    """Return what carries the cluster's tag and is not terminated."""
    filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster_id]}]
    reservations = rig.ec2.describe_instances(Filters=filters)["Reservations"]
    instances = [instance for some in reservations for instance in some["Instances"]]
    groups = rig.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    templates = rig.ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]
    alive = [i["InstanceId"] for i in instances if i["State"]["Name"] != "terminated"]
    return alive + [g["GroupId"] for g in groups] + [t["LaunchTemplateId"] for t in templates]


@pytest.mark.parametrize("sample", range(SAMPLES))
def test_nothing_is_left_when_a_call_fails(rig, launcher, sample):
    text, way, number = random.Random(SEED).sample(EVERY, SAMPLES)[sample]
    case = f"{way} from call {number} on, DLCLOUD_CRASH_SEED={SEED}\n{text}"
    planned = plan(launcher, text)
    if WAYS[way] is None:
        rig.control.set_visibility(1.0, seed=number)
    else:
        rig.control.add_fault("*", skip=number, **WAYS[way])
    for step in (lambda: launcher.launch(planned), launcher.destroy):
        with contextlib.suppress(CloudError):
            step()
    rig.control.clear_faults()
    launcher.destroy()
    rig.control.set_visibility(0.0)
    assert left(rig, launcher.cluster_id) == [], case
    assert launcher.store.clusters.find(launcher.cluster_id).state is ClusterState.DOWN, case
