"""Events as lines: for logs and pipes, without a terminal."""

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
from dlcloud.model.events import Info, Progress, StageDone, StageStarted, Warned


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
