"""`dlcloud exec`: a command on every instance of a cluster in parallel.

On a single instance it is like ssh: the output is printed as it arrives, and the command's exit status is
that of `dlcloud exec`. On several, each instance's output is kept until all have answered: in files beyond a
mebibyte, and of what all of them print together, no more than the last gibibyte.
"""

import re
import shlex
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO

from dlcloud.app.clusters.members import find_members
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say, writer_to
from dlcloud.launch.setup import FOLDER
from dlcloud.model.cluster import Member
from dlcloud.model.errors import PartialError, RemoteCommandError
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.system.parallel import CallOutcome, fan_out

_IN_MEMORY_BYTES = 1 << 20
"""The bytes of all streams that are kept in memory; more is kept in temporary files."""

_IN_FILES_BYTES = 1 << 30
"""The bytes of all streams that are kept: the last of each."""

_DOCUMENT_BYTES = 16 << 20
"""The bytes of all streams, their last, that a document has (--output json and others)."""

_PIECE = 1 << 16


class Kept:
    """The last bytes that were written to a stream, at least `limit / 2` of them."""

    def __init__(self, opened: ExitStack, *, limit: int, in_memory: int) -> None:
        self._opened, self._half, self._in_memory = opened, max(1, limit // 2), in_memory
        self._files: deque[IO[bytes]] = deque([self._new()])
        self.left_out = 0

    def write(self, piece: bytes) -> None:
        """Keep what a stream has next; once a file is full, forget the one before it."""
        for begin in range(0, len(piece), self._half):
            if self._files[-1].tell() >= self._half:
                self._files.append(self._new())
            if len(self._files) > MOST_FILES:
                with self._files.popleft() as forgotten:
                    self.left_out += forgotten.tell()
            self._files[-1].write(piece[begin : begin + self._half])

    def pieces(self, most: int | None = None) -> Iterator[bytes]:
        """Yield what is kept, or only its end, after a line that states what is left out."""
        size = sum(file.tell() for file in self._files)
        skipped = 0 if most is None else max(0, size - most)
        if self.left_out + skipped:
            yield f"[{self.left_out + skipped} bytes before this are left out]\n".encode()
        for file in self._files:
            end = file.tell()
            file.seek(min(skipped, end))
            skipped = max(0, skipped - end)
            while piece := file.read(_PIECE):
                yield piece

    def _new(self) -> IO[bytes]:
        return self._opened.enter_context(tempfile.SpooledTemporaryFile(self._in_memory))


MOST_FILES = 2
Streams = tuple[Kept, Kept]
"""Standard output and standard error of one instance."""


def run(context: Context, *, cluster: str, words: tuple[str, ...], instance: str, output: str) -> int | None:
    """Run a command on a cluster's instances in parallel, and print their output, instance by instance.

    Returns:
        Of a single instance, the command's exit status; None for success everywhere.

    Raises:
        RemoteCommandError: It failed on all of several instances.
        PartialError: It failed on some of them.
    """
    status = context.forward_command(cluster)
    if status is not None:
        return status
    own = context.find_cluster(cluster)
    members = find_members(context, own, instance)
    dialer = context.machines.admitting_dialer(own)
    line = words[0] if len(words) == 1 else shlex.join(words)
    is_table = output == Format.TABLE
    with ExitStack() as opened:
        is_live = is_table and len(members) == 1
        share = 2 * max(1, len(members))
        limits = {"limit": _IN_FILES_BYTES // share, "in_memory": _IN_MEMORY_BYTES // share}
        streams: dict[str, Streams] = {
            member.instance.instance_id: (Kept(opened, **limits), Kept(opened, **limits))
            for member in members
        }

        def run_on(member: Member) -> int:
            # A command counts as work: the idle timer starts again (templates/watchdog.py).
            connection = dialer.dial(member.instance.endpoint(own.user))
            command = f"touch {FOLDER}/used 2>/dev/null; {line}"
            if is_live:
                stdout, stderr = writer_to(sys.stdout.buffer), writer_to(sys.stderr.buffer)
            else:
                stdout, stderr = (kept.write for kept in streams[member.instance.instance_id])
            return connection.relay(command, out=stdout, err=stderr)

        outcomes = fan_out(run_on, members, width=None)
        if not is_table:
            say(render(_report(outcomes, streams), Format(output)))
        elif len(members) > 1:
            for instance_id, written in streams.items():
                _print_output(instance_id, written)
    if len(outcomes) == 1 and outcomes[0].error is None:
        return outcomes[0].value
    _raise_for(outcomes)
    return None


def _print_output(instance_id: str, streams: Streams) -> None:
    """Print what an instance wrote, each line with the instance's id."""
    prefix = f"{instance_id}: ".encode()
    for kept, target in zip(streams, (sys.stdout.buffer, sys.stderr.buffer), strict=True):
        write, is_begun = writer_to(target), False
        for piece in kept.pieces():
            lines = re.findall(rb"[^\n]*\n|[^\n]+", piece)
            write((b"" if is_begun else prefix) + prefix.join(lines))
            is_begun = not piece.endswith(b"\n")
        if is_begun:
            write(b"\n")


def _text(kept: Kept, most: int) -> str:
    """Return what was written, or only its end if it is long."""
    return b"".join(kept.pieces(most)).decode("utf-8", "replace")


def _report(outcomes: Sequence[CallOutcome[Member, int]], streams: Mapping[str, Streams]) -> Report:

    most = _DOCUMENT_BYTES // (2 * max(1, len(outcomes)))
    records = [
        {
            "instance_id": outcome.item.instance.instance_id,
            "exit_status": outcome.value,
            "stdout": _text(streams[outcome.item.instance.instance_id][0], most),
            "stderr": _text(streams[outcome.item.instance.instance_id][1], most),
            "error": str(outcome.error) if outcome.error else None,
        }
        for outcome in outcomes
    ]
    rows = [[str(value).strip() for value in record.values()] for record in records]
    section = Section(heading="", titles=("instance", "status", "stdout", "stderr", "error"), rows=rows)
    return Report(command="exec", records=records, sections=[section], empty="")


def _raise_for(outcomes: Sequence[CallOutcome[Member, int]]) -> None:
    failed = [outcome for outcome in outcomes if outcome.value != 0]
    if not failed:
        return
    lines = [f"{outcome.item.instance.instance_id}: {_reason(outcome)}" for outcome in failed]
    kind = RemoteCommandError if len(failed) == len(outcomes) else PartialError
    summary = f"the command failed on {len(failed)} of {len(outcomes)} instance(s)"
    raise kind("\n".join([summary, *lines]), result_shown=True)


def _reason(outcome: CallOutcome[Member, int]) -> str:
    return f"status {outcome.value}" if outcome.value else str(outcome.error)
