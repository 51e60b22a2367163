"""Checkpoints of real scripts on an instance: what counts as whole, at a notice and without one."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import dlcloud.benchmarks
from dlcloud.resources.texts import template
from dlcloud.store.checkpoints import read_state
from tests.environments import ROOT
from tests.fakes.metadata import NOTICE, REBALANCE, Service

TIMEOUT_S = 240

SLOW_WRITER = """\
import pathlib, time
file = pathlib.Path("ckpt/state.txt")
step = int(file.read_text().split("/")[0]) if file.exists() else 0
print("begins at", step, flush=True)
while True:
    step += 1
    with file.open("w") as stream:  # never atomic, and open most of the time
        for part in (str(step), "/", str(step)):
            stream.write(part)
            stream.flush()
            time.sleep(0.2)
    time.sleep(0.4)
"""
ONLY_NEWEST = """\
import pathlib, time
for step in range(10**6):
    path = pathlib.Path(f"ckpt/step-{step}.txt")
    path.write_text(f"{step}/{step}")
    link = pathlib.Path("ckpt/last.new")
    link.symlink_to(path.name)
    link.replace("ckpt/last")
    for old in pathlib.Path("ckpt").glob("step-*.txt"):
        if old != path:
            old.unlink()
    time.sleep(0.3)
"""
SAVES_AT_SIGTERM = """\
import pathlib, signal, sys, time
def save(*_):
    with open("ckpt/state.txt", "w") as stream:
        for part in ("7", "/", "7"):
            stream.write(part)
            stream.flush()
            time.sleep(0.4)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(1000)
"""
IGNORES_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ONLY_NEWEST


class Instance:
    """A folder that stands for an instance, with a job whose checkpoints are kept."""

    def __init__(self, folder, script, **options):
        self.home, self.folder = folder, folder / "runs/one"
        (self.folder / "work").mkdir(parents=True)
        for name in ("job.py", "checkpoints.py"):
            (folder / name).write_text(template(name))
        shutil.copytree(Path(dlcloud.benchmarks.__file__).parent, self.folder / "benchmarks")
        (self.folder / "work/train.py").write_text(script)
        words = f"{sys.executable} -m benchmarks.command --output records.jsonl --case one --exact"
        command = options.pop("command", f"{sys.executable} train.py")
        self.command = f'cd .. && exec {words} --repeats 1 --folder work --run "{command}"\n'
        (self.folder / "command").write_text(self.command)
        self.metadata = Service()
        threading.Thread(target=self.metadata.serve_forever, args=(0.02,), daemon=True).start()
        kept = {
            "patterns": ["ckpt"],
            "first": "ckpt",
            "is_kept": True,
            "resume": True,
            "up": "u",
            "number": 0,
        }
        (self.folder / "checkpoints.json").write_text(json.dumps(kept | options))

    @property
    def environment(self):
        return {
            **os.environ,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.url,
            "DLCLOUD_ROOT": str(self.home),
        }

    def run(self, program, verb, *words):
        done = subprocess.run(
            [sys.executable, "-I", "-S", self.home / program, verb, self.folder, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self, kind):
        path = self.folder / "records.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [record for record in records if record["record"] == kind]

    def interrupt(self, seconds, path=NOTICE):
        moment = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = {"action": "terminate", "time": moment} if path == NOTICE else {"noticeTime": moment}
        self.metadata.documents[path] = json.dumps(document)

    def wait(self, holds):
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def has_ended(self):
        return (self.folder / "exit_status").exists()

    def state(self):
        """Return the files of the newest state, by name, and whether the program had been asked to stop."""
        text = self.run("checkpoints.py", "pick")
        content = json.loads(text)
        state = read_state(text, "here")
        for digest, size in state.sizes.items():
            assert (self.folder / "checkpoints/objects" / digest).stat().st_size == size
        files = {
            name: (self.folder / "checkpoints/objects" / entry["sha256"]).read_text()
            for name, entry in content["files"].items()
        }
        return files, content["links"], content["ended"]


@pytest.fixture
def instance(tmp_path):
    made = []

    def make(script, **options):
        made.append(Instance(tmp_path, script, **options))
        made[-1].run("job.py", "start")
        return made[-1]

    yield make
    for one in made:
        one.run("job.py", "stop")
        one.metadata.shutdown()
        one.metadata.server_close()


def is_whole(text):
    first, _, second = text.partition("/")
    return first == second != ""


def test_a_file_that_is_being_written_is_never_part_of_a_state(instance):
    job = instance(SLOW_WRITER)
    job.wait(lambda: len(job.records("checkpoint")) >= 2)
    files, _, _ = job.state()
    assert is_whole(files["ckpt/state.txt"])


def test_a_file_that_is_closed_while_it_is_looked_at_is_not_open(tmp_path, monkeypatch):
    is_open = runpy.run_path(str(ROOT / "templates" / "checkpoints.py"))["is_open"]
    with (tmp_path / "state.txt").open("w"):
        assert is_open(tmp_path, {"state.txt": ()})
        monkeypatch.setattr(Path, "read_text", lambda _: "")  # what the kernel gives of one that is gone
        assert not is_open(tmp_path, {"state.txt": ()})
    assert not is_open(tmp_path, {"state.txt": ()})


def test_a_program_without_a_handler_leaves_the_state_from_before_the_signal(instance):
    job = instance(SLOW_WRITER)
    job.wait(lambda: job.records("checkpoint"))
    job.interrupt(60)
    job.wait(job.has_ended)
    assert [record["reason"] for record in job.records("notice")] == ["an interruption notice"]
    (stopped,) = job.records("stopped")
    saved = json.loads(job.run("checkpoints.py", "pick"))
    assert 0 < saved["run_s"] <= stopped["run_s"]
    files, _, ended = job.state()
    assert is_whole(files["ckpt/state.txt"])
    assert not ended


def test_what_a_program_saves_at_the_signal_is_a_state(instance):
    job = instance(SAVES_AT_SIGTERM)
    job.wait(lambda: "ready" in (job.folder / "log").read_text())
    job.interrupt(60)
    job.wait(job.has_ended)
    assert job.state() == ({"ckpt/state.txt": "7/7"}, {}, True)
    assert (job.folder / "exit_status").read_text() != "0"


def test_a_shell_that_ends_first_does_not_cut_the_save_off(instance):
    job = instance(SAVES_AT_SIGTERM, command=f"echo begin\n{sys.executable} train.py\necho end")
    job.wait(lambda: "ready" in (job.folder / "log").read_text())
    job.interrupt(60)
    job.wait(job.has_ended)
    assert job.state()[0] == {"ckpt/state.txt": "7/7"}


def test_only_the_newest_file_and_a_link_to_it_are_one_state_that_is_restored_whole(instance):
    job = instance(ONLY_NEWEST)
    job.wait(lambda: len(job.records("checkpoint")) >= 2)
    files, links, _ = job.state()
    ((name, text),) = files.items()
    assert links == {"ckpt/last": Path(name).name}
    state = (job.folder / "checkpoints/picked.json").read_text()
    job.run("job.py", "stop")
    (job.folder / "work/ckpt/of-an-earlier-run.txt").touch()
    (job.folder / "checkpoints/restore.json").write_text(state)
    job.run("checkpoints.py", "restore", "checkpoint 2")
    folder = job.folder / "work/ckpt"
    assert sorted(path.name for path in folder.iterdir()) == sorted(["last", Path(name).name])
    assert (folder / "last").read_text() == text
    assert 0 < float((job.folder / "records.jsonl.worked").read_text()) == json.loads(state)["worked_s"]


def test_a_program_that_ignores_the_signal_is_copied_shortly_before_the_end(instance):
    job = instance(IGNORES_SIGTERM)
    job.wait(lambda: job.records("checkpoint"))
    job.interrupt(24)
    job.wait(lambda: any(record["ended"] for record in job.records("checkpoint")))
    assert not job.has_ended()
    assert is_whole(next(iter(job.state()[0].values())))


def test_a_command_of_its_own_asks_the_program_to_stop(instance):
    script = SAVES_AT_SIGTERM.replace("signal.SIGTERM, save", "signal.SIGUSR1, save")
    job = instance(script, on_notice="kill -USR1 $DLCLOUD_PID")
    job.wait(lambda: "ready" in (job.folder / "log").read_text())
    job.run("checkpoints.py", "notice", "20", "Ctrl-C")
    job.wait(job.has_ended)
    assert job.state()[0] == {"ckpt/state.txt": "7/7"}


@pytest.mark.parametrize(("counts", "notices"), [(True, 1), (False, 0)])
def test_a_rebalance_recommendation_counts_if_the_recipe_says_so(instance, counts, notices):
    job = instance(ONLY_NEWEST, on_rebalance=counts)
    job.interrupt(0, REBALANCE)
    job.wait(lambda: job.has_ended() or len(job.records("checkpoint")) >= 2)
    assert len(job.records("notice")) == notices


def test_the_end_of_the_budget_is_a_notice(instance, tmp_path):
    (tmp_path / "var/lib/dlcloud").mkdir(parents=True)
    (tmp_path / "var/lib/dlcloud/ends-at").write_text(str(time.time() + 100))
    job = instance(ONLY_NEWEST)
    job.wait(job.has_ended)
    assert [record["reason"] for record in job.records("notice")] == ["the end of the budget"]


def test_a_content_that_was_not_copied_whole_is_not_restored(instance):
    job = instance(ONLY_NEWEST)
    job.wait(lambda: job.records("checkpoint"))
    job.state()
    job.run("job.py", "stop")
    state = (job.folder / "checkpoints/picked.json").read_text()
    (job.folder / "checkpoints/restore.json").write_text(state)
    for path in (job.folder / "checkpoints/objects").iterdir():
        path.write_text("cut")
    before = sorted(path.name for path in (job.folder / "work/ckpt").iterdir())
    with pytest.raises(AssertionError, match="was not copied whole"):
        job.run("checkpoints.py", "restore", "checkpoint 1")
    assert sorted(path.name for path in (job.folder / "work/ckpt").iterdir()) == before


def test_a_program_that_fails_by_itself_leaves_what_had_settled(instance):
    job = instance("import time\nopen('ckpt/a', 'w').write('1/1')\ntime.sleep(6)\nraise SystemExit(3)\n")
    job.wait(job.has_ended)
    assert job.state() == ({"ckpt/a": "1/1"}, {}, False)
    assert job.records("notice") == []


def test_stopping_a_job_does_not_wait_for_its_checkpoints(instance):
    job = instance(IGNORES_SIGTERM)
    job.wait(lambda: job.records("checkpoint"))
    job.run("job.py", "stop")
    supervisor = int((job.folder / "pid").read_text())
    job.wait(lambda: is_gone(supervisor))


def is_gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
