"""templates/storage.py on a machine, with a made-up s5cmd that reads folders in place of buckets."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "templates" / "storage.py"
TOOL = """#!{python}
import hashlib, json, os, shlex, shutil, sys
root = os.environ["BUCKETS"]
words = [w for w in sys.argv[1:] if not w.startswith("--") and w != "error"]
def here(uri): return os.path.join(root, uri[len("s3://"):])
def copy(source, target):
    with open(os.path.join(root, "calls"), "a") as calls: calls.write(source + "\\n")
    data = open(here(source), "rb").read()
    if os.path.exists(os.path.join(root, "cut")):
        os.remove(os.path.join(root, "cut")); data = data[:-1] + b"?"
    open(target, "wb").write(data)
if words[0] == "ls" and os.path.exists(os.path.join(root, "refusal")):
    sys.stderr.write(open(os.path.join(root, "refusal")).read())
    os.remove(os.path.join(root, "refusal"))
    sys.exit(1)
if words[0] == "ls":
    base = here(words[1][:-1])
    for folder, _, names in sorted(os.walk(base)):
        for name in sorted(names):
            path = os.path.join(folder, name)
            data = open(path, "rb").read()
            etag = os.environ.get("ETAG") or hashlib.md5(data).hexdigest()
            key = "s3://" + os.path.relpath(path, root)
            print(json.dumps(dict(key=key, size=len(data), type="file", etag=etag)))
    if "STRAY" in os.environ:
        print(json.dumps(dict(key=os.environ["STRAY"], size=1, type="file", etag="x")))
elif words[0] == "run":
    for line in sys.stdin:
        _, _, source, target = shlex.split(line)
        copy(source, target)
else:
    copy(words[1], words[2])
"""


@pytest.fixture
def machine(tmp_path):
    bucket = tmp_path / "buckets" / "b" / "set"
    (bucket / "deep").mkdir(parents=True)
    (bucket / "one").write_bytes(b"1" * 100)
    (bucket / "deep" / 'two "words"').write_bytes(b"2" * 200)
    tool = tmp_path / "s5cmd"
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    return Machine(home, tool, bucket)


class Machine:
    def __init__(self, home, tool, bucket):
        self.home, self.tool, self.bucket = home, tool, bucket
        self.content = home / "dlcloud" / "data" / "key" / "content"

    def ask(self, verb, *, ok=True, **order):
        done = subprocess.run(
            [sys.executable, "-I", "-S", PROGRAM, verb],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            cwd=self.home,
            env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"},
            check=False,
        )
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if ok else done.stderr

    def copy(self, **variables):
        root = {"BUCKETS": str(self.bucket.parents[1]), **variables}
        return self.ask("copy", key="key", source="s3://b/set", tool=str(self.tool), variables=root)

    def calls(self):
        path = self.bucket.parents[1] / "calls"
        return path.read_text().splitlines() if path.exists() else []


def test_a_prefix_is_copied_once_and_then_only_what_changed(machine):
    first = machine.copy()
    assert (first["files"], first["bytes"], first["copied"], first["by_size"]) == (2, 300, 2, 0)
    assert (machine.content / "deep" / 'two "words"').read_bytes() == b"2" * 200
    assert machine.copy()["copied"] == 0
    (machine.bucket / "one").write_bytes(b"3" * 100)
    (machine.bucket / "deep" / 'two "words"').unlink()
    assert machine.copy()["copied"] == 1
    assert [path.name for path in machine.content.rglob("*") if path.is_file()] == ["one"]


@pytest.mark.parametrize("key", ["../../../.ssh/authorized_keys", "deep/../../../x", "/etc/x"])
def test_an_object_whose_key_leaves_the_folder_is_refused(machine, key):
    order = {"BUCKETS": str(machine.bucket.parents[1]), "STRAY": f"s3://b/set/{key}"}
    said = machine.ask(
        "copy", ok=False, key="key", source="s3://b/set", tool=str(machine.tool), variables=order
    )
    assert "would be written outside of its folder" in said
    assert not [path for path in machine.home.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_copy_that_was_interrupted_goes_on(machine):
    machine.copy()
    (machine.content / "one").write_bytes(b"1" * 50)
    before = len(machine.calls())
    assert machine.copy()["copied"] == 1
    assert machine.calls()[before:] == ["s3://b/set/one"]


def test_content_that_differs_from_its_etag_is_copied_again(machine):
    (machine.bucket.parents[1] / "cut").touch()
    assert machine.copy()["copied"] == 2
    assert (machine.content / "one").read_bytes() == b"1" * 100
    assert len(machine.calls()) == 3


def test_an_etag_that_is_no_md5_leaves_the_size(machine):
    assert machine.copy(ETAG="0" * 32)["by_size"] == 2


def test_an_etag_of_parts_is_verified(machine):
    content = os.urandom(9 * 1024 * 1024)
    for path in machine.bucket.rglob("*"):
        path.is_file() and path.unlink()
    (machine.bucket / "large").write_bytes(content)
    parts = [content[: 8 << 20], content[8 << 20 :]]
    digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    assert machine.copy(ETAG=f"{digest}-2")["by_size"] == 0


def test_the_workload_finds_the_data_where_it_says(machine):
    machine.copy()
    machine.ask("link", key="key", at="dlcloud/runs/r/work/data/set")
    assert (machine.home / "dlcloud/runs/r/work/data/set/one").read_bytes() == b"1" * 100
    (machine.home / "work").mkdir()
    assert "is there already" in machine.ask("link", ok=False, key="key", at="work")


def test_a_copy_describes_itself_to_peers(machine):
    assert machine.ask("find", key="key")["complete"] is False
    machine.copy()
    described = machine.ask("find", key="key")
    assert (described["name"], described["complete"]) == ("key", True)
    assert described["folder"] == "dlcloud/data", "the peer's home may be another folder"


def test_a_rehearsal_uses_a_folder_and_no_disk(machine):
    assert machine.ask("place") == {"root": str(machine.home / "dlcloud/data"), "instance_store": False}


STORE = {"path": "/dev/nvme1n1", "model": "Amazon EC2 NVMe Instance Storage", "mountpoint": None}
ROOT = {"path": "/dev/nvme0n1", "model": "Amazon Elastic Block Store", "mountpoint": "/"}
MOUNTED = "/proc"
"""Stands for the folder that the image mounts the instance stores at."""


@pytest.fixture
def place(tmp_path):
    """Run `place` on a machine with these block devices; return its answer and the commands of root."""
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "sudo.log"
    for name, text in (
        ("lsblk", f"cat {tmp_path}/devices"),
        ("sudo", f'echo "$@" >> {log}; [ $1 != blkid ]'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(*devices, image_mount):
        (tmp_path / "devices").write_text(json.dumps({"blockdevices": devices}))
        text = PROGRAM.read_text().replace("/opt/dlami/nvme", str(image_mount))
        program = tmp_path / "storage.py"
        program.write_text(text.replace("IMAGE_MOUNT_S = 120.0", "IMAGE_MOUNT_S = 0.0"))
        home = tmp_path / "home"
        home.mkdir()
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        environment.pop("AWS_EC2_METADATA_SERVICE_ENDPOINT", None)
        done = subprocess.run(
            [sys.executable, "-I", "-S", program, "place"],
            input="{}",
            capture_output=True,
            text=True,
            cwd=home,
            env=environment,
            check=True,
        )
        return json.loads(done.stdout), log.read_text() if log.exists() else ""

    return run


def test_data_go_where_the_image_has_mounted_the_instance_stores(place):
    joined = {**STORE, "children": [{"path": "/dev/mapper/vg.01-lv_ephemeral", "mountpoint": MOUNTED}]}
    answer, commands = place(ROOT, joined, image_mount=MOUNTED)
    assert answer == {"root": f"{MOUNTED}/dlcloud-data", "instance_store": True}
    assert "mkfs" not in commands, "the image has formatted them"


def test_an_instance_store_that_nothing_uses_is_formatted(place, tmp_path):
    answer, commands = place(ROOT, STORE, image_mount=tmp_path / "none" / "nvme")
    assert answer == {"root": "/mnt/dlcloud-data/dlcloud-data", "instance_store": True}
    assert "mkfs.ext4 -q -E nodiscard -m 0 /dev/nvme1n1" in commands


def test_disks_that_an_image_uses_and_has_not_mounted_are_left_alone(place, tmp_path):
    joined = {**STORE, "children": [{"path": "/dev/mapper/vg.01-lv_ephemeral", "mountpoint": None}]}
    answer, commands = place(ROOT, joined, image_mount=tmp_path / "nvme")
    assert answer["instance_store"] is False
    assert commands == ""


def test_a_checkpoint_is_fetched_whole_or_not_at_all(machine):
    digest = hashlib.blake2b(b"state", digest_size=16).hexdigest()
    (machine.bucket / f"step-000000000007-{digest}.pt").write_bytes(b"state")
    (machine.bucket / f"step-000000000009-{digest}.pt").write_bytes(b"broken")
    root = {"BUCKETS": str(machine.bucket.parents[1])}
    order = {
        "source": "s3://b/set",
        "folder": "run/checkpoints",
        "tool": str(machine.tool),
        "variables": root,
    }
    path = Path(machine.ask("restore", step=7, **order)["path"])
    assert (machine.home / path).read_bytes() == b"state"
    assert "gone, or broken" in machine.ask("restore", ok=False, step=9, **order)
    assert len(list((machine.home / "run/checkpoints").iterdir())) == 1


def test_a_mount_without_fuse_or_mount_s3_names_what_is_missing(machine):
    refusal = machine.ask("mount", ok=False, source="s3://b/set", at="data", variables={})
    assert "use mode: copy" in refusal


def test_a_role_that_is_not_known_yet_is_waited_for(machine):
    root = machine.bucket.parents[1]
    for refusal in ("NoCredentialProviders: no valid providers in chain", "AccessDenied: Access Denied"):
        (root / "refusal").write_text(refusal)
        assert machine.copy()["files"] == 2
    (root / "refusal").write_text("NoSuchBucket: The specified bucket does not exist")
    order = {"source": "s3://b/set", "tool": str(machine.tool), "variables": {"BUCKETS": str(root)}}
    assert "NoSuchBucket" in machine.ask("copy", ok=False, key="other", **order)
