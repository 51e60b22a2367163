"""What the commands that only look at a cluster import: a module too many is paid at every call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
PACKAGES = {"app", "cloud", "detached", "local", "model", "planning", "recipe", "report", "resources"}
PACKAGES |= {"benchmarks", "results", "scheduling", "store", "system"}
OVER_SSH = PACKAGES | {"launch", "ssh"}
PLANNING = {
    "batch_queue",
    "control_claim",
    "launch_request",
    "left_out",
    "placement",
    "protocols",
    "quota",
    "reserved_capacity",
}
PLANNING |= {"storage", "successors"}
RECIPE = {"data_set"}
LAUNCH = {"admit", "build_failures", "container", "managed", "peers", "remote_jobs", "setup"}
COMMANDS = {
    "status": (
        CLOUDS,
        PACKAGES - {"recipe"},
        {
            "planning": {"left_out"},
            "results": {"cost", "result", "run_progress"},
            "cloud": {"api", "compute", "offers", "storage"},
            "report": {"durations", "layout", "progress", "table"},
        },
    ),
    "ssh": (MACHINES, OVER_SSH, {"planning": PLANNING, "recipe": RECIPE, "launch": {"admit"}}),
    "logs": (
        MACHINES,
        OVER_SSH,
        {"planning": PLANNING, "recipe": RECIPE | {"job_environment"}, "launch": LAUNCH},
    ),
}
VERDICTS = "dlcloud.benchmarks.harness.verdict_words"
NEVER = {"boto3", "s3transfer", "pydantic", "moto", "asyncssh", "rich", "click"}


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
    for package, modules in within.items():
        assert {name[2] for name in ours if name[1] == package and len(name) > 2} <= modules, package
    if command == "status":
        assert not {"paramiko", "cryptography", "yaml"} & imported
