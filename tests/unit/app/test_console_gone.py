"""A terminal that was closed, a pipe without a reader, a full disk: the command goes on, and cleans up."""

import errno
import io
import sys

import pytest

from dlcloud.app.terminal.console import LiveConsole, PlainConsole
from dlcloud.cli.main import report_error
from dlcloud.model.events import Info, StageDone, StageStarted, Warned

EVENTS = [
    StageStarted(message="terminating", instance_id="i-1"),
    Info(message="note"),
    StageDone(message="terminating", seconds=1, instance_id="i-1"),
    Warned(message="left"),
]


class Gone(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def isatty(self):
        return True

    def write(self, _):
        raise OSError(self.number, "gone")

    def flush(self):
        raise OSError(self.number, "gone")


@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE, errno.ENOSPC])
@pytest.mark.parametrize("kind", [PlainConsole, LiveConsole])
def test_a_stream_that_is_gone_does_not_stop_the_command(monkeypatch, kind, number):
    monkeypatch.setattr(sys, "stderr", Gone(number))
    with kind() as console:
        for event in EVENTS:
            console.emit(event)
        with console.suspended():
            pass


def test_a_closed_stream_does_not_stop_the_command():
    stream = io.StringIO()
    stream.close()
    console = PlainConsole(stream)
    for event in EVENTS:
        console.emit(event)


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free space on"), (errno.EROFS, "make writable"), (errno.EFBIG, "free")],
)
def test_a_full_disk_is_no_bug_of_ours(capsys, number, hint):
    status = report_error(OSError(number, "No room", "out.jsonl"), command="export", arguments=[])
    assert status == 1
    text = capsys.readouterr().err
    assert "cannot write out.jsonl: No room" in text
    assert hint in text
