"""Ctrl-C, SIGTERM and SIGHUP at any moment end a command with one line, and no library drops them."""

import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.terminal import await_handlers

TIMEOUT_S = 50

DROPPED = """
import os, signal
from typing import Annotated
from pydantic import BaseModel, Discriminator, Tag

def press():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass

class Dropped:
    def __del__(self):
        press()

def in_a_destructor():
    dropped = Dropped()
    del dropped

def in_a_serializer():
    pressed = []
    def form(value):
        if pressed == [1]:
            pressed.append(2)
            press()
        return "number"
    class Model(BaseModel):
        count: Annotated[Annotated[int, Tag("number")] | Annotated[str, Tag("text")], Discriminator(form)]
    model = Model(count=1)
    pressed.append(1)
    model.model_dump()
"""

COMMAND = """
import sys, time, click
from dlcloud.cli import main
from dlcloud.app.context import log_to_file
from dlcloud.store.home import Paths
from pathlib import Path

@click.command()
def command():
    log_to_file(Paths(Path.cwd()), "test", verbose=False)
    print("begun", flush=True)
    work()
    print("went on", flush=True)
    time.sleep(60)

main.dlcloud = command
sys.argv = ["dlcloud"]
main.main()
"""


@pytest.fixture
def run_command(tmp_path):
    """Run a command that does some work; return its output, its errors and its exit status."""

    def run(work, before=""):
        program = f"{DROPPED}\n{before}\ndef work():\n    {work}\n{COMMAND}"
        arguments = [sys.executable, "-c", program]
        done = subprocess.run(
            arguments, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        return done.stdout.split("\n")[:-1], done.stderr.strip(), done.returncode

    return run


@pytest.mark.parametrize("place", ["in_a_destructor", "in_a_serializer"])
def test_ctrl_c_that_a_library_drops_is_raised_again(run_command, place):
    # On a busy machine it is raised before the next line of the command; if it were lost, that would sleep.
    output, errors, status = run_command(f"{place}()")
    assert (output[0], errors, status) == ("begun", "interrupted", 130)


def test_a_librarys_warning_is_in_the_log(run_command, tmp_path):
    run_command("in_a_serializer()")
    (log,) = tmp_path.glob("logs/*.log")
    assert "Pydantic serializer warnings" in log.read_text()


def test_ctrl_c_that_no_library_drops_is_raised_at_once(run_command):
    assert run_command("press()") == (["begun"], "interrupted", 130)


def test_an_interrupt_that_a_command_has_handled_is_not_raised_again(run_command):
    work = """
    try:
        press()
    except KeyboardInterrupt as error:
        error.handled = True
    time.sleep(0.5)
    print("undone")
    sys.exit(7)
    """
    assert run_command(work) == (["begun", "undone"], "", 7)


def test_ctrl_c_pressed_while_the_first_is_reported_shows_no_traceback(run_command):
    assert run_command("main.click.echo = lambda *_, **__: press(); press()") == (["begun"], "", 130)


def test_a_terminal_that_was_closed_does_not_change_the_exit_status(run_command):
    close = "far, near = os.openpty(); os.close(far); os.dup2(near, 1); os.dup2(near, 2); raise click.Abort"
    assert run_command(close) == (["begun"], "", 130)


def test_a_command_started_to_ignore_ctrl_c_goes_on_ignoring_it(run_command):
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert run_command("press(); sys.exit(7)", before=ignore) == (["begun"], "", 7)


HEARD = "import _signal; _signal.signal(1, _signal.SIG_DFL); "  # where the tests themselves run under nohup
START = "from dlcloud.cli.entry import main; main()"


def _start(*words, home, before=""):
    return subprocess.Popen(
        [sys.executable, "-c", HEARD + before + START, *words],
        env={"DLCLOUD_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after_s", [0, 0.003, 0.02, 0.06, 0.1])
def test_a_signal_while_a_command_starts_ends_it_with_one_line(number, after_s, tmp_path):
    process = _start("logs", "-f", "nothing", home=tmp_path)
    await_handlers(process)
    time.sleep(after_s)
    process.send_signal(number)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    if process.returncode != 2:  # it was quicker: there is no such run
        assert (errors, process.returncode) == ("interrupted\n", 130)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_when_the_result_is_printed_keeps_the_result(number, tmp_path):
    stop = "import atexit, time; atexit.register(lambda: (print('over', flush=True), time.sleep(600))); "
    process = _start("--version", home=tmp_path, before=stop)
    line = process.stdout.readline()
    assert process.stdout.readline() == "over\n"
    process.send_signal(number)
    rest, errors = process.communicate(timeout=TIMEOUT_S)
    assert line.startswith("dlcloud")
    assert (rest, errors, process.returncode) == ("", "interrupted\n", 130)


def test_a_command_that_ignores_a_signal_from_its_start_goes_on_ignoring_it(tmp_path):
    ignore = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    process = _start("--version", home=tmp_path, before=ignore + "import os; os.kill(os.getpid(), 1); ")
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (0, "")
    assert output.startswith("dlcloud")
