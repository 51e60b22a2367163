"""`dlcloud exec`: a command on every instance of a cluster in parallel.

On a single instance it is like ssh: the output is printed as it arrives, and the command's exit status is
that of `dlcloud exec`. On several, each instance's output is kept, in files beyond a mebibyte, until all have
answered.
"""

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
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

Streams = tuple[IO[bytes], IO[bytes]]
"""Standard output and standard error of one instance."""

_IN_MEMORY_BYTES = 1 << 20
"""The bytes of each stream that are kept in memory; more is kept in a temporary file."""

_MOST_BYTES = 8 << 20
"""The bytes of each stream, its last, that a document has (--output json and others)."""


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
        streams = {member.instance.instance_id: _streams(opened, is_live=is_live) for member in members}

        def run_on(member: Member) -> int:
            # A command counts as work: the idle timer starts anew (templates/watchdog.py).
            connection = dialer.dial(member.instance.endpoint(own.user))
            stdout, stderr = streams[member.instance.instance_id]
            command = f"touch {FOLDER}/used 2>/dev/null; {line}"
            return connection.relay(command, out=writer_to(stdout), err=writer_to(stderr))

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


def _streams(opened: ExitStack, *, is_live: bool) -> Streams:
    """Return where one instance's output goes: to this process's own, or to files until it is printed."""
    if is_live:
        return sys.stdout.buffer, sys.stderr.buffer
    return opened.enter_context(_temporary_file()), opened.enter_context(_temporary_file())


def _temporary_file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)


def _print_output(instance_id: str, streams: Streams) -> None:
    """Print what an instance wrote, each line with the instance's id."""
    prefix = f"{instance_id}: ".encode()
    for source, target in zip(streams, (sys.stdout.buffer, sys.stderr.buffer), strict=True):
        source.seek(0)
        write = writer_to(target)
        for line in source:
            write(prefix + line.removesuffix(b"\n") + b"\n")


def _text(stream: IO[bytes]) -> str:
    """Return what was written, or only its end if it is long."""
    size = stream.seek(0, os.SEEK_END)
    begin = max(0, size - _MOST_BYTES)
    stream.seek(begin)
    text = stream.read().decode("utf-8", "replace")
    return f"[{begin} bytes before this are left out]\n{text}" if begin else text


def _report(outcomes: Sequence[CallOutcome[Member, int]], streams: Mapping[str, Streams]) -> Report:

    records = [
        {
            "instance_id": outcome.item.instance.instance_id,
            "exit_status": outcome.value,
            "stdout": _text(streams[outcome.item.instance.instance_id][0]),
            "stderr": _text(streams[outcome.item.instance.instance_id][1]),
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
