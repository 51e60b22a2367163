"""The uploader: a checkpoint is whole in S3 before it is recorded, and only the coordinator stores it."""

import hashlib
import json
import signal
import sys
from pathlib import Path

import pytest

from dlcloud.trainer import uploader as module
from dlcloud.trainer.records import EventName, Records
from dlcloud.trainer.uploader import Uploader, UploadError

TARGET = "s3://bucket/run"


class Bucket:
    """A tool that keeps objects in memory, and fails where a test says so."""

    def __init__(self):
        self.objects, self.order, self.failing = {}, [], ""

    def __call__(self, *words):
        verb, *names = [word for word in words if word != "--json"]
        if self.failing and self.failing in names[-1]:
            raise UploadError("S3 is away")
        if verb == "cp":
            self.objects[names[1]] = Path(names[0]).read_bytes()
            self.order.append(names[1].rpartition("/")[2].partition("-")[0])
        if verb == "rm":
            del self.objects[names[0]]
        prefix = names[0].rstrip("*")
        lines = [
            json.dumps({"key": key, "size": len(content)})
            for key, content in self.objects.items()
            if key.startswith(prefix)
        ]
        return "\n".join(lines)

    def steps(self, kind):
        return sorted(int(name.split("/")[-1].split("-")[1]) for name in self.objects if f"/{kind}-" in name)


class Rig:
    def __init__(self, folder):
        self.folder, self.bucket, self.now = folder, Bucket(), 100.0
        (folder / "checkpoints").mkdir()
        self.coordinate(is_coordinator=True)
        self.records = Records(path=folder / "records.jsonl", run="r", worker="w")
        self.records.__enter__()
        self.uploader = Uploader(
            folder=folder, target=TARGET, records=self.records, call=self.bucket, clock=lambda: self.now
        )

    def coordinate(self, *, is_coordinator):
        (self.folder / "control.json").write_text(json.dumps({"coordinates": is_coordinator}))

    def write(self, step):
        content = f"state of {step}".encode()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        (self.folder / "checkpoints" / f"step-{step:012d}-{digest}.pt").write_bytes(content)

    def events(self):
        lines = (self.folder / "records.jsonl").read_text().splitlines()
        return [(record["event"], record["step"]) for record in map(json.loads, lines)]


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.records.__exit__()


def test_a_checkpoint_is_stored_before_its_manifest_and_then_recorded(rig):
    rig.uploader.poll()
    rig.write(5)
    rig.uploader.poll()
    rig.uploader.poll()
    assert rig.bucket.order == ["step", "manifest"]
    assert rig.events() == [("checkpoint_stored", 5)]


def test_only_the_coordinator_stores(rig):
    rig.coordinate(is_coordinator=False)
    rig.write(5)
    rig.uploader.poll()
    assert rig.uploader.flush()
    assert rig.bucket.objects == {}
    rig.coordinate(is_coordinator=True)
    rig.uploader.poll()
    assert rig.bucket.steps("manifest") == [5]


@pytest.mark.parametrize("part", ["/step-", "/manifest-"])
def test_what_s3_did_not_confirm_is_not_recorded_as_stored(rig, part):
    rig.bucket.failing = part
    rig.write(5)
    rig.uploader.poll()
    assert rig.events() == [("checkpoint_store_failed", 5)]
    assert rig.bucket.steps("manifest") == []
    rig.bucket.failing = ""
    rig.uploader.poll()
    assert len(rig.events()) == 1, "it waits before it tries again"
    rig.now += module.RETRY_S
    rig.write(6)
    rig.uploader.poll()
    assert rig.events()[1:] == [("checkpoint_stored", 6)]


def test_the_newest_two_are_kept(rig):
    for step in (1, 2, 3, 4):
        rig.write(step)
        rig.uploader.poll()
    assert rig.bucket.steps("manifest") == rig.bucket.steps("step") == [3, 4]


@pytest.mark.parametrize(("last", "finished"), [(5, [5]), (6, []), (None, [])])
def test_the_end_is_stored_only_with_the_checkpoint_of_the_last_step(rig, last, finished):
    rig.write(5)
    if last is not None:
        rig.records.event(EventName.DONE, "the last step is committed", step=last)
    assert rig.uploader.flush()
    rig.uploader.finish("c0ffee")
    assert rig.bucket.steps("finished") == finished
    assert all(name.endswith("-c0ffee.json") for name in rig.bucket.objects if "/finished-" in name)


def test_the_last_checkpoint_is_stored_after_the_end_of_the_agent(tmp_path, monkeypatch):
    bucket = Bucket()
    monkeypatch.setattr(module, "call_tool", lambda _tool, _variables, *words: bucket(*words))
    (tmp_path / "control.json").write_text('{"coordinates": true}')
    digest = "0" * 32
    name = f"checkpoints/step-000000000009-{digest}.pt"
    program = f"import os, sys; os.mkdir('checkpoints'); open('{name}', 'w').close(); sys.exit(10)"
    monkeypatch.chdir(tmp_path)
    words = ["--folder", str(tmp_path), "--to", TARGET + "/", "--tool", "s5cmd"]
    words += ["--run", "r", "--worker", "w"]
    assert module.main([*words, "--", sys.executable, "-c", program]) == 10
    assert bucket.steps("manifest") == [9]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
