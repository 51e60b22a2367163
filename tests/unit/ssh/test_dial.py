"""Who is let in, who is refused, and what a refused server has seen."""

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


def test_a_pinned_host_needs_no_secret_and_shows_no_proof(host, make_dialer):
    make_dialer(host).dial(host.endpoint)
    host.commands.clear()
    assert make_dialer().dial(host.endpoint).check("echo again") == b"again\n"
    assert host.commands == ["echo again"]


def test_a_host_without_pin_or_secret_is_refused_before_login(host, make_dialer):
    with pytest.raises(HostKeyError, match="not pinned"):
        make_dialer().dial(host.endpoint, wait_s=60)
    assert (host.logins, host.commands) == (0, [])


@pytest.mark.parametrize("proof", ["0" * 64, "not hexadecimal", "é"])
def test_an_invented_proof_is_refused_at_once(host, make_dialer, key_path, proof):
    host.prove(proof)
    with pytest.raises(HostKeyError, match=r"i-0abc .* wrong proof"):
        make_dialer(host).dial(host.endpoint, wait_s=60)
    assert (host.sent, pins(key_path)) == ([], "")


def test_a_proof_replayed_for_another_key_is_refused(host, make_host, make_dialer, key_path):
    impostor = make_host(host.instance_id).start()
    impostor.prove(keys.compute_proof(host.secret, host.instance_id, host.host_key))
    with pytest.raises(HostKeyError, match="wrong proof"):
        make_dialer(host).dial(impostor.endpoint, wait_s=60)
    assert (impostor.sent, pins(key_path)) == ([], "")


def test_a_proof_made_for_another_instance_is_refused(host, make_dialer, key_path):
    host.prove(keys.compute_proof(host.secret, "i-0other", host.host_key))
    with pytest.raises(HostKeyError, match="wrong proof"):
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


def test_a_late_proof_is_waited_for(make_host, make_dialer):
    host = make_host().start()
    asked = []

    def first_boot(command):
        asked.append(command)
        if len(asked) == 3:
            host.prove()

    host.before = first_boot
    assert make_dialer(host).dial(host.endpoint, wait_s=60).check("echo up") == b"up\n"
    assert asked == [keys.PROOF_COMMAND] * 3 + ["echo up"]
    assert host.logins == 1


def test_an_empty_proof_file_counts_as_not_written(make_host, make_dialer):
    host = make_host().start()
    host.prove()
    path = host.root / "var/lib/dlcloud/host-proof"
    whole = path.read_text()
    path.write_text("")
    host.before = lambda _: path.write_text(whole) if len(host.commands) == 2 else None
    assert make_dialer(host).dial(host.endpoint, wait_s=60).is_open


def test_no_proof_until_the_deadline_is_no_connection(make_host, make_dialer, key_path):
    host = make_host().start()
    with pytest.raises(UnreachableError, match=r"i-0abc .* no proof written"):
        make_dialer(host).dial(host.endpoint, wait_s=0.3)
    assert (host.sent, pins(key_path)) == ([], "")


def test_a_key_that_is_authorised_late_logs_in(host, make_dialer):
    authorized, host.authorized = host.authorized, set()
    dialer = make_dialer(host)
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(dialer.dial(host.endpoint, wait_s=60)))
    thread.start()
    while not host.refused_logins:
        time.sleep(0.01)
    host.authorized = authorized
    thread.join(60)
    assert outcome[0].check("echo in") == b"in\n"


def test_a_key_that_is_never_authorised_is_refused(host, make_dialer):
    host.authorized = set()
    with pytest.raises(UnreachableError, match="login refused for user ubuntu, after"):
        make_dialer(host).dial(host.endpoint, wait_s=0.3)
    assert host.refused_logins > 1


def test_a_server_that_appears_later_is_waited_for(make_host, make_dialer):
    host = make_host().start()
    host.prove()
    host.stop()
    dialer = make_dialer(host)
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(dialer.dial(host.endpoint, wait_s=60)))
    thread.start()
    time.sleep(0.2)
    host.start()
    thread.join(60)
    assert outcome[0].check("echo late") == b"late\n"


def test_nothing_listening_names_instance_address_time_and_cause(host, make_dialer):
    endpoint = host.endpoint
    host.stop()
    with pytest.raises(
        UnreachableError, match=rf"i-0abc \(127\.0\.0\.1:{endpoint.port}\).*connection refused, after 0 s"
    ):
        make_dialer(host).dial(endpoint, wait_s=0.2)


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


def test_closing_ends_dials_under_way(make_host, make_dialer):
    host = make_host().start()
    host.stop()
    dialer = make_dialer(host)
    errors = []

    def dial():
        try:
            dialer.dial(host.endpoint, wait_s=3600)
        except UnreachableError as e:
            errors.append(e.message)

    thread = threading.Thread(target=dial)
    thread.start()
    dialer.close()
    thread.join(60)
    assert "connections were closed" in errors[0]


def test_paramiko_prints_nothing(host, make_dialer, capfd):
    endpoint = host.endpoint
    host.stop()
    with pytest.raises(UnreachableError):
        make_dialer(host).dial(endpoint)
    assert capfd.readouterr().err == ""


def test_a_host_whose_fingerprint_is_known_is_let_in_and_pinned(host, make_dialer, key_path):
    known = keys.fingerprint(host.host_key)
    assert make_dialer(fingerprint=known).dial(host.endpoint).check("echo known") == b"known\n"
    assert host.commands == ["echo known"]
    assert pins(key_path) == f"i-0abc ssh-ed25519 {host.host_key}\n"


def test_a_host_with_another_fingerprint_is_refused_before_login(host, make_dialer, key_path):
    other = keys.fingerprint("AAAAC3NzaC1lZDI1NTE5AAAAIA==")
    with pytest.raises(HostKeyError, match="another host key than its tag says"):
        make_dialer(fingerprint=other).dial(host.endpoint, wait_s=60)
    assert (host.logins, pins(key_path)) == (0, "")
