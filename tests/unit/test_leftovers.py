"""What tests start ends with them, also where their process is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = f"""
import subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests import leftovers
leftovers.watch()
sleeping = "import time; print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleeping], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_tests_started_ends_with_them(number):
    tests = subprocess.Popen([sys.executable, "-c", TESTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child = int(tests.stdout.readline())
    os.kill(tests.pid, number)
    tests.wait()
    deadline = time.monotonic() + 600
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(process):
    """True unless it has ended; its status may still be there, if another test has adopted orphans."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
