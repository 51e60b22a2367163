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
PACKAGES = {"app", "benchmarks", "local", "model", "planning", "report", "results", "scheduling", "store"}
PACKAGES |= {"system"}
ASKING = PACKAGES | {"cloud", "detached", "resources"}
OVER_SSH = PACKAGES | {"launch", "ssh"}
ON_INSTANCES = OVER_SSH | {"recipe", "resources"}
SHARED = {
    "detached": {"locate"},
    "planning": {"left_out"},
    "results": {"cost", "result", "run_progress"},
    "recipe": {"job_environment"},
}
SETUP = {"admit", "build_failures", "container", "peers", "setup"}
COMMANDS = {
    "status": (
        CLOUDS,
        ASKING,
        {
            "cloud": {"api", "compute", "storage"},
            "report": {"durations", "layout", "progress", "table"},
        },
    ),
    "ssh": (MACHINES, OVER_SSH, {"launch": {"admit"}}),
    "tunnel": (MACHINES, OVER_SSH - {"report"}, {"launch": {"admit"}}),
    "exec": (MACHINES, ON_INSTANCES, {"launch": SETUP}),
    "logs": (MACHINES, ON_INSTANCES, {"launch": SETUP | {"managed", "remote_jobs"}}),
}
VERDICTS = "dlcloud.benchmarks.harness.verdict_words"
NEVER = {"pydantic", "moto", "asyncssh", "rich", "click", "yaml", "invoke"}
CLOUDLESS = NEVER - {"click"} | {"boto3", "botocore"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_looks_imports_only_these_modules(command):
    collaborators, packages, within = COMMANDS[command]
    code = LOOKING.format(modules=[f"dlcloud.app.clusters.{command}", collaborators])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(json.loads(done.stdout))
    assert not {name.partition(".")[0] for name in imported} & NEVER
    assert {name for name in imported if name.startswith("dlcloud.benchmarks.harness.")} <= {VERDICTS}
    ours = [name.split(".") for name in imported if name.startswith("dlcloud.")]
    assert {name[1] for name in ours} <= packages
    for package, modules in (SHARED | within).items():
        assert {name[2] for name in ours if name[1] == package and len(name) > 2} <= modules, package
    if command == "status":
        assert not {"paramiko", "cryptography"} & imported
    else:
        assert "botocore" not in imported


@pytest.mark.parametrize("command", ["exec", "ssh"])
def test_a_cluster_of_this_home_is_reached_without_a_cloud(command, dlcloud, home):
    """EC2 is asked only if another machine may control the cluster, or this one has another address."""
    home.mkdir()
    with closing(Database(home / "store.sqlite")) as database:
        stored = Clusters(database)
        stored.add(cluster(cloud="local", state=ClusterState.READY))
        stored.put_members("c0ffee", [Member(instance=instance(host="127.0.0.1", ssh_port=1))])
    done = dlcloud(command, "sample", "--", "true")
    assert "i-0001" in done.stderr
    assert "paramiko" in done.modules
    assert not done.modules & CLOUDLESS
