"""The commands that a self-test starts, on their own."""

import signal
import subprocess
import time

import pytest

from dlcloud.app.account.selftest import start_command


@pytest.mark.parametrize("delay_s", [0, 0.005, 0.02, 0.05])
def test_ctrl_c_while_a_command_starts_prints_no_traceback(delay_s, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    process = start_command(["status"])
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode in {0, 130}
    assert "Traceback" not in capfd.readouterr().err


def test_ctrl_c_reaches_later_commands(tmp_path, monkeypatch):
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    start_command(["status"]).communicate(timeout=60)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
