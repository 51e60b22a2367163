"""Send the user's files to an instance: all at first, then only what changed, as rsync would."""

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from dlcloud.launch.setup import FOLDER
from dlcloud.model.clock import Clock
from dlcloud.model.errors import RemoteCommandError
from dlcloud.model.events import Emit, Progress, stage
from dlcloud.model.remote import Connection
from dlcloud.model.untrusted import parse_json
from dlcloud.recipe.sent_files import Changes, FileSet, count_files, format_size
from dlcloud.resources.texts import template
from dlcloud.ssh.listing import list_files

COPY = f"{FOLDER}/files"
"""The folder on an instance of the copy that runs are given; nothing else writes there."""

PROGRAM = f"{FOLDER}/files.py"
RUN = f"python3 -I -S {PROGRAM}"
INSTALL = f"mkdir -p {FOLDER} && cat > {PROGRAM}.$$ && mv -f {PROGRAM}.$$ {PROGRAM} && {RUN} manifest {COPY}"
"""The command that takes the program as its input and prints the manifest."""

SOURCE = ""
"""The name in a manifest of the folder that it describes: no file has it."""

PROGRESS_EVERY_S = 1.0


def check_files(source: Path) -> FileSet:
    """Return the files of a folder, or the one file, if they can be sent.

    Raises:
        RecipeError: They cannot be read, are too many or too large.
    """
    files = list_files(source)
    files.check()
    return files


Send = Callable[..., None]
"""`Connection.send_files`, or what takes its arguments and sends them in another way."""


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
        self._emit(
            Progress(message=message, instance_id=self._instance_id, done=self._sent, total=self._total)
        )
