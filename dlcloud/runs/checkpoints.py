"""The checkpoints of a command: copied away while it runs, and put back before it starts again.

On the instance, `templates/checkpoints.py` publishes *states*: all checkpoints of one time, each file with
its size and digest. `Copying` downloads each new one into the dlcloud home (`dlcloud.store.checkpoints`);
with `checkpoints: s3://…` the instance stores them there itself. `Checkpoints.place` puts the newest one into
the folder of a run that is about to start.
"""

import hashlib
import json
import logging
import re
import secrets
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Self

from dlcloud.analysis.result import Run
from dlcloud.launch.data_access import Storage
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import RemoteJobs, folder_of
from dlcloud.launch.setup import FOLDER, read_answer
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, RecipeError, RemoteCommandError
from dlcloud.model.events import Info, Warned, stage
from dlcloud.model.remote import Connection, SentFile
from dlcloud.model.untrusted import number_or_none
from dlcloud.planning.storage import GB, describe_hourly
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.sent_files import format_size
from dlcloud.resources.texts import template
from dlcloud.store.checkpoints import HomeCheckpoints, State, read_state, read_summary
from dlcloud.store.home import Paths
from dlcloud.system.files import FileLock

PROGRAM = f"python3 -I -S {FOLDER}/checkpoints.py"
CHECKPOINT, STORED, NOTICE, STOPPED = "checkpoint", "checkpoint_stored", "notice", "stopped"
"""The kinds of the records that `templates/checkpoints.py` writes."""
REBALANCE = "a rebalance recommendation"
RESIZE = "a resize"
REPLACED = ("an interruption notice", REBALANCE)
"""The reasons of a notice for which another instance takes the place."""
REFUSED = b"dlcloud: hint: undo the change to resume"
"""Printed by `resume: auto` if a state is whole, but of another script, for example."""
OUT_USD_PER_GB = Decimal("0.09")
"""Out of AWS to the internet, from most Regions in North America and Europe, after 100 GB a month.
Source: EC2 on-demand pricing, "Data Transfer" [from memory]."""
LINE_MBIT = 100
"""Of the line for which the plan states how long a copy takes."""
RETRY_S = 5.0
SAVE_S = 20.0
"""Before the end of an instance: from then on checkpoints are copied, as `templates/checkpoints.py` does."""
STOP_S = 60.0
"""How long a program may take to stop when the command here ends; its checkpoints are copied after that."""
log = logging.getLogger(__name__)

_SPECIAL = re.compile(r"[*?\[]")


def checkpoint_folder(paths: Paths, recipe: Recipe, recipe_folder: Path) -> Path:
    """Return the folder of the home with the checkpoints of a recipe's command.

    It is the same for a recipe whose budget, instances or files have changed, so that the next `up` resumes.
    In another folder, the same command is that of another project.
    """
    workload = recipe.workload
    content = [recipe.cloud, recipe.name, workload.command, workload.checkpoints, workload.environment]
    content.append(str(recipe_folder.absolute()))
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return paths.home / "checkpoints" / f"{recipe.name}-{digest}"


def describe_checkpoints(paths: Paths, recipe: Recipe, recipe_folder: Path) -> list[str]:
    """Return what the plan says of checkpoints that are copied through this machine."""
    workload = recipe.workload
    if not workload.checkpoints or recipe.checkpoints is not None:
        return []
    folder = checkpoint_folder(paths, recipe, recipe_folder)
    homes = [HomeCheckpoints(path, paths) for path in sorted(folder.glob("*")) if path.is_dir()]
    states = [state for state in (home.newest() for home in homes) if state is not None]
    begin = f"continues from {describe_state(states[0])}" if states else "there is none yet"
    if len(states) > 1:
        begin += f" and those of {len(states) - 1} other run(s)"
    if FileLock(folder / "lock").is_held():
        begin = "another `up` keeps them now, so that this one would be refused"
    notes = [f"checkpoints of {', '.join(workload.checkpoints)} in {folder}: {begin}"]
    if states:
        notes.append("--fresh removes them, and starts from the beginning")
    if recipe.cloud == "aws":
        seconds = 8 * GB / (LINE_MBIT * 10**6)
        hourly = describe_hourly(OUT_USD_PER_GB, max((state.size for state in states), default=GB))
        traffic = f"each GB copied costs about {OUT_USD_PER_GB} USD (traffic out of AWS): {hourly}"
        notes.append(
            f"{traffic}, not in the total; {seconds:.0f} s at {LINE_MBIT} Mbit/s; "
            "to S3 (checkpoints: s3://…) it is free"
        )
    return notes


class Checkpoints:
    """The checkpoints of one recipe's command on the instances of one cluster.

    Args:
        managed: The cluster.
        recipe: It says what is kept.
        recipe_folder: In which the recipe's file is.
        storage: The recipe's buckets, for `checkpoints: s3://…`.
        fresh: Start from the beginning.

    Attributes:
        noticed: Reasons by the ids of instances that had a notice.
    """

    def __init__(
        self,
        *,
        managed: ManagedCluster,
        recipe: Recipe,
        recipe_folder: Path = Path(),
        storage: Storage,
        fresh: bool = False,
    ) -> None:
        self.managed, self.recipe, self._storage = managed, recipe, storage
        self.noticed: dict[str, str] = {}
        self._last: dict[int, Copying] = {}  # by the numbers of `slot_of`
        self._active: dict[str, Copying] = {}
        self._placed: dict[str, State] = {}
        self._newest: dict[str, int] = {}
        self._folder = checkpoint_folder(managed.store.paths, recipe, recipe_folder)
        self._slots: dict[str, int] = {}
        self._refused: dict[int, set[int]] = {}  # numbers of states from which a program could not start
        self._fresh_ids: set[str] = set()
        self._lock = threading.Lock()
        self._is_fresh = fresh
        self._up = secrets.token_hex(8)  # by it the resume hook knows a replacement from another `up`
        self._in_use = FileLock(self._folder / "lock")

    def slot_of(self, instance_id: str) -> int:
        """Return the number of an instance's run: each of several has its own checkpoints."""
        if self.recipe.is_one_job:
            return 0  # those of rank 0
        with self._lock:
            free = (number for number in range(len(self._slots) + 1) if number not in self._slots.values())
            return self._slots.setdefault(instance_id, next(free))

    def home_of(self, instance_id: str) -> HomeCheckpoints:
        """Return where the checkpoints of an instance's run are kept here."""
        slot, paths = self.slot_of(instance_id), self.managed.store.paths
        return HomeCheckpoints(self._folder / str(slot), paths, self._refused.setdefault(slot, set()))

    @contextmanager
    def in_use(self, members: Sequence[Member]) -> Iterator[None]:
        """Keep the checkpoints of these instances inside the block, the same ones in each command.

        Raises:
            RecipeError: Another command keeps checkpoints of the same recipe here.
        """
        self.managed.store.paths.make_folder(self._folder)
        if not self._in_use.acquire(wait=False):
            name = self.recipe.name
            message = f"another `up` keeps the checkpoints of {name} now, in {self._folder}"
            raise RecipeError(message, "a copy of the recipe with another name has its own checkpoints")
        try:
            for instance_id in sorted(member.instance.instance_id for member in members):
                home = self.home_of(instance_id)
                if self._is_fresh:
                    home.clear()
                    self._fresh_ids.add(instance_id)
            yield
        finally:
            self._in_use.release()

    def release(self, instance_id: str) -> None:
        """Leave the checkpoints of an instance that ends to the next one."""
        with self._lock:
            self._slots.pop(instance_id, None)

    def move(self, lost_id: str, new_id: str) -> None:
        """Give a replacement the checkpoints of the instance that is gone."""
        with self._lock:
            self._slots[new_id] = self._slots.pop(lost_id, len(self._slots))

    def place(self, connection: Connection, run: Run) -> None:
        """Put the newest checkpoints into the folder of a run, with what keeps new ones.

        Of a job on several nodes, those of rank 0 are kept, and every node gets them.
        """
        folder, instance_id = folder_of(run), run.instance_id
        connection.send_bytes(template("checkpoints.py").encode(), f"{FOLDER}/checkpoints.py")
        state = None if self.recipe.checkpoints else self.home_of(instance_id).newest()
        refused = self._refused.get(self.slot_of(instance_id), set())
        number = max([0, *refused, *([] if state is None else [state.number])])
        options = self._options(connection, run) | {"number": number, "refused": sorted(refused)}
        connection.send_bytes(json.dumps(options).encode(), f"{folder}/checkpoints.json")
        if self.recipe.checkpoints:
            state = self._fetch_stored(connection, run)
        if state is None:
            return
        self._placed[instance_id] = state
        description, managed = describe_state(state), self.managed
        with stage(managed.emit, managed.clock, f"restoring {description}", instance_id=instance_id):
            if not self.recipe.checkpoints:
                objects = self.home_of(instance_id).objects
                contents = [
                    SentFile(path=objects / name, name=name, size=size) for name, size in state.sizes.items()
                ]
                connection.send_files(contents, f"{folder}/checkpoints/objects")
                connection.send_bytes(state.text.encode(), f"{folder}/checkpoints/restore.json")
            connection.check(f"{PROGRAM} restore {folder} {shlex.quote(description)}")

    def _options(self, connection: Connection, run: Run) -> dict[str, Any]:
        """Return what `templates/checkpoints.py` is to keep of a run, and where."""
        workload, to = self.recipe.workload, self.recipe.checkpoints
        options: dict[str, Any] = {
            "patterns": [pattern.removeprefix("./") for pattern in workload.checkpoints],
            "is_kept": run.rank == 0,
            "first": first_folder(workload.checkpoints),
            "resume": workload.resume == "auto",
            "up": self._up,
            "on_notice": workload.on_notice,
            "on_rebalance": workload.on_rebalance,
            "key": self._folder.name,
        }
        if to:
            prefix = f"{to}/{self.slot_of(run.instance_id)}"
            options["upload"] = {"to": prefix, **self._storage.tool_of(connection, to)}
        return options

    def _fetch_stored(self, connection: Connection, run: Run) -> State | None:
        """Let an instance bring the newest state from S3; return what it is."""
        folder, managed = folder_of(run), self.managed
        if run.instance_id in self._fresh_ids:
            self._fresh_ids.remove(run.instance_id)
            connection.check(f"{PROGRAM} forget {folder}")
        with stage(managed.emit, managed.clock, "looking for checkpoints in S3", instance_id=run.instance_id):
            summary = read_answer(connection, connection.check(f"{PROGRAM} fetch {folder}"))
        return read_summary(summary, run.instance_id) if summary else None

    def step_back(self, member: Member) -> str:
        """Leave out a state from which a program could not start, as a write may have been cut off.

        It stays until there is a newer one: perhaps the program itself was at fault.

        Returns:
            What it was; empty if that state is not to blame, as where `resume: auto` refused it.
        """
        instance_id = member.instance.instance_id
        state = self._placed.pop(instance_id, None)
        if state is None or not state.ended or self._newest.get(instance_id, state.number) != state.number:
            return ""
        runs = self.managed.store.runs.of_cluster(self.managed.cluster_id)
        run = next(run for run in reversed(runs) if run.instance_id == instance_id)
        printed = self.managed.store.paths.run_log(run.run_id)
        if printed.exists() and REFUSED in printed.read_bytes():
            return ""
        self._refused.setdefault(self.slot_of(instance_id), set()).add(state.number)
        return f"it could not start from {describe_state(state)}: it starts from the one before it"

    @contextmanager
    def copying(self, member: Member, run: Run) -> Iterator["Copying"]:
        """Copy the checkpoints of a run inside the block, in which it is followed."""
        home = None if self.recipe.checkpoints else self.home_of(run.instance_id)
        copying = Copying(managed=self.managed, home=home, member=member, run=run)
        self._active[run.run_id] = copying
        try:
            with copying:
                yield copying
        finally:
            del self._active[run.run_id]
            if copying.newest:
                self._newest[run.instance_id] = copying.newest
            self._last[self.slot_of(run.instance_id)] = copying

    def lost_s(self, instance_id: str, ran_s: float) -> float:
        """Return how long the last run of an instance worked after the newest of its states that was copied.

        `ran_s`: how long it ran as far as the launcher knows; a program that had a notice says so itself.
        """
        last = self._last.get(self.slot_of(instance_id))
        if last is None:
            return ran_s
        stopped_s = ran_s if last.stopped_s is None else last.stopped_s
        return min(ran_s, max(0.0, stopped_s - last.saved_s))

    def stop_all(self, reason: str) -> None:
        """Ask all programs to stop, and wait until their checkpoints are copied."""
        if self._active:
            message = f"{reason}: the program has {STOP_S:.0f} s to stop, then its checkpoints are copied"
            self.managed.emit(Warned(message=f"{message}; Ctrl-C again terminates the instances now"))
            self.stop([one.member for one in list(self._active.values())], reason)

    def stop(self, members: Sequence[Member], reason: str) -> set[str]:
        """Ask the programs of some instances to stop, and wait until their checkpoints are copied.

        Returns:
            The ids of the instances that ran one.
        """
        runs = {run_id: one for run_id, one in list(self._active.items()) if one.member in members}
        for one in runs.values():
            self.ask_to_stop(one.member, one.run, STOP_S, reason)
        until = self.managed.clock.monotonic() + STOP_S + RETRY_S
        while (active := runs.keys() & self._active.keys()) and (
            self.managed.clock.monotonic() < until or any(runs[run_id].is_busy for run_id in active)
        ):
            self.managed.clock.sleep(0.2)
        return {one.run.instance_id for one in runs.values()}

    def ask_to_stop(self, member: Member, run: Run, seconds: float, reason: str) -> None:
        """Ask the program of a run to stop within so many seconds; one that is gone needs no asking."""
        try:
            connection = RemoteJobs(managed=self.managed).connect(member)
            connection.check(f"{PROGRAM} notice {folder_of(run)} {seconds:.1f} {shlex.quote(reason)}")
        except DlcloudError as error:
            self.managed.emit(Warned(message=error.message, instance_id=run.instance_id))


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
        is_busy: True while a state is copied.
        newest: The number of the newest state that was published; 0 without one.
        saved_s: How long the run had worked for the newest state that was copied; 0 without one.
        stopped_s: How long it had run when it had stopped at a notice; None without one.
    """

    managed: ManagedCluster
    home: HomeCheckpoints | None  # None: the instance stores its states in S3
    member: Member
    run: Run
    reason: str = field(default="", init=False)
    is_busy: bool = field(default=False, init=False)
    newest: int = field(default=0, init=False)
    saved_s: float = field(default=0.0, init=False)
    stopped_s: float | None = field(default=None, init=False)
    _new: threading.Event = field(default_factory=threading.Event, init=False)
    _is_over: bool = field(default=False, init=False)
    _fault: str = field(default="", init=False)
    _is_shown: bool = field(default=False, init=False)
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
            self.newest = int(number_or_none(record.get("number")) or 0)
            self._new.set()
        elif record["record"] == STORED:
            self.saved_s = number_or_none(record.get("run_s")) or 0.0
        elif record["record"] == STOPPED:
            self.stopped_s = number_or_none(record.get("run_s"))
        elif record["record"] == NOTICE:
            self.reason = self.reason or str(record.get("reason", ""))[:80]

    def _copy_all(self) -> None:
        while True:
            self._new.wait()
            self._new.clear()
            is_last = self._is_over
            self.is_busy = True
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
            finally:
                self.is_busy = False
            if is_last:
                return

    def _copy_newest(self) -> None:
        if self.home is None:
            return
        connection, folder = RemoteJobs(managed=self.managed).connect(self.member), folder_of(self.run)
        text = connection.check(f"{PROGRAM} pick {folder}").decode("utf-8", "replace").strip()
        if not text:
            return
        state = read_state(text, self.run.instance_id)
        began = self.managed.clock.monotonic()
        try:
            size = self.home.add(state, lambda sizes, target: _fetch(connection, folder, sizes, target))
        except RemoteCommandError:
            connection.check(f"{PROGRAM} drop {folder}")
            raise
        self.saved_s = state.run_s
        connection.check(f"{PROGRAM} stored {folder}")
        seconds = self.managed.clock.monotonic() - began
        message = f"{describe_state(state)} copied in {seconds:.1f} s ({format_size(size)} new)"
        log.info("%s: %s", self.run.instance_id, message)
        if not self._is_shown or self.reason:
            self._is_shown = True
            self.managed.emit(Info(message=message, instance_id=self.run.instance_id))


def _fetch(connection: Connection, folder: str, sizes: Mapping[str, int], target: Path) -> None:
    if sizes:
        connection.fetch_listed(f"{folder}/checkpoints/objects", sizes, target)
