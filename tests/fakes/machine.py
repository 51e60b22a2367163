"""Instances that run nothing: they keep files, know job.py's verbs, and lose connections on request."""

import json
import shlex
import threading
from dataclasses import dataclass, field

from dlcloud.model.errors import RemoteCommandError, UnreachableError
from dlcloud.model.remote import Completed, Fetched
from dlcloud.ssh.dial import BLOCKED_HINT

GONE = "gone"


@dataclass
class Job:
    """A program as its instance knows it: `records` is all that it will have written by its end."""

    records: bytes = b""
    exit_status: int | None = 0
    log: bytes = b"a line of log\n"
    state: str = "ended"


@dataclass
class FakeMachine:
    """One instance.

    `breaks` lists, for each connection in turn, after how many bytes of a stream it breaks; GONE instead of a
    number: it breaks at once and the instance never answers again. None: it holds.
    """

    instance_id: str
    job: Job = field(default_factory=Job)
    breaks: list = field(default_factory=list)
    chunk: int = 7
    answers: dict = field(default_factory=dict)
    failing: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    trees: list = field(default_factory=list)
    sent: list = field(default_factory=list)
    commands: list = field(default_factory=list)
    stdin: dict = field(default_factory=dict)
    started: list = field(default_factory=list)
    read_from: list = field(default_factory=list)
    kept: dict = field(default_factory=dict)
    refuses_login: BaseException | None = None
    answers_from: int = 0
    dialled: int = 0
    gone: bool = False
    dropped: bool = False
    """What is sent to it is dropped: its silence is a time-out."""


@dataclass
class FakeConnection:
    """A session with a FakeMachine."""

    machine: FakeMachine
    endpoint: object

    def run(self, command, *, stdin=b"", timeout_s=None):  # noqa: ARG002  the protocol's
        self._alive()
        self.machine.commands.append(command)
        self.machine.stdin[command] = stdin
        for word, (status, stderr) in self.machine.failing.items():
            if word in command:
                return Completed(exit_status=status, stdout=b"", stderr=stderr)
        return Completed(exit_status=0, stdout=self._answer(command), stderr=b"")

    def check(self, command, *, stdin=b"", timeout_s=None):
        done = self.run(command, stdin=stdin, timeout_s=timeout_s)
        if done.exit_status:
            raise RemoteCommandError(f"{self.machine.instance_id}: {done.stderr.decode()}")
        return done.stdout

    def stream(self, command):
        self._alive()
        self.machine.commands.append(command)
        *_, offset = shlex.split(command)
        self.machine.read_from.append(int(offset))
        limit = self.machine.breaks.pop(0) if self.machine.breaks else None
        if limit == GONE:
            self.machine.gone = True
            limit = 0
        content = self.machine.job.records[int(offset) :]
        visible = content if limit is None else content[:limit]
        for start in range(0, len(visible), self.machine.chunk):
            yield visible[start : start + self.machine.chunk]
        if limit is not None:
            raise UnreachableError(f"{self.machine.instance_id}: the connection broke")

    def relay(self, command, *, out, err):
        done = self.run(command)
        out(done.stdout)
        err(done.stderr)
        return done.exit_status

    def send_tree(self, source, target, *, only=None):
        self._alive()
        self.machine.trees.append((source, target, only))
        if source.is_file():
            self.machine.files[f"{target}/{source.name}"] = (source.read_bytes(), 0o644)

    def send_files(self, files, target, *, on_sent=None):
        self._alive()
        self.machine.sent.append(([file.name for file in files], target))
        for file in files:
            if on_sent is not None:
                on_sent(file.size)

    def send_bytes(self, content, target, *, mode=0o644):
        self._alive()
        self.machine.files[target] = (content, mode)

    def send_contents(self, contents, target):
        for name, content in contents.items():
            self.send_bytes(content, f"{target}/{name}")

    def pipe(self, command, pieces):
        self.check(command, stdin=b"".join(pieces))

    def fetch_listed(self, folder, sizes, target):
        return Fetched(paths=self.fetch_files(folder, sizes, target), left={})

    def fetch_files(self, folder, patterns, target):
        self._alive()
        brought = []
        there = self.machine.kept.get(folder, {})
        for name in sorted(set(patterns) & set(there)):
            target.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(there[name])
            brought.append(target / name)
        return brought

    def close(self):
        """Nothing is open."""

    def _alive(self):
        if self.machine.gone:
            raise UnreachableError(f"{self.machine.instance_id}: no answer")

    def _answer(self, command):
        for word, answer in self.machine.answers.items():
            if word in command:
                return answer
        words = shlex.split(command)
        if "job.py" not in command:
            return b""
        verb, folder = words[4], words[5]
        if verb == "start" and folder not in self.machine.started:
            self.machine.started.append(folder)
            self.machine.kept[folder] = {
                "log": self.machine.job.log,
                "records.jsonl": self.machine.job.records,
            }
        if verb == "written":
            files = self.machine.kept.get(f"{folder}/work", {})
            return json.dumps([[name, len(content), ""] for name, content in sorted(files.items())]).encode()
        if verb == "state":
            status = "null" if self.machine.job.exit_status is None else self.machine.job.exit_status
            return f'{{"state": "{self.machine.job.state}", "exit_status": {status}}}\n'.encode()
        return b""


class FakeDial:
    """Connections to FakeMachines; an instance answers from its `answers_from`-th dialling on."""

    def __init__(self, *machines, clock=None):
        self.machines = {machine.instance_id: machine for machine in machines}
        self.clock = clock
        self.dialled = []
        self._lock = threading.Lock()

    def dial(self, endpoint, *, wait_s=0.0):
        with self._lock:
            machine = self.machines.setdefault(endpoint.instance_id, FakeMachine(endpoint.instance_id))
            self.dialled.append((endpoint, wait_s))
            machine.dialled += 1
        if machine.refuses_login is not None:
            raise machine.refuses_login
        if machine.gone or machine.dialled <= machine.answers_from:
            if self.clock is not None and wait_s:
                self.clock.sleep(wait_s)
            silence = TimeoutError("timed out") if machine.dropped else None
            hint = BLOCKED_HINT if machine.dropped else ""
            raise UnreachableError(f"{endpoint.instance_id}: nothing answers", hint) from silence
        return FakeConnection(machine, endpoint)

    def close(self):
        """Nothing is open."""
