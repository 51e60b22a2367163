"""Send the user's files to instances: all at first, then only what changed, as rsync would.

`send_files` compares the files with the manifest that the instance keeps, and sends what differs. `Sharing`
sends the same files to many instances: this machine sends to a few, and those pass the archive on to the
others, verified by its digest. An instance that no other can serve is sent the files from here.
"""

import hashlib
import json
import logging
import os
import secrets
import shlex
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dlcloud.launch.setup import COPY_TIMEOUT_S, FOLDER, KEY_BYTES, EnvironmentPeer, read_answer
from dlcloud.model.clock import Clock
from dlcloud.model.errors import DlcloudError, RecipeError, RemoteCommandError
from dlcloud.model.events import Emit, Progress, stage
from dlcloud.model.remote import Connection, SentFile
from dlcloud.model.untrusted import parse_json
from dlcloud.recipe.sent_files import Changes, FileSet, count_files, format_size
from dlcloud.resources.texts import template
from dlcloud.ssh.copy import pack_files
from dlcloud.ssh.listing import list_files

if TYPE_CHECKING:  # pydantic, which `logs` and `ssh` never need
    from dlcloud.recipe.recipe import Recipe

COPY = f"{FOLDER}/files"
"""The folder on an instance of the copy that runs are given; nothing else writes there."""

PROGRAM = f"{FOLDER}/files.py"
RUN = f"python3 -I -S {PROGRAM}"
INSTALL = f"mkdir -p {FOLDER} && cat > {PROGRAM}.$$ && mv -f {PROGRAM}.$$ {PROGRAM} && {RUN} manifest {COPY}"
"""The command that takes the program as its input and prints the manifest."""

SOURCE = ""
"""The name in a manifest of the folder that it describes: no file has it."""

Send = Callable[..., None]
"""`Connection.send_files`, or what takes its arguments and sends them in another way."""

PROGRESS_EVERY_S = 1.0
FEWEST = 8
"""Instances from which on files are passed on."""

LEAST_BYTES = 4 << 20
"""To be sent to all instances together; less is sent from here sooner than a copy between two is arranged."""

SEEDS = 4
"""Instances that are sent to from here at the same time, until one of them can give."""

CLIENTS = 2
"""Copies that an instance gives at the same time."""

MOST_GIVERS = 2
"""This many instances are asked before an instance is sent the files from here."""

WAKE_S = 60.0
"""Every change wakes as many threads as it serves: a thousand that wake for one copy cost more than it."""

PLACE = f"{FOLDER}/sent"
PEER = f"python3 -I -S {FOLDER}/peer.py"
_PIECE = 1 << 18
log = logging.getLogger(__name__)


def check_files(source: Path) -> FileSet:
    """Return the files of a folder, or the one file, if they can be sent.

    Raises:
        RecipeError: They cannot be read, are too many or too large.
    """
    files = list_files(source)
    files.check()
    return files


def with_projects(command: str, recipe: "Recipe", recipe_folder: Path) -> str:
    """Return a command that finds the modules of the recipe's projects (`-e .`) in the files that are sent.

    Raises:
        RecipeError: One of them is not among the files.
    """
    # pydantic comes with it, which `logs` and `ssh` never need.
    from dlcloud.recipe.requirements import projects_of  # noqa: PLC0415

    projects = projects_of(recipe.setup.requirements)
    if not projects or not command:
        return command
    sent = recipe_folder / (recipe.workload.files or "nothing")
    folders = []
    for name in projects:
        project = (recipe_folder / name).resolve()
        source = project / "src" if (project / "src").is_dir() else project
        if not sent.is_dir() or not source.is_relative_to(sent.resolve()):
            raise RecipeError(
                f"setup.requirements: the project {name} is not among the files that are sent",
                f"workload.files: {recipe.workload.files or '.'} must be a folder that contains it",
            )
        if not source.is_dir():
            raise RecipeError(f"setup.requirements: there is no project {name}")
        folders.append(shlex.quote(str(source.relative_to(sent.resolve()))))
    places = ":".join(f'"$PWD"/{folder}' for folder in folders)
    return f'export PYTHONPATH={places}"${{PYTHONPATH:+:$PYTHONPATH}}"; {command}'


def send_files(
    connection: Connection,
    source: Path,
    work: str,
    *,
    clock: Clock,
    emit: Emit,
    files: FileSet | None = None,
    send: Send | None = None,
) -> None:
    """Send a folder's content, or one file, to the folder `work` of a run.

    `files` is its list, where it was read before; `send` copies what is to be sent.

    Raises:
        RecipeError: As `check_files`.
        RemoteCommandError, UnreachableError: The instance could not take it.
    """
    files, now_ns = files or check_files(source), time.time_ns()
    send = send or connection.send_files
    instance_id = connection.endpoint.instance_id
    stamps = _manifest(connection)
    is_first = stamps is None
    stamps = stamps or {}
    is_known = stamps.pop(SOURCE, None) == str(source.resolve())
    changes = files.changes(stamps) if is_known else Changes(sent=files.entries, removed=())
    if changes.sent or changes.removed or not is_known:
        names = list(changes.removed) if is_known else None
        with stage(emit, clock, _describe(files, changes), instance_id=instance_id):
            if not is_first:
                connection.check(f"{RUN} remove {COPY}", stdin=json.dumps(names).encode())
            reporter = _Reporter(clock, emit, instance_id, total=sum(entry.size for entry in changes.sent))
            send(changes.sent, f"{COPY}/tree", on_sent=reporter.add)
    manifest = {SOURCE: str(source.resolve()), **files.manifest(now_ns)}
    connection.check(f"{RUN} finish {COPY} {shlex.quote(work)}", stdin=json.dumps(manifest).encode())


def _manifest(connection: Connection) -> dict[str, str] | None:
    """Return an instance's manifest; without an intact one, everything is sent. None before the first."""
    try:
        content = parse_json(connection.check(INSTALL, stdin=template("files.py").encode()).decode())
    except (ValueError, RemoteCommandError):
        return {}
    if content is None:
        return None
    is_manifest = isinstance(content, dict) and all(map(_is_entry, content.items()))
    return content if is_manifest else {}


def _is_entry(item: tuple[object, object]) -> bool:
    """True if an entry of a manifest can be true: a stamp, of what lies inside."""
    name, stamp = item
    inside = isinstance(name, str) and not name.startswith("/") and ".." not in name.split("/")
    return inside and isinstance(stamp, str)


def _describe(files: FileSet, changes: Changes) -> str:
    size = format_size(sum(entry.size for entry in changes.sent))
    if len(changes.sent) == len(files.entries):
        return f"sending {count_files(files.count)}, {size}"
    removed = f", removing {len(changes.removed):,}" if changes.removed else ""
    return f"sending {len(changes.sent):,} of {count_files(files.count)} that changed, {size}{removed}"


class _Reporter:
    """Emits how much is sent, now and then.

    Args:
        clock: Paces the events.
        emit: Takes them.
        instance_id: Of the receiver.
        total: Bytes to be sent.
    """

    def __init__(self, clock: Clock, emit: Emit, instance_id: str, *, total: int) -> None:
        self._clock, self._emit, self._instance_id, self._total = clock, emit, instance_id, total
        self._sent = 0
        self._due = clock.monotonic() + PROGRESS_EVERY_S

    def add(self, size: int) -> None:
        """Count bytes that are sent."""
        self._sent += size
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + PROGRESS_EVERY_S
        message = f"sent {format_size(self._sent)} of {format_size(self._total)}"
        self._emit(Progress(message=message, instance_id=self._instance_id))


class Sharing:
    """What the instances of one cluster are sent alike.

    Args:
        allow: Lets the instances reach each other; called once, if they are to.
    """

    def __init__(self, allow: Callable[[], None]) -> None:
        self._allow = allow
        self._is_allowed = False
        self._count = 0
        self._archives: dict[str, Archive] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def is_used(self) -> bool:
        """True if there are enough instances for files to be passed on."""
        return self._count >= FEWEST

    def expect(self, count: int) -> None:
        """State how many instances will be sent the same."""
        self._count = count

    def send(
        self,
        connection: Connection,
        receiver: EnvironmentPeer,
        files: Sequence[SentFile],
        target: str,
        *,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        """Copy listed files, folders and links to the folder `target` on an instance.

        Args:
            connection: To it.
            receiver: How others reach it.
            files: As of `Connection.send_files`.
            target: As of `Connection.send_files`.
            on_sent: Called with the bytes of each piece that is on its way from here.

        Raises:
            RecipeError: A file cannot be read.
            RemoteCommandError, UnreachableError: The instance could not take them.
        """
        if not self.is_used or sum(file.size for file in files) * self._count < LEAST_BYTES:
            connection.send_files(files, target, on_sent=on_sent)
            return
        archive = self._pack(files)
        if not self._take_from_others(connection, receiver, archive, target):
            with _sent_from_here(archive.givers, receiver):
                _upload(connection, archive, target, on_sent)

    def _take_from_others(
        self, connection: Connection, receiver: EnvironmentPeer, archive: "Archive", target: str
    ) -> bool:
        """Copy an archive from an instance that has it; False if this machine is to send it."""
        givers = archive.givers
        for _ in range(MOST_GIVERS):
            giver = givers.take()
            if giver is None:
                return False
            try:
                _copy(connection, giver, archive, target)
            except DlcloudError as error:
                givers.failed()
                name = connection.endpoint.instance_id
                log.warning("%s: no files from %s: %s", name, giver.instance_id, error.message)
            except BaseException:
                givers.failed()
                raise
            else:
                givers.gave(giver, receiver)
                return True
        givers.send()
        return False

    def _pack(self, files: Sequence[SentFile]) -> "Archive":
        """Return the archive of files, packed when it is first needed."""
        listing = json.dumps([[str(file.path), file.name, file.stamp, file.size] for file in files])
        key = hashlib.sha256(listing.encode()).hexdigest()
        with self._locks[""]:
            lock = self._locks[key]
            if not self._is_allowed:
                self._allow()
                self._is_allowed = True
        with lock:
            if key not in self._archives:
                file = tempfile.TemporaryFile(prefix="dlcloud-")  # noqa: SIM115 - it lives as long as this
                digest = pack_files(files, file)
                self._archives[key] = Archive(file=file, digest=digest, givers=Givers())
            return self._archives[key]


@contextmanager
def _sent_from_here(givers: "Givers", receiver: EnvironmentPeer) -> Iterator[None]:
    try:
        yield
    except BaseException:
        givers.sent(None)
        raise
    givers.sent(receiver)


def _upload(
    connection: Connection, archive: "Archive", target: str, on_sent: Callable[[int], None] | None
) -> None:
    folder = archive.folder
    keep = f"mkdir -p {folder} && cat > {folder}/archive && : > {folder}/complete"
    connection.pipe(f"{keep} && {archive.unpack_command(target)}", _counted(archive.read(), on_sent))


def _counted(pieces: Iterator[bytes], on_sent: Callable[[int], None] | None) -> Iterator[bytes]:
    for piece in pieces:
        if on_sent is not None:
            on_sent(len(piece))
        yield piece


def _copy(connection: Connection, giver: EnvironmentPeer, archive: "Archive", target: str) -> None:
    """Let an instance offer the archive, and another fetch it; the key goes over SSH, to both."""
    source = giver.connect()
    key = secrets.token_hex(KEY_BYTES)
    order = {"folder": PLACE, "name": archive.name, "key": key, "host": giver.host}
    offer = source.check(f"{PEER} serve", stdin=json.dumps({**order, "system": ""}).encode())
    request = {**order, "port": read_answer(source, offer).get("port")}
    command = f"{PEER} fetch && {archive.unpack_command(target)}"
    connection.check(command, stdin=json.dumps(request).encode(), timeout_s=COPY_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Files packed into a temporary file, which has no name and goes with this process."""

    file: IO[bytes]
    digest: str
    givers: "Givers"

    @property
    def folder(self) -> str:
        """The folder on an instance."""
        return f"{PLACE}/{self.name}"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.digest[:32]

    def read(self) -> Iterator[bytes]:
        """Yield the content in pieces; several threads may read at the same time."""
        position = 0
        while piece := os.pread(self.file.fileno(), _PIECE, position):
            yield piece
            position += len(piece)

    def unpack_command(self, target: str) -> str:
        """Return the command that verifies the archive, and then unpacks it."""
        path, folder = f"{self.folder}/archive", shlex.quote(target)
        check = f"echo '{self.digest}  {path}' | sha256sum -c --status"
        return f"{check} && mkdir -p {folder} && tar -xzof {path} -C {folder}"


class Givers:
    """The instances that have an archive, and may give a copy now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: deque[EnvironmentPeer] = deque()
        self._turns = 0
        self._sending = 0

    def take(self) -> EnvironmentPeer | None:
        """Wait for an instance that can give a copy, and reserve it; None: this machine is to send."""
        with self._changed:
            while not self._free:
                if not self._turns and self._sending < SEEDS:
                    self._sending += 1
                    return None
                self._changed.wait(WAKE_S)
            return self._free.popleft()

    def send(self) -> None:
        """Count one more that this machine sends to."""
        with self._changed:
            self._sending += 1

    def gave(self, giver: EnvironmentPeer, receiver: EnvironmentPeer) -> None:
        """Let both of them give from now on."""
        self._add(giver, *[receiver] * CLIENTS, new=CLIENTS)

    def failed(self) -> None:
        """Forget a copy that an instance was to give."""
        self._add(new=-1)

    def sent(self, receiver: EnvironmentPeer | None) -> None:
        """Let an instance give that this machine has sent to; None: it could not be sent to."""
        with self._changed:
            self._sending -= 1
        if receiver is None:
            self._add(new=0)
        else:
            self._add(*[receiver] * CLIENTS, new=CLIENTS)

    def _add(self, *free: EnvironmentPeer, new: int) -> None:
        with self._changed:
            self._free.extend(free)
            self._turns += new
            self._changed.notify(len(free) or SEEDS)
