"""Who is let in, who is refused, and what a refused server has seen."""

import contextlib
import socket
import stat
import threading
import time

import pytest

from dlcloud.model.errors import HostKeyError, UnreachableError
from dlcloud.model.remote import Endpoint
from dlcloud.ssh import keys
from dlcloud.system.parallel import all_or_raise, fan_out


def pins(key_path):
    path = key_path.with_name("known_hosts")
    return path.read_text() if path.exists() else ""


def test_an_honest_host_is_proven_once_and_pinned(host, make_dialer, key_path):
    connection = make_dialer(host).dial(host.endpoint)
    assert connection.check("echo hello") == b"hello\n"
    assert host.commands == [keys.PROOF_COMMAND, "echo hello"]
    assert pins(key_path) == f"i-0abc ssh-ed25519 {host.host_key}\n"
    assert stat.S_IMODE(key_path.with_name("known_hosts").stat().st_mode) == 0o600
    host.commands.clear()
    assert make_dialer().dial(host.endpoint).check("echo again") == b"again\n"
    assert host.commands == ["echo again"], "a pinned host needs no secret and shows no proof"


def test_a_host_without_pin_or_secret_is_refused_before_login(host, make_dialer):
    with pytest.raises(HostKeyError, match="not pinned"):
        make_dialer().dial(host.endpoint, wait_s=60)
    assert (host.logins, host.commands) == (0, [])


ANOTHER_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIA=="
PROOFS = {
    "invented": lambda _: "0" * 64,
    "not hexadecimal": lambda _: "not hexadecimal",
    "not ASCII": lambda _: "é",
    "of another instance": lambda host: keys.compute_proof(host.secret, "i-0other", host.host_key),
    "replayed for another key": lambda host: keys.compute_proof(host.secret, host.instance_id, ANOTHER_KEY),
}


@pytest.mark.parametrize("proof", PROOFS.values(), ids=PROOFS)
def test_another_proof_than_that_of_instance_and_key_is_refused_at_once(host, make_dialer, key_path, proof):
    host.prove(proof(host))
    with pytest.raises(HostKeyError, match=r"i-0abc .* wrong proof"):
        make_dialer(host).dial(host.endpoint, wait_s=60)
    assert (host.sent, pins(key_path)) == ([], "")


def test_a_changed_key_is_refused_before_login(host, make_host, make_dialer, key_path):
    make_dialer(host).dial(host.endpoint)
    before = pins(key_path)
    other = make_host(host.instance_id).start()
    other.prove()
    with pytest.raises(HostKeyError, match="another host key than the pinned one"):
        make_dialer(other).dial(other.endpoint, wait_s=60)
    assert (other.logins, other.commands, pins(key_path)) == (0, [], before)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_late_proof_is_waited_for(make_host, make_dialer, is_empty):
    host = make_host().start()
    host.prove()
    path = host.root / "var/lib/dlcloud/host-proof"
    whole = path.read_text()
    if is_empty:
        path.write_text("")
    else:
        path.unlink()
    host.before = lambda _: path.write_text(whole) if len(host.commands) == 3 else None
    assert make_dialer(host).dial(host.endpoint, wait_s=60).check("echo up") == b"up\n"
    assert host.commands == [keys.PROOF_COMMAND] * 3 + ["echo up"]
    assert host.logins == 1


def test_no_proof_until_the_deadline_is_no_connection(make_host, make_dialer, key_path):
    host = make_host().start()
    with pytest.raises(UnreachableError, match=r"i-0abc .* no proof written"):
        make_dialer(host).dial(host.endpoint, wait_s=0.3)
    assert (host.sent, pins(key_path)) == ([], "")


@contextlib.contextmanager
def dialling(dialer, endpoint):
    """Dial in a thread; afterwards the list holds the connection, or the error."""
    outcomes = []

    def dial():
        try:
            outcomes.append(dialer.dial(endpoint, wait_s=3600))
        except UnreachableError as e:
            outcomes.append(e)

    thread = threading.Thread(target=dial)
    thread.start()
    yield outcomes
    thread.join(60)


def test_a_key_that_is_authorised_late_logs_in_and_one_that_never_is_does_not(host, make_dialer):
    authorized, host.authorized = host.authorized, set()
    with pytest.raises(UnreachableError, match="login refused for user ubuntu, after"):
        make_dialer(host).dial(host.endpoint, wait_s=0.3)
    refused = host.refused_logins
    assert refused > 1
    with dialling(make_dialer(host), host.endpoint) as outcomes:
        while host.refused_logins == refused:
            time.sleep(0.01)
        host.authorized = authorized
    assert outcomes[0].check("echo in") == b"in\n"


def test_a_server_that_appears_later_is_waited_for(host, make_dialer):
    host.stop()
    with dialling(make_dialer(host), host.endpoint) as outcomes:
        time.sleep(0.2)
        host.start()
    assert outcomes[0].check("echo late") == b"late\n"


def test_nothing_listening_names_instance_address_time_and_cause(host, make_dialer, capfd):
    host.stop()
    cause = rf"i-0abc \(127\.0\.0\.1:{host.port}\).*connection refused, after 0 s"
    with pytest.raises(UnreachableError, match=cause):
        make_dialer(host).dial(host.endpoint, wait_s=0.2)
    assert capfd.readouterr().err == "", "paramiko prints nothing"


def test_a_server_of_another_protocol_is_unreachable(make_dialer, host):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)

        thread = threading.Thread(target=answer)
        thread.start()
        endpoint = Endpoint(instance_id="i-0abc", host="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(UnreachableError, match="i-0abc"):
            make_dialer(host).dial(endpoint)
        thread.join(60)


@pytest.mark.parametrize("address", ["203.0.113.7", "localhost.example.com", "0.0.0.0", "10.0.0.1"])
def test_loopback_only_refuses_other_addresses_without_connecting(make_dialer, address):
    started = time.monotonic()
    with pytest.raises(UnreachableError, match="loopback"):
        make_dialer().dial(Endpoint(instance_id="i-0abc", host=address), wait_s=60)
    assert time.monotonic() - started < 30


def test_a_connection_is_pooled_and_a_dead_one_replaced(host, make_dialer):
    dialer = make_dialer(host)
    first = dialer.dial(host.endpoint)
    assert dialer.dial(host.endpoint) is first
    host.cut()
    while first.is_open:
        time.sleep(0.01)
    second = dialer.dial(host.endpoint)
    assert second is not first
    assert second.check("echo back") == b"back\n"


def test_dialling_at_once_makes_one_connection(host, make_dialer):
    dialer = make_dialer(host)
    connections = all_or_raise(fan_out(lambda _: dialer.dial(host.endpoint), range(16), width=16))
    assert (len(set(map(id, connections))), host.logins) == (1, 1)


def test_closing_ends_dials_under_way(host, make_dialer):
    host.stop()
    with dialling(dialer := make_dialer(host), host.endpoint) as outcomes:
        dialer.close()
    assert "connections were closed" in outcomes[0].message


def test_a_host_is_let_in_and_pinned_by_the_fingerprint_of_its_tag_alone(host, make_dialer, key_path):
    with pytest.raises(HostKeyError, match="another host key than its tag says"):
        make_dialer(fingerprint=keys.fingerprint(ANOTHER_KEY)).dial(host.endpoint, wait_s=60)
    assert (host.logins, pins(key_path)) == (0, "")
    known = keys.fingerprint(host.host_key)
    assert make_dialer(fingerprint=known).dial(host.endpoint).check("echo known") == b"known\n"
    assert host.commands == ["echo known"]
    assert pins(key_path) == f"i-0abc ssh-ed25519 {host.host_key}\n"
