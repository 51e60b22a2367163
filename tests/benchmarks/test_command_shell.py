"""A user's command does what bash would do with a script and its arguments."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlcloud.benchmarks.command import variant as variants
from dlcloud.benchmarks.command.output import Pattern
from dlcloud.benchmarks.command.shell import shell_words, takes_arguments, with_arguments
from dlcloud.benchmarks.command.variant import CommandVariant, Setting
from dlcloud.benchmarks.harness.case import VariantError

ARGUMENTS = ("--lr", "0 .1", "$HOME", "it's")
SHOW = "printf '%s|'"


@pytest.mark.parametrize(
    "command",
    [
        SHOW,
        f"{SHOW}\n",
        f"\n  # prints\n{SHOW} \\\n",
        f"{SHOW}  # the last comment",
        f"{SHOW} \\\n  # one\n\n# more, with 'a quote'\n",
        f'{SHOW} "$@"',
        f'true\n{SHOW} "$@"\ntrue\n',
        f'for word in "${{@}}"; do {SHOW} "$word"; done',
        f"x='$1'; {SHOW}",
        f"x='a\nb'; {SHOW}",
        f"echo '$@' >/dev/null; {SHOW}",
    ],
)
def test_arguments_reach_the_program(command):
    assert takes_arguments(command)
    expected = "".join(f"{word}|" for word in ARGUMENTS)
    for words in (shell_words(command, ARGUMENTS), shell_words(with_arguments(command, ARGUMENTS))):
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == expected


def test_arguments_of_the_tiny_form_come_last():
    command = with_arguments(f'true\n{SHOW} "$@"\n', ["--steps", "2"])
    assert (
        subprocess.run(shell_words(command, ["a"]), capture_output=True, check=True).stdout == b"a|--steps|2|"
    )


@pytest.mark.parametrize(
    "command", ["python p.py\necho finished", "cd x\npython p.py\n", "a\nawk '{print $1}'"]
)
def test_a_script_that_reads_no_arguments_takes_none(command):
    assert not takes_arguments(command)


def test_python_is_python3_if_an_image_has_no_program_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "__file__", str(tmp_path / "benchmarks" / "command" / "variant.py"))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    (tmp_path / "programs").mkdir()
    for _ in range(2):  # two commands of one run
        path = variants.activate({"PATH": str(tmp_path / "programs")})["PATH"]
    folders = [Path(folder) for folder in path.split(os.pathsep)]
    assert next(one / "python" for one in folders if (one / "python").exists()).readlink() == Path(
        sys.executable
    )
    assert variants.activate({"PATH": path}) == {"PATH": path}


def variant(tmp_path, command, echo, **changes):
    (tmp_path / "work").mkdir(exist_ok=True)
    values = {"setting": Setting(name="a"), "reader": Pattern.parse("([0-9.]+) images/s"), "warm_up_runs": 0}
    values |= {"final": False, "counted": "images", "environment": dict(os.environ), "echo": echo}
    return CommandVariant(command=command, folder=tmp_path / "work", **{**values, **changes})


def measure(tmp_path, command, **changes):
    with (tmp_path / "echo").open("wb") as echo:
        measured = variant(tmp_path, command, echo, **changes)
        try:
            return measured.measure(0.0), (tmp_path / "echo").read_text()
        finally:
            measured.close()


def test_every_line_runs_in_the_work_folder(tmp_path):
    measure(tmp_path, "sleep 60 &\npwd > first\necho '5 images/s'\npwd > second\n")
    folder = tmp_path / "work"
    assert (folder / "first").read_text() == (folder / "second").read_text() == f"{folder}\n"


def test_a_run_ends_with_its_command_though_a_child_keeps_its_output(tmp_path):
    began = time.monotonic()
    run, _ = measure(tmp_path, "(sleep 600 >&2) &\necho done\n", reader=None)
    assert run.value < 300
    assert time.monotonic() - began < 300


def test_what_a_pipe_still_holds_is_read(tmp_path):
    _, echo = measure(tmp_path, "exec > >(sleep 0.2; cat; echo last)\necho '5 images/s'\n")
    assert echo == "5 images/s\nlast\n"


def test_a_crash_before_a_pipe_fails_the_run(tmp_path):
    with pytest.raises(VariantError, match="ended with status 3: 5 images/s"):
        measure(tmp_path, "(echo '5 images/s'; exit 3) | tee log\n")
