"""job.py, run as on an instance: detached, once, followed from any byte, and ended with all it started."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlcloud.resources.texts import template
from dlcloud.trainer import masking

LIMIT_S = 600.0
PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2), linux/prctl.h."""


class Job:
    """A job in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.script = folder / "job.py"
        self.job = folder / "runs" / "r-1"
        self.job.mkdir(parents=True)
        self.script.write_text(template("job.py"))
        shutil.copy(masking.__file__, folder)

    def command(self, text):
        (self.job / "command").write_text(text)
        return self

    def __call__(self, verb, *words):
        return self.begin(verb, *words).communicate(timeout=LIMIT_S)[0]

    def begin(self, verb, *words):
        """Start a verb; paths are relative, as they are on an instance."""
        return subprocess.Popen(
            [sys.executable, "job.py", verb, "runs/r-1", *words], cwd=self.folder, stdout=subprocess.PIPE
        )

    @property
    def state(self):
        return json.loads(self("state"))

    @property
    def supervisor(self):
        return int((self.job / "pid").read_text())

    def until(self, check, what):
        deadline = time.monotonic() + LIMIT_S
        while not (found := check()):
            assert time.monotonic() < deadline, f"never: {what}; the log: {(self.job / 'log').read_text()}"
            time.sleep(0.02)
        return found

    def wait_for(self, name):
        """Wait for a file that the program writes, and return what it says."""
        path = self.job / "work" / name
        self.until(lambda: path.exists() and path.read_text().endswith("\n"), name)
        return path.read_text().strip()


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    if (made.job / "pid").exists():
        made("stop")


def alive(pid):
    """True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between open and read
        return False


def test_a_job_goes_from_new_over_running_to_ended(job):
    assert job.state == {"state": "new", "exit_status": None}
    job.command("while [ ! -e go ]; do sleep 0.02; done; echo out; echo err >&2; exit 7\n")("start")
    assert job.state == {"state": "running", "exit_status": None}
    (job.job / "work" / "go").touch()
    assert b"out\nerr\n" in job("follow", "log", "0")
    assert job.state == {"state": "ended", "exit_status": 7}


def test_a_second_start_does_nothing_also_when_the_job_has_ended(job):
    job.command("echo once >> ../count\n")
    starts = [job.begin("start") for _ in range(4)]
    for each in starts:
        each.communicate(timeout=LIMIT_S)
    job("follow", "log", "0")
    job("start")
    assert (job.job / "count").read_text() == "once\n"


def test_a_job_is_laid_out_and_started_at_once(job):
    base = job.folder / "base"
    (base / "work").mkdir(parents=True)
    (base / "work" / "sent").write_text("sent\n")
    shutil.rmtree(job.job)
    layout = {
        "work": "base/work",
        "links": {"beside": "base"},
        "files": {"work/values": "values\n", "command": "cat sent values ../beside/work/sent\n"},
    }
    for _ in range(2):
        command = [sys.executable, "job.py", "start", "runs/r-1", "-"]
        subprocess.run(command, cwd=job.folder, input=json.dumps(layout).encode(), check=True)
    assert job("follow", "log", "0") == b"sent\nvalues\nsent\n"
    assert job.state == {"state": "ended", "exit_status": 0}


def test_a_job_runs_in_its_folder_without_input_in_its_session(job):
    job.command("pwd; cat; ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat\n")("start")
    folder, session = job("follow", "log", "0").decode().split()
    assert folder == str(job.job / "work")
    assert int(session) == job.supervisor != os.getsid(0)


def test_a_file_is_followed_whole_from_any_byte(job):
    job.command("for i in 1 2 3 4 5 6 7 8 9; do echo line $i >> ../records.jsonl; sleep 0.03; done\n")(
        "start"
    )
    whole = job("follow", "records.jsonl", "0")
    assert whole == b"".join(b"line %d\n" % number for number in range(1, 10))
    assert job("follow", "records.jsonl", "10") == whole[10:]
    assert job("follow", "records.jsonl", str(len(whole))) == b""
    assert job("follow", "missing", "0") == b""


def test_it_is_noted_how_long_the_log_was_when(job):
    job.command("echo begun; sleep 0.2; echo ended")("start")
    job("follow", "log", "0")
    times = job.job / "log.times"
    lines = ["0 0"]
    until = time.time() + LIMIT_S
    while lines[-1].split()[1] != str(len("begun\nended\n")) and time.time() < until:
        time.sleep(0.05)
        lines = times.read_text().splitlines() or lines
    assert lines[-1].split()[1] == str(len("begun\nended\n"))
    assert abs(float(lines[-1].split()[0]) - time.time()) < 60


def test_a_follower_that_goes_away_ends_nothing(job):
    job.command("while [ ! -e go ]; do echo x; sleep 0.02; done; exit 0\n")("start")
    follower = job.begin("follow", "log", "0")
    assert follower.stdout.read(1) == b"x"
    follower.kill()
    follower.communicate()
    assert job.state["state"] == "running"
    (job.job / "work" / "go").touch()
    job("follow", "log", "0")
    assert job.state == {"state": "ended", "exit_status": 0}


@pytest.mark.parametrize(("name", "status"), [("TERM", 143), ("KILL", 137), ("SEGV", 139)])
def test_a_program_that_a_signal_ends_has_the_status_of_that_signal(job, name, status):
    job.command(f"kill -{name} $$\n")("start")
    job("follow", "log", "0")
    assert job.state == {"state": "ended", "exit_status": status}


def test_a_job_whose_supervisor_was_killed_is_lost(job):
    job.command("echo $$ > pid; exec sleep 60\n")("start")
    program = int(job.wait_for("pid"))
    os.kill(job.supervisor, signal.SIGKILL)
    job.until(lambda: not alive(job.supervisor), "the supervisor's end")
    job.until(lambda: job.state["state"] == "lost", "the job to be lost")
    assert job.state == {"state": "lost", "exit_status": None}
    assert alive(program)
    job("stop")
    job.until(lambda: not alive(program), "the program's end")


def test_a_killed_supervisor_that_nobody_reaps_is_lost_too(job):
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        job.command("echo ready > ready; exec sleep 60\n")("start")
        job.wait_for("ready")
        os.kill(job.supervisor, signal.SIGKILL)
        job.until(lambda: not alive(job.supervisor), "the supervisor's end")
        assert job.state == {"state": "lost", "exit_status": None}
        assert os.waitpid(job.supervisor, 0)[0] == job.supervisor
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_stop_ends_all_that_the_program_started(job):
    job.command("sleep 60 & echo $! > child; sleep 61 & echo $! > other; wait\n")("start")
    children = [int(job.wait_for("child")), int(job.wait_for("other"))]
    job("stop")
    for child in children:
        job.until(lambda child=child: not alive(child), "a child's end")
    assert job.state == {"state": "ended", "exit_status": 143}


def test_stop_lets_a_program_clean_up(job):
    job.command("trap 'echo cleaned > done; exit 5' TERM; echo > ready; while :; do sleep 0.02; done\n")(
        "start"
    )
    job.wait_for("ready")
    job("stop")
    assert job.wait_for("done") == "cleaned"
    assert job.state == {"state": "ended", "exit_status": 5}


def test_stop_of_a_job_that_is_not_running_does_nothing(job):
    job("stop")
    job.command("exit 3\n")("start")
    job("follow", "log", "0")
    job("stop")
    assert job.state == {"state": "ended", "exit_status": 3}


def test_a_command_that_does_not_exist_is_a_failed_one(job):
    job.command("exec /missing/program\n")("start")
    assert b"/missing/program" in job("follow", "log", "0")
    assert job.state == {"state": "ended", "exit_status": 127}


TOKEN = "s3cret-value-of-a-token"
KEY_FILE = "-----BEGIN-----\nMIIEvQIBADANBgkq\nshort\n-----END-----"


def begin_with(job, variables, secrets):
    given = json.dumps({"variables": variables, "secrets": secrets}).encode()
    command = [sys.executable, "job.py", "start", "runs/r-1", "-"]
    subprocess.run(command, cwd=job.folder, input=given, check=True, timeout=LIMIT_S)
    job.until(lambda: job.state["state"] == "ended", "the end of the job")
    return (job.job / "log").read_text()


def test_a_program_has_its_variables_and_secrets_and_the_log_masks(job):
    command = 'echo "$BATCH $TOKEN."; echo "$TOKEN" > ../kept; echo "$PEM" >&2\n'
    command += 'echo DLCLOUD_SECRETS="$DLCLOUD_SECRETS"\n'
    log = begin_with(job.command(command), {"BATCH": "8"}, {"TOKEN": TOKEN, "PEM": KEY_FILE})
    assert "8 ***.\n***\nDLCLOUD_SECRETS=TOKEN PEM\n" in log
    assert (job.job / "kept").read_text() == TOKEN + "\n"
    assert not [path for path in job.job.iterdir() if path.name != "kept" and TOKEN in path_text(path)]


def test_a_secret_in_pieces_and_one_line_of_it_are_masked_too(job):
    pieces = f"printf a{TOKEN[:5]}; sleep 0.1; printf {TOKEN[5:]}{TOKEN[:3]}; sleep 0.1; printf '%s' x\n"
    lines = "printf '%s' \"$PEM\" | head -n 2 | tail -n 1; echo short\n"
    log = begin_with(job.command(pieces + lines), {}, {"TOKEN": TOKEN, "PEM": KEY_FILE})
    assert log == f"a***{TOKEN[:3]}x***\nshort\n"


WRITING = """\
mkdir -p out/deep skipped ../elsewhere
echo new > out/deep/5.ckpt; echo more >> changed; cp -p sent copied
echo x > skipped/y; echo z > ../elsewhere/z
ln -s deep/5.ckpt out/last.ckpt; ln -s out/deep newest
ln -s ../elsewhere away; ln -s . around; ln -s none broken; mkfifo pipe; ln changed hard
"""


def test_what_a_program_wrote_is_listed_with_links_that_stay_inside(job):
    (job.job / "work").mkdir()
    for name in ("sent", "changed"):
        (job.job / "work" / name).write_text(f"{name}\n")
    (job.job / "work" / "to-sent").symlink_to("sent")
    time.sleep(0.02)  # a file system's clock has steps of up to 10 ms
    job.command("sh ../script\n")
    (job.job / "script").write_text(WRITING)
    time.sleep(0.02)
    job("start")
    job("follow", "log", "0")
    listed = {"changed", "copied", "hard", "newest/5.ckpt", "out/deep/5.ckpt", "out/last.ckpt"}
    written = json.loads(job("written", "skipped"))
    assert {name for name, _, _ in written} == listed
    assert sorted(size for _, size, other in written if not other) == [4, 5, 13]
    assert {other for _, _, other in written} - {""} <= listed
    assert ["skipped/y", 2, ""] in json.loads(job("written"))


LEAVING = """\
setsid sh -c 'echo $$ > apart; exec sleep 600' &
(sh -c 'trap "" TERM; echo $$ > stubborn; while :; do sleep 1; done' &)
while [ ! -s apart ] || [ ! -s stubborn ]; do sleep 0.02; done
exit 3
"""


@pytest.mark.parametrize("secrets", [{}, {"TOKEN": TOKEN}])
def test_what_a_program_leaves_behind_ends_with_it(job, secrets):
    """In its group, in a session of its own, and as a grandchild that ignores SIGTERM."""
    begin_with(job.command(LEAVING), {}, secrets)
    assert job.state == {"state": "ended", "exit_status": 3}
    for name in ("apart", "stubborn"):
        assert not alive(job.wait_for(name))


def test_another_job_that_a_program_starts_outlives_it(job):
    other = job.folder / "runs" / "r-2"
    other.mkdir()
    (other / "command").write_text("while [ ! -e go ]; do sleep 0.02; done; exit 4\n")
    begin_with(job.command(f"cd {job.folder} && {sys.executable} job.py start runs/r-2\n"), {}, {})
    assert job.state == {"state": "ended", "exit_status": 0}
    (other / "work" / "go").touch()
    job.until((other / "exit_status").exists, "the other job ends by itself")
    assert (other / "exit_status").read_text() == "4"


def path_text(path):
    return path.read_bytes().decode(errors="replace") if path.is_file() else ""


@pytest.mark.parametrize("asks", [True, False])
def test_a_program_that_asks_for_it_has_its_instance_powered_off(job, monkeypatch, asks):
    programs = job.folder / "programs"
    programs.mkdir()
    for name, text in {"sudo": 'shift; exec "$@"', "systemctl": f'echo "$@" >{job.folder}/called'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    job.command("touch ../power-off; exit 10\n" if asks else "exit 10\n")("start")
    job("follow", "log", "0")
    assert job.state == {"state": "ended", "exit_status": 10}
    called = job.folder / "called"
    if asks:
        job.until(called.exists, "it is powered off")
    job.until(lambda: not alive(job.supervisor), "the supervisor ends")
    assert called.exists() is asks
    assert not asks or called.read_text() == "--no-wall poweroff -i\n"
