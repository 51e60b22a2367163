"""What an instance answers about its jobs and sends as records: bounded, and an error where it is neither."""

from types import SimpleNamespace

import pytest

from dlcloud.launch import remote_jobs
from dlcloud.launch.remote_jobs import log_tail, parse_job_state, whole_lines
from dlcloud.launch.setup import read_answer
from dlcloud.model.errors import RemoteCommandError


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_a_line_of_any_length_is_left_out_in_bounded_memory(monkeypatch, size):
    monkeypatch.setattr(remote_jobs, "LONGEST_LINE", 100)
    content = b"first\n" + b"x" * 5000 + b"\nlast\n"
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    found = [
        (position + lines.find(line), line)
        for position, lines in whole_lines(pieces, 0)
        for line in lines.splitlines(keepends=True)
        if len(line) < 100
    ]
    assert found == [(0, b"first\n"), (5007, b"last\n")]


def test_a_line_without_an_end_is_not_collected(monkeypatch):
    monkeypatch.setattr(remote_jobs, "LONGEST_LINE", 1000)
    assert list(whole_lines((b"x" * 300 for _ in range(10_000)), 0)) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"null",
        b'"running"',
        b"[" * 100_000,
        b'{"state": "shining", "exit_status": 0}',
        b'{"state": ["ended"], "exit_status": 0}',
        b'{"state": "ended", "exit_status": "0"}',
        b'{"state": "ended", "exit_status": true}',
        b'{"state": "ended", "exit_status": 1.5}',
        b'{"state": "ended", "exit_status": 99999999999}',
    ],
)
def test_a_state_that_is_none_is_an_error_of_the_instance(answer):
    with pytest.raises(RemoteCommandError, match="i-1: unexpected job status"):
        parse_job_state(answer, "i-1")


@pytest.mark.parametrize("output", [b"", b"\n", b"[1]", b"[" * 100_000, b"\xff", b"x" * 1000])
def test_an_answer_that_is_no_object_is_an_error(output):
    connection = SimpleNamespace(endpoint=SimpleNamespace(instance_id="i-1"))
    with pytest.raises(RemoteCommandError, match="gave no answer"):
        read_answer(connection, output)


def test_the_end_of_a_log_cannot_control_the_terminal(tmp_path):
    (tmp_path / "log").write_bytes(b"\x1b]0;owned\x07\x1b[2Jfailed\n\xff\xfe")
    tail = log_tail(tmp_path / "log")
    assert "failed" in tail
    assert not set(tail) & set("\x1b\x07")
