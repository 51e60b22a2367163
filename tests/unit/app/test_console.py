"""Events and output on streams: whole lines, text and colours only, and no stream ends a command."""

import errno
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlcloud.app.terminal.console import LiveConsole, PlainConsole, line_of
from dlcloud.app.terminal.screen import TerminalFilter, writer_to
from dlcloud.cli.main import report_error
from dlcloud.model.errors import InstanceError
from dlcloud.model.events import Info, Progress, StageDone, StageStarted, Warned
from dlcloud.report.table import Format, Report, Section, render


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (StageStarted(message="launching"), "launching ..."),
        (StageDone(message="launching", seconds=1.26), "done in 1.3 s: launching"),
        (StageStarted(message="setting up", instance_id="i-1"), "i-1  setting up ..."),
        (Warned(message="no spot"), "warning: no spot"),
        (Info(message="kept"), "kept"),
        (Progress(message="vgg16", instance_id="i-1"), "i-1  vgg16"),
        (Progress(message="vgg16", done=1, total=4), "1 of 4: vgg16"),
        (Progress(message="vgg16", total=4.0), "0 of 4: vgg16"),
        (Progress(message="step", done=1_234_567, total=2e6), "1,234,567 of 2,000,000: step"),
        (Progress(message="vgg16", done=2, total=4, remaining_s=29.6), "2 of 4, about 30 s left: vgg16"),
        (Progress(message="b", done=2, total=4, remaining_s=400), "2 of 4, about 7 min left: b"),
        (Progress(message="b", done=2, total=4, remaining_s=7500), "2 of 4, about 2 h 5 min left: b"),
    ],
)
def test_every_event_is_a_line(event, line):
    assert line_of(event) == line


def test_progress_is_printed_every_ten_seconds_per_instance():
    stream = io.StringIO()
    console = PlainConsole(stream)
    console._printed_at["i-1"] = console._started  # as if just printed
    for _ in range(3):
        console.emit(Progress(message="one", instance_id="i-1"))
    console.emit(Warned(message="careful", instance_id="i-1"))
    console._printed_at["i-1"] -= 10
    for _ in range(3):
        console.emit(Progress(message="two", instance_id="i-1"))
    assert [line.split("  ")[-1] for line in stream.getvalue().splitlines()] == ["warning: careful", "two"]


def test_lines_of_many_threads_stay_whole():
    stream = io.StringIO()
    console = PlainConsole(stream)

    def emit_all(name):
        for number in range(50):
            console.emit(Info(message=f"{name} {number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(emit_all, "abcd"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 200
    assert all(re.fullmatch(r" +\d+\.\d s  [abcd] \d+", line) for line in lines)


def test_events_wait_while_something_else_asks_on_the_terminal():
    stream = io.StringIO()
    console = PlainConsole(stream)
    with console.suspended():
        late = threading.Thread(target=console.emit, args=(Info(message="later"),))
        late.start()
        assert stream.getvalue() == ""
    late.join()
    assert "later" in stream.getvalue()


def test_the_live_display_leaves_the_terminal_and_comes_back():
    with LiveConsole() as console:
        console.emit(StageStarted(message="asking"))
        assert console._display.live.is_started
        with console.suspended():
            assert not console._display.live.is_started
        assert console._display.live.is_started


def test_overlapping_waits_share_a_spinner_that_goes_with_the_last():
    with LiveConsole() as console:
        with console.waiting("asking AWS"):
            with console.waiting("asking AWS again"):
                assert len(console._display.tasks) == 1
            assert console._display.live.is_started
        assert not console._display.live.is_started
        console.emit(StageStarted(message="launching"))
        with console.waiting("asking AWS"):
            assert [task.description for task in console._display.tasks] == ["launching ..."]
        assert console._display.live.is_started


TABLE = """
from dlcloud.app.terminal.console import LiveConsole
from dlcloud.model.events import Progress
rows = (("done", "40 of 200"), ("USD at the end", "about 0.6"), ("best so far", "x" * 200))
with LiveConsole() as console:
    console.emit(Progress(message="not shown", done=40, total=200, rows=rows))
    console._display.refresh()
"""


def test_rows_are_a_table_below_each_other_on_a_terminal_of_80_columns():
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    environment["TERM"] = "xterm"
    subprocess.run([sys.executable, "-c", TABLE], stderr=terminal, env=environment, check=True)
    os.close(terminal)
    text = os.read(screen, 1 << 16).decode()
    os.close(screen)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in re.split("[\r\n]", text)]
    assert any(re.search(r"0:00:0\d done +40 of 200$", line) for line in lines)
    assert any(re.fullmatch(r" +USD at the end +about 0\.6", line) for line in lines)
    assert any(re.fullmatch(r" +best so far +x+", line) for line in lines)
    assert max(map(len, lines)) <= 80
    assert "not shown" not in text


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


EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x9b31m\u202eok\x00"


class Stream(io.BytesIO):
    """A stream that may be a terminal."""

    def __init__(self, *, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("plain größer 日本\n\t|\r50 %", "plain größer 日本\n\t|\r50 %"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (EVIL, "]0;owned[2J[1;1H31mok"),
        ("\x1b[6n\x1bc\x1bPq\x1b\\", "[6ncPq\\"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_terminal_gets_text_and_colours_only(sent, shown, size):
    stream = Stream(terminal=True)
    write = writer_to(stream)
    content = sent.encode()
    for start in range(0, len(content), size):
        write(content[start : start + size])
    assert stream.getvalue().decode() == shown


def test_a_file_gets_every_byte():
    stream = Stream(terminal=False)
    writer_to(stream)(EVIL.encode() + b"\xff")
    assert stream.getvalue() == EVIL.encode() + b"\xff"


def test_a_sequence_without_an_end_is_not_kept_for_ever():
    terminal = TerminalFilter()
    for _ in range(100):
        terminal.filter(b"\x1b[" + b"1" * 1000)
    assert len(terminal._pending) < 100


def test_events_and_errors_cannot_control_the_terminal(capsys):
    assert "\x1b" not in line_of(Warned(message=EVIL))
    report_error(InstanceError(EVIL, EVIL), command="up", arguments=["up"])
    assert not set(capsys.readouterr().err) & set("\x07\x00\x9b\u202e")


@pytest.mark.parametrize("form", Format)
def test_tables_cannot_control_the_terminal_or_a_spreadsheet(form):
    section = Section(heading=EVIL, titles=("a",), rows=[(EVIL,)], notes=(EVIL,))
    records = [{"a": EVIL, "b": "=cmd|' /C calc'!A0"}]
    text = render(Report(command="x", records=records, sections=[section], empty=""), form)
    assert not set(text) & set("\x07\x00\x9b\x1b\u202e")
    assert form is not Format.CSV or ",'=cmd" in text
