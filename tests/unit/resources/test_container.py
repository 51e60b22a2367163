"""container.py with programs that note their calls and, where an image is named, with real podman."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlcloud.launch.setup import RUN_CONTAINER, send_command
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.resources.texts import template
from dlcloud.trainer import masking
from tests.needs import needs

IMAGE = "pytorch/pytorch:2.9"
REGISTRY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
LIMIT_S = 600.0
NOTE = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$NOTES"
case "$(basename "$0") $1" in
  "sudo -n") shift 2; exec "$@";;
  "aws ecr") echo a-password;;
  "docker login"|"podman login") cat >> "$NOTES";;
  "docker pull"|"podman pull") exit "${PULL:-0}";;
  "docker image"|"podman image") exit "${INSPECT:-0}";;
  "docker version") exit "${DOCKER:-0}";;
esac
"""


class Instance:
    """A home and a PATH with nothing but these programs."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.work = self.home / "dlcloud" / "runs" / "r-1" / "work"
        self.work.mkdir(parents=True)
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.notes = folder / "notes"
        self.variables = {}
        for name in ("sh", "basename", "cat"):
            (self.programs / name).symlink_to(shutil.which(name))
        for name in ("container.py", "job.py"):
            (self.home / "dlcloud" / name).write_text(template(name))
        shutil.copy(masking.__file__, self.home / "dlcloud")

    def has(self, *names):
        for name in names:
            (self.programs / name).write_text(NOTE)
            (self.programs / name).chmod(0o755)
        return self

    def call(self, *words):
        """Run container.py; return what failed, and the commands that it ran."""
        own = {"PATH": str(self.programs), "HOME": str(self.home), "NOTES": str(self.notes)}
        program = self.home / "dlcloud" / "container.py"
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(program), *words],
            env={**own, **self.variables},
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return done.stderr if done.returncode else "", lines


@pytest.fixture
def instance(tmp_path):
    return Instance(tmp_path)


def options(line):
    words = line.split()
    return {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def test_podman_runs_a_program_with_this_network_folder_and_home(instance):
    _, (line,) = instance.has("podman", "docker").call("run", IMAGE, "n-1", "BATCH,TOKEN", "sh", "../program")
    assert line.startswith("podman run --rm --interactive --name n-1 --network host --ipc host ")
    assert line.endswith(f"--entrypoint sh {IMAGE} ../program")
    assert options(line)["--volume"] == f"{instance.home}:{instance.home}"
    assert options(line)["--workdir"] == str(instance.work)
    assert " --env BATCH --env TOKEN " in line
    assert ("--userns keep-id" in line) is (os.getuid() != 0)
    assert "nvidia" not in line


def test_what_only_the_local_ec2_has_is_passed_on(instance):
    _, (line,) = instance.has("podman").call("run", IMAGE, "n-1", "-", "sh")
    assert "METADATA" not in line
    assert "--label" not in line
    address = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
    instance.variables |= {address: "http://127.0.0.1:80", "DLCLOUD_ROOT": "/instances/i-1"}
    _, (_, line) = instance.call("run", IMAGE, "n-1", "-", "sh")
    assert f" --env {address} " in line
    assert options(line)["--label"] == "DLCLOUD_ROOT=/instances/i-1"


def test_data_on_an_instance_store_is_in_the_container(instance, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (instance.home / "dlcloud" / "data").symlink_to(store)
    _, (line,) = instance.has("podman").call("run", IMAGE, "n-1", "-", "sh")
    assert f" --volume {instance.home}:{instance.home} " in line
    assert f" --volume {store}:{store} " in line


def test_docker_runs_it_as_this_user_and_passes_gpus_through(instance):
    _, lines = instance.has("docker", "nvidia-smi").call("run", IMAGE, "n-1", "-", "sh", "../program")
    assert options(lines[-1])["--user"] == f"{os.getuid()}:{os.getgid()}"
    assert options(lines[-1])["--gpus"] == "all"
    (instance.programs / "docker").unlink()
    _, lines = instance.has("podman").call("run", IMAGE, "n-1", "-", "sh", "../program")
    assert options(lines[-1])["--device"] == "nvidia.com/gpu=all"


def test_docker_that_needs_root_is_called_by_sudo_with_the_variables(instance):
    instance.variables["DOCKER"] = "1"
    _, lines = instance.has("docker", "sudo").call("run", IMAGE, "n-1", "TOKEN", "sh", "../program")
    assert lines[1].startswith("sudo -n --preserve-env=TOKEN docker run ")
    assert lines[2].startswith("docker run ")


def test_an_image_of_ecr_is_pulled_by_the_role_and_the_login_ends(instance):
    _, lines = instance.has("podman", "aws").call("pull", f"{REGISTRY}/team/train:1")
    assert lines == [
        "aws ecr get-login-password --region eu-west-1",
        f"podman login --username AWS --password-stdin {REGISTRY}",
        "a-password",
        f"podman pull -q {REGISTRY}/team/train:1",
        f"podman logout {REGISTRY}",
    ]


@pytest.mark.parametrize(
    ("programs", "variables", "image", "words"),
    [
        ((), {}, IMAGE, "neither podman nor docker"),
        (("podman",), {}, f"{REGISTRY}/x", "needs the AWS CLI"),
        (("podman",), {"PULL": "125", "INSPECT": "1"}, IMAGE, "could not be pulled\n"),
        (
            ("podman",),
            {"PULL": "125", "INSPECT": "1", "DLCLOUD_ROOT": "/i"},
            "localhost/mine",
            "only with DLCLOUD_LOCAL_ISOLATION=none",
        ),
    ],
)
def test_what_is_missing_is_named(instance, programs, variables, image, words):
    instance.variables.update(variables)
    assert words in instance.has(*programs).call("pull", image)[0]


def test_an_image_that_was_made_here_is_not_asked_for(instance):
    _, lines = instance.has("podman").call("pull", "localhost/own:1")
    assert lines == ["podman image inspect localhost/own:1"]


def test_an_image_that_is_here_needs_no_registry(instance):
    instance.variables["PULL"] = "125"
    assert instance.has("podman").call("pull", IMAGE)[0] == ""


class Files:
    """A connection that keeps what is sent."""

    def __init__(self):
        self.files = {}

    def send_bytes(self, content, target, *, mode=0o644):  # noqa: ARG002  the protocol's
        self.files[target] = content.decode()


def test_a_run_in_an_image_has_no_value_in_any_file():
    connection = Files()
    environment = JobEnvironment(variables={"BATCH": "8"}, secrets={"TOKEN": "value-0001"})
    folder = "dlcloud/runs/r-1"
    send_command(connection, folder, "exec python3 x\n", image=IMAGE, environment=environment)
    names = "BATCH,TOKEN,DLCLOUD_SECRETS"
    assert connection.files == {
        f"{folder}/program": "exec python3 x\n",
        f"{folder}/stop": f"exec {RUN_CONTAINER} stop dlcloud-r-1\n",
        f"{folder}/command": f"exec {RUN_CONTAINER} run {IMAGE} dlcloud-r-1 {names} sh ../program\n",
    }


REAL_IMAGE = os.environ.get("DLCLOUD_TEST_PODMAN_IMAGE", "")


@needs("podman")
@pytest.mark.skipif(not REAL_IMAGE, reason="DLCLOUD_TEST_PODMAN_IMAGE names an image with python3 for podman")
def test_real_podman_runs_a_job_masks_its_secret_and_ends_it(instance):
    folder, connection = instance.work.parent, Files()
    environment = JobEnvironment(variables={"BATCH": "8"}, secrets={"TOKEN": "value-0001"})
    text = (
        "python3 -c \"import os; open('made', 'w').write(os.environ['TOKEN']); "
        "print('batch', os.environ['BATCH'], os.environ['TOKEN'], flush=True)\"\n"
        "[ -e stay ] && exec sleep 600\nexit 7\n"
    )
    send_command(connection, str(folder), text, image=REAL_IMAGE, environment=environment)
    for path, content in connection.files.items():
        Path(path).write_text(content)

    def job(*words, given=b""):
        command = [sys.executable, "-I", "-S", "dlcloud/job.py", *words]
        variables = {**os.environ, "HOME": str(instance.home)}
        done = subprocess.run(
            command, cwd=instance.home, input=given, env=variables, capture_output=True, check=True
        )
        return done.stdout.decode()

    run = str(folder.relative_to(instance.home))
    job("start", run, "-", given=environment.encode())
    assert "batch 8 ***\n" in job("follow", run, "log", "0")
    assert json.loads(job("state", run)) == {"state": "ended", "exit_status": 7}
    made = instance.work / "made"
    assert (made.read_text(), made.stat().st_uid) == ("value-0001", os.getuid())
    for name in ("pid", "exit_status", "log"):
        (folder / name).unlink()
    (instance.work / "stay").touch()
    job("start", run, "-", given=environment.encode())
    deadline = time.monotonic() + LIMIT_S
    while "batch" not in (folder / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    job("stop", run)
    listed = subprocess.run(
        ["podman", "ps", "-aq", "--filter", "name=dlcloud-r-1"], capture_output=True, check=True
    )
    assert listed.stdout == b""
