"""What the commands that only look at a cluster import: a module too many is paid at every call."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dlcloud.model.cluster import ClusterState, Member
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from tests.fakes.samples import cluster, instance

ROOT = Path(__file__).parents[3]
LOOKING = """
import json, sys
from importlib import import_module
for name in {modules!r}:
    import_module(name)
print(json.dumps(sorted(sys.modules)))
"""
CLOUDS, MACHINES = "dlcloud.app.clouds", "dlcloud.app.machines"
"""What `Context` imports when the command first asks for EC2, and for SSH."""
COLLABORATORS = {"status": CLOUDS, "ssh": MACHINES, "exec": MACHINES, "logs": MACHINES}
SLOW = {"pydantic", "moto", "asyncssh", "rich"}
CLOUDLESS = SLOW | {"boto3", "botocore"}


def modules_after(*modules):
    """Return what a new process has imported after these modules."""
    code = LOOKING.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def packages_after(*modules):
    return {name.partition(".")[0] for name in modules_after(*modules)}


@pytest.mark.parametrize("command", COLLABORATORS)
def test_a_command_that_looks_imports_no_slow_library(command):
    imported = packages_after(f"dlcloud.app.clusters.{command}", COLLABORATORS[command])
    assert not imported & (SLOW | {"click"})
    assert not imported & ({"paramiko", "cryptography", "yaml"} if command == "status" else {"botocore"})


def test_no_use_case_needs_what_the_extra_for_the_local_ec2_brings():
    """Plain dlcloud has none of it, nor does an instance that controls a cluster."""
    root = ROOT / "dlcloud" / "app"
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in root.rglob("[!_]*.py")]
    assert not packages_after(*sorted(modules)) & {"asyncssh", "flask", "moto", "psutil"}


def test_nothing_of_a_tracker_is_imported_where_a_recipe_names_none():
    use_cases = ("clusters.up", "clusters.hand_over", "results.export")
    of_trackers = ("dlcloud.trackers", "dlcloud.app.results.tracking", "mlflow")
    imported = modules_after(*(f"dlcloud.app.{name}" for name in use_cases))
    assert [name for name in imported if name.startswith(of_trackers)] == []


@pytest.mark.parametrize("command", ["exec", "ssh"])
def test_a_cluster_of_this_home_is_reached_without_a_cloud(command, dlcloud_alone, home):
    """EC2 is asked only if another machine may control the cluster, or this one has another address."""
    home.mkdir()
    with closing(Database(home / "store.sqlite")) as database:
        stored = Clusters(database)
        stored.add(cluster(cloud="local", state=ClusterState.READY))
        stored.put_members("c0ffee", [Member(instance=instance(host="127.0.0.1", ssh_port=1))])
    done = dlcloud_alone(command, "sample", "--", "true")
    assert "i-0001" in done.stderr
    assert "paramiko" in done.modules
    assert not done.modules & CLOUDLESS
