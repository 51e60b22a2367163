"""The checkpoints of a command: copied away while it runs, and put back before it starts again.

On the instance, `templates/checkpoints.py` publishes *states*: all checkpoints of one time, each file with
its size and digest. `Copying` downloads each new one into the dlcloud home (`dlcloud.store.checkpoints`).
`Checkpoints.place` puts the newest one into the folder of a run that is about to start.
"""

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from dlcloud.analysis.result import Run
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import RemoteJobs, folder_of
from dlcloud.launch.setup import FOLDER
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, RemoteCommandError
from dlcloud.model.events import Info, Warned, stage
from dlcloud.model.remote import Connection, SentFile
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.sent_files import format_size
from dlcloud.resources.texts import template
from dlcloud.store.checkpoints import HomeCheckpoints, State, read_state
from dlcloud.store.home import Paths

PROGRAM = f"python3 -I -S {FOLDER}/checkpoints.py"
CHECKPOINT, NOTICE = "checkpoint", "notice"
"""The kinds of the records that `templates/checkpoints.py` writes."""
REPLACED = ("an interruption notice", "a rebalance recommendation")
"""The reasons of a notice for which another instance takes the place."""
RETRY_S = 5.0
_SPECIAL = re.compile(r"[*?\[]")


def checkpoint_folder(paths: Paths, recipe: Recipe) -> Path:
    """Return the folder of the home with the checkpoints of a recipe's command.

    It is the same for a recipe whose budget, instances or files have changed, so that the next `up` resumes.
    """
    workload = recipe.workload
    content = [recipe.cloud, recipe.name, workload.command, workload.checkpoints, workload.environment]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return paths.home / "checkpoints" / f"{recipe.name}-{digest}"


class Checkpoints:
    """The checkpoints of one recipe's command on the instances of one cluster.

    Args:
        managed: The cluster.
        recipe: It says what is kept.
        fresh: Start from the beginning.
    """

    def __init__(self, *, managed: ManagedCluster, recipe: Recipe, fresh: bool = False) -> None:
        self.managed, self.recipe = managed, recipe
        self._folder = checkpoint_folder(managed.store.paths, recipe)
        self._slots: dict[str, int] = {}
        self._lock = threading.Lock()
        self._is_fresh = fresh
        self._up = secrets.token_hex(8)  # by it the resume hook knows a replacement from another `up`

    def home_of(self, instance_id: str) -> HomeCheckpoints:
        """Return where the checkpoints of an instance's run are kept; each of several runs has its own."""
        with self._lock:
            free = (number for number in range(len(self._slots) + 1) if number not in self._slots.values())
            slot = self._slots.setdefault(instance_id, next(free))
        return HomeCheckpoints(self._folder / str(slot), self.managed.store.paths)

    def expect(self, members: list[Member]) -> None:
        """Give each instance a place, the same one in each command that finds the same instances."""
        for instance_id in sorted(member.instance.instance_id for member in members):
            home = self.home_of(instance_id)
            if self._is_fresh:
                home.clear()

    def move(self, lost_id: str, new_id: str) -> None:
        """Give a replacement the checkpoints of the instance that is gone."""
        with self._lock:
            self._slots[new_id] = self._slots.pop(lost_id, len(self._slots))

    def place(self, connection: Connection, run: Run) -> None:
        """Put the newest checkpoints into the folder of a run, with what keeps new ones."""
        folder, workload = folder_of(run), self.recipe.workload
        home = self.home_of(run.instance_id)
        state = home.newest()
        connection.send_bytes(template("checkpoints.py").encode(), f"{FOLDER}/checkpoints.py")
        options: dict[str, Any] = {
            "patterns": [pattern.removeprefix("./") for pattern in workload.checkpoints],
            "first": first_folder(workload.checkpoints),
            "resume": workload.resume == "auto",
            "up": self._up,
            "on_notice": workload.on_notice,
            "on_rebalance": workload.on_rebalance,
            "number": state.number if state is not None else 0,
        }
        connection.send_bytes(json.dumps(options).encode(), f"{folder}/checkpoints.json")
        if state is not None:
            self._restore(connection, run, home, state)

    def _restore(self, connection: Connection, run: Run, home: HomeCheckpoints, state: State) -> None:
        folder = folder_of(run)
        what = describe_state(state)
        managed = self.managed
        with stage(managed.emit, managed.clock, f"restoring {what}", instance_id=run.instance_id):
            contents = [
                SentFile(path=home.objects / name, name=name, size=size) for name, size in state.sizes.items()
            ]
            connection.send_files(contents, f"{folder}/checkpoints/objects")
            connection.send_bytes(state.text.encode(), f"{folder}/checkpoints/restore.json")
            connection.check(f"{PROGRAM} restore {folder}")

    def copying(self, member: Member, run: Run) -> "Copying":
        """Return what copies the checkpoints of a run while it is followed."""
        return Copying(managed=self.managed, home=self.home_of(run.instance_id), member=member, run=run)


def describe_state(state: State) -> str:
    files = f"{state.files} file{'s' * (state.files != 1)}"
    made_at = state.made_at.strftime("%Y-%m-%d %H:%M:%S")
    return f"checkpoint {state.number} ({files}, {format_size(state.size)}, of {made_at} UTC)"


def first_folder(patterns: list[str]) -> str:
    """Return the folder that the first pattern names below the working folder, without wildcards."""
    path = PurePosixPath(patterns[0])
    parts = []
    for part in path.parts:
        if _SPECIAL.search(part):
            break
        parts.append(part)
    is_file = len(parts) == len(path.parts) and path.suffix and not patterns[0].endswith("/")
    return str(PurePosixPath(*parts[:-1] if is_file else parts))


@dataclass(slots=True, kw_only=True)
class Copying:
    """Downloads the states of one run in its own thread, within a `with` block.

    Attributes:
        reason: Of the first notice; empty without one.
    """

    managed: ManagedCluster
    home: HomeCheckpoints
    member: Member
    run: Run
    reason: str = field(default="", init=False)
    _new: threading.Event = field(default_factory=threading.Event, init=False)
    _is_over: bool = field(default=False, init=False)
    _fault: str = field(default="", init=False)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._new.set()  # an earlier command may have left a state uncopied
        self._thread = threading.Thread(
            target=self._copy_all, name=f"checkpoints of {self.run.run_id}", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._new.set()
        self._thread.join()

    def note(self, record: Mapping[str, Any]) -> None:
        """Take a record of the run."""
        if record["record"] == CHECKPOINT:
            self._new.set()
        elif record["record"] == NOTICE:
            self.reason = self.reason or str(record.get("reason", ""))[:80]

    def _copy_all(self) -> None:
        while True:
            self._new.wait()
            self._new.clear()
            is_last = self._is_over
            try:
                self._copy_newest()
                self._fault = ""
            except DlcloudError as error:
                if is_last and not isinstance(error, RemoteCommandError):
                    return  # the instance is gone: its state before is what there is
                if error.message != self._fault:
                    self._fault = error.message
                    message = f"no copy of the newest checkpoint: {error.message}"
                    self.managed.emit(Warned(message=message, instance_id=self.run.instance_id))
                if not is_last:
                    threading.Timer(RETRY_S, self._new.set).start()
            if is_last:
                return

    def _copy_newest(self) -> None:
        connection = RemoteJobs(managed=self.managed).connect(self.member)
        folder = f"{folder_of(self.run)}/checkpoints"
        listed = connection.run(f"cd {folder} && ls").stdout.decode("utf-8", "replace").split()
        numbers = [
            int(match[1]) for name in listed if (match := re.fullmatch(r"state-(\d{1,15})\.json", name))
        ]
        if not numbers:
            return
        text = connection.run(f"cat {folder}/state-{max(numbers)}.json").stdout.decode("utf-8", "replace")
        if not text:
            self._new.set()  # a newer one has taken its place
            return
        state = read_state(text, self.run.instance_id)
        began = self.managed.clock.monotonic()
        try:
            size = self.home.add(state, lambda sizes, target: _fetch(connection, folder, sizes, target))
        except RemoteCommandError:
            connection.check(f"{PROGRAM} drop {folder_of(self.run)} {state.number}")
            raise
        connection.check(f"{PROGRAM} stored {folder_of(self.run)} {state.number}")
        seconds = self.managed.clock.monotonic() - began
        message = f"{describe_state(state)} copied in {seconds:.1f} s ({format_size(size)} new)"
        self.managed.emit(Info(message=message, instance_id=self.run.instance_id))


def _fetch(connection: Connection, folder: str, sizes: Mapping[str, int], target: Path) -> None:
    if sizes:
        connection.fetch_listed(f"{folder}/objects", sizes, target)
