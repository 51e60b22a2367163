"""What a coding agent meets: plain lines also in a terminal, and the skill where it looks for skills."""

import os
import pty
import subprocess
import sys

import pytest

from tests.unit.cli.conftest import ROOT, START

TEXT = (ROOT / "templates" / "skill.md").read_text("utf-8")


def printed_on_a_terminal(home, words, **environment):
    controller, terminal = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", START, *words],
        env=kept | {"PYTHONPATH": str(ROOT), "DLCLOUD_HOME": str(home), "TERM": "xterm", **environment},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        timeout=60,
        check=False,
    )
    os.close(terminal)
    printed = b""
    while True:
        try:
            printed += os.read(controller, 65536)
        except OSError:  # all is read
            os.close(controller)
            return printed.decode()


def test_a_person_sees_colours_on_a_terminal(home):
    assert "\033[" in printed_on_a_terminal(home, ["status", "nope"])


@pytest.mark.parametrize("variable", ["CLAUDECODE", "AI_AGENT", "CODEX_SANDBOX"])
def test_an_agent_reads_plain_lines_on_a_terminal(home, variable):
    printed = printed_on_a_terminal(home, ["status", "nope"], **{variable: "1"})
    assert "no cluster" in printed
    assert "\033[" not in printed


def test_an_agent_is_not_asked(home, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('64 images/s')\n")
    printed = printed_on_a_terminal(home, ["init", str(script)], CLAUDECODE="1")
    assert "train.yaml" in printed
    assert "[y/N]" not in printed


def test_the_skill_is_installed_where_agents_look(dlcloud, tmp_path):
    for _ in range(2):
        done = dlcloud("skill", "--install", HOME=str(tmp_path))
        assert done.status == 0, done.stderr
    for folder in (".claude", ".agents"):
        path = tmp_path / folder / "skills" / "dlcloud" / "SKILL.md"
        assert path.read_text("utf-8") == TEXT
        assert str(path) in done.stdout
