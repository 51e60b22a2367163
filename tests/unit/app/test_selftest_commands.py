"""The commands that a self-test starts, on their own."""

import signal
import subprocess
import time
from pathlib import Path

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


def test_a_profile_of_the_user_is_removed_for_a_command_with_other_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    process = start_command(["status"], {"AWS_PROFILE": "", "AWS_ACCESS_KEY_ID": "AKIA"})
    while not (environment := Path(f"/proc/{process.pid}/environ").read_bytes()):
        time.sleep(0.001)  # the kernel has not filled it in yet
    variables = environment.split(b"\0")
    process.communicate(timeout=60)
    assert b"AWS_ACCESS_KEY_ID=AKIA" in variables
    assert not [one for one in variables if one.startswith(b"AWS_PROFILE=")], (
        "an empty one is a profile of no name"
    )
