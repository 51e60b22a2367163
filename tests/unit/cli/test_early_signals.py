"""Ctrl-C, SIGTERM and SIGHUP in the first and in the last moments of a command."""

import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.terminal import await_handlers

TIMEOUT_S = 50
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
