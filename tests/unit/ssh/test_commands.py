"""Input, output and exit status of commands; threads that send take turns."""

import threading
import time

import pytest

from dlcloud.model.errors import RemoteCommandError, UnreachableError
from dlcloud.ssh import connection as connections
from dlcloud.ssh.process import Gate
from dlcloud.system.parallel import all_or_raise, fan_out

MIB = 1 << 20


def test_a_command_gives_status_and_both_streams(connection):
    completed = connection.run("echo out; echo err >&2; exit 3")
    assert (completed.exit_status, completed.stdout, completed.stderr) == (3, b"out\n", b"err\n")
    out, err = bytearray(), bytearray()
    assert connection.relay("echo one; echo two >&2; exit 5", out=out.extend, err=err.extend) == 5
    assert (bytes(out), bytes(err)) == (b"one\n", b"two\n")
    assert connection.check("cat; echo end") == b"end\n", "no input is the end of input"
    with pytest.raises(RemoteCommandError) as caught:
        connection.check("echo no room >&2; exit 28")
    assert caught.value.message == "i-0abc: `echo no room >&2; exit 28` ended with status 28:\nno room"


def test_output_of_an_instance_has_an_end_and_cannot_control_the_terminal(monkeypatch, connection):
    with pytest.raises(RemoteCommandError) as caught:
        connection.check(r"printf '\033[2J\033]0;owned\007' >&2; false")
    assert "\x1b" not in caught.value.message
    monkeypatch.setattr(connections, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(RemoteCommandError, match="printed more than 1 MiB"):
        connection.check("yes")


def test_a_command_ended_by_a_signal_is_no_broken_connection(connection):
    assert connection.run("kill -TERM $$").exit_status == -1
    with pytest.raises(RemoteCommandError, match="killed by a signal"):
        connection.check("kill -TERM $$")
    assert connection.check("echo on") == b"on\n"


def test_much_in_and_much_out_on_both_streams_at_once(connection):
    content = bytes(range(256)) * (24 * MIB // 256)
    completed = connection.run("tee /dev/stderr", stdin=content, timeout_s=60)
    assert completed.exit_status == 0
    assert completed.stdout == content
    assert completed.stderr == content
    completed = connection.run("head -c 8000000 /dev/zero >&2; echo done")
    assert (len(completed.stderr), completed.stdout) == (8_000_000, b"done\n")


def test_input_that_the_command_does_not_read(connection):
    assert connection.run("exit 5", stdin=bytes(16 * MIB), timeout_s=100).exit_status == 5
    assert connection.check("echo on") == b"on\n"


def test_a_command_that_ended_waits_for_no_turn_to_send(host, make_dialer, monkeypatch):
    monkeypatch.setattr("dlcloud.ssh.process.UPLOADS", 1)
    monkeypatch.setattr("dlcloud.ssh.process.LONGEST_UPLOAD_S", 600.0)
    connection = make_dialer(host).dial(host.endpoint)
    sending, end = threading.Event(), threading.Event()

    def feed(_):
        sending.set()
        end.wait(600)

    other = threading.Thread(target=connection.feed, args=("cat", feed))
    other.start()
    assert sending.wait(600)
    assert connection.run("exit 5", stdin=bytes(MIB)).exit_status == 5
    assert not end.is_set()
    end.set()
    other.join(600)


def test_a_command_past_its_time_is_given_up_and_the_connection_lives(connection):
    started = time.monotonic()
    with pytest.raises(UnreachableError, match=r"i-0abc: a command had not ended after 0\.2 s"):
        connection.run("sleep 300", timeout_s=0.2)
    with pytest.raises(UnreachableError, match="had not ended"):
        connection.run("while :; do echo busy; done", timeout_s=0.2)
    with pytest.raises(UnreachableError, match="had not ended"):  # both streams closed, still running
        connection.run("exec >&- 2>&-; sleep 300", timeout_s=0.2)
    assert time.monotonic() - started < 100
    assert connection.check("echo on", timeout_s=100) == b"on\n"


def test_more_commands_at_once_than_sshd_allows_sessions(connection):
    outcomes = fan_out(lambda number: connection.check(f"sleep 0.05; echo {number}"), range(24), width=24)
    assert all_or_raise(outcomes) == [f"{number}\n".encode() for number in range(24)]


def test_a_full_connection_gives_up_in_time(connection):
    streams = [connection.stream("echo begun; exec sleep 30") for _ in range(8)]
    for stream in streams:
        next(stream)
    with pytest.raises(UnreachableError, match=r"8 commands were still running after 0\.1 s"):
        connection.run("true", timeout_s=0.1)
    for stream in streams:
        stream.close()
    assert connection.check("echo on", timeout_s=100) == b"on\n"


def test_a_stream_arrives_while_the_command_runs_and_says_its_failure_at_its_end(connection, host):
    left = connection.stream("while :; do echo x; done")
    next(left)
    left.close()
    pieces = connection.stream("echo first; while [ ! -e go ]; do sleep 0.02; done; echo why >&2; exit 4")
    assert next(pieces) == b"first\n"
    (host.root / "home/go").touch()
    with pytest.raises(RemoteCommandError, match=r"status 4:\nwhy"):
        list(pieces)


def test_a_connection_that_breaks_ends_stream_and_run(connection, host):
    pieces = connection.stream("echo begun; sleep 30")
    assert next(pieces) == b"begun\n"
    host.before = lambda _: host.loop.loop.call_later(0.1, host._cut)
    with pytest.raises(UnreachableError, match="the connection broke"):
        connection.run("sleep 30")
    with pytest.raises(UnreachableError, match=r"i-0abc \(127\.0\.0\.1:\d+\): the connection broke"):
        list(pieces)
    with pytest.raises(UnreachableError, match="the connection broke"):
        connection.run("true")


def test_a_connection_that_breaks_while_much_is_sent(connection, host):
    host.before = lambda command: host.loop.loop.call_later(0.1, host._cut) if "sleep" in command else None
    with pytest.raises(UnreachableError, match="the connection broke"):
        connection.run("sleep 30; cat", stdin=bytes(64 * MIB))


def test_a_program_outlives_the_connection(connection, host):
    connection.check("nohup sh -c 'sleep 0.3; echo done > result' > /dev/null 2>&1 < /dev/null &")
    connection.close()
    result = host.root / "home/result"
    for _ in range(500):
        if result.exists() and result.read_text():
            break
        time.sleep(0.01)
    assert result.read_text() == "done\n"


LONG_S = 60.0


def test_no_more_threads_than_the_limit_have_a_turn_and_all_get_one():
    gate, inside, most = Gate(2, LONG_S), [], []
    ready = threading.Barrier(20)

    def visit(number):
        ready.wait(LONG_S)
        with gate.turn():
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    all_or_raise(fan_out(visit, range(20), width=20))
    assert len(most) == 20
    assert max(most) <= 2


def test_a_thread_that_stays_too_long_lets_another_in():
    gate, entered, leave = Gate(1, 0.01), threading.Event(), threading.Event()

    def stay():
        with gate.turn():
            entered.set()
            leave.wait(LONG_S)

    hung = threading.Thread(target=stay)
    hung.start()
    assert entered.wait(LONG_S)
    with gate.turn():
        assert hung.is_alive()
    leave.set()
    hung.join(LONG_S)


def test_an_error_ends_the_turn():
    gate = Gate(1, LONG_S)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), gate.turn():
            _ = 1 / 0
