"""Login keys, host proofs and pins."""

import base64
import os
import stat
import subprocess
import threading

import paramiko
import pytest

from dlcloud.model.errors import HostKeyError, StoreError
from dlcloud.ssh import keys
from dlcloud.ssh.keys import KnownHosts
from dlcloud.system.parallel import all_or_raise, fan_out
from tests.needs import needs

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIGQ2"
OTHER = "AAAAC3NzaC1lZDI1NTE5AAAAIH99"


def test_a_new_key_is_private_and_paramiko_and_openssh_read_it(tmp_path):
    path = tmp_path / "new" / "key"
    old = os.umask(0)
    try:
        line = keys.create_key(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert line.startswith("ssh-ed25519 AAAA")
    assert line.endswith(" dlcloud")
    assert keys.public_key(path) == line
    assert paramiko.Ed25519Key.from_private_key_file(str(path)).get_base64() == line.split()[1]


def test_a_key_is_never_replaced(tmp_path):
    path = tmp_path / "key"
    line = keys.create_key(path)
    with pytest.raises(StoreError, match="already"):
        keys.create_key(path)
    assert keys.public_key(path) == line


def test_a_file_that_is_not_a_private_key_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        keys.public_key(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StoreError, match="not a private key"):
        keys.public_key(tmp_path / "text")


@needs("openssl")
def test_the_proof_equals_the_one_openssl_computes(tmp_path):
    secret = keys.new_secret()
    (tmp_path / "key.pub").write_text(f"ssh-ed25519 {KEY} root@host\n")
    shown = subprocess.run(
        "printf '%s\\0%s' \"$IID\" \"$(awk '{print $2}' key.pub)\" "
        "| openssl dgst -sha256 -mac HMAC -macopt hexkey:$SECRET",
        shell=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "IID": "i-0abc", "SECRET": secret},
        capture_output=True,
        check=True,
    ).stdout
    assert keys.is_proof(shown, secret, "i-0abc", KEY)
    assert not keys.is_proof(shown, secret, "i-0abd", KEY)
    assert not keys.is_proof(shown, secret, "i-0abc", OTHER)
    assert not keys.is_proof(shown, keys.new_secret(), "i-0abc", KEY)
    assert not keys.is_proof(b"", secret, "i-0abc", KEY)


def test_secrets_are_thirty_two_fresh_bytes():
    secrets = {keys.new_secret() for _ in range(100)}
    assert {len(bytes.fromhex(secret)) for secret in secrets} == {32}
    assert len(secrets) == 100


def test_a_pin_is_found_and_kept(tmp_path):
    pins = KnownHosts(tmp_path / "cluster" / "known_hosts")
    assert pins.pinned("i-0abc") is None
    pins.pin("i-0abc", KEY)
    pins.pin("i-0abc", KEY)
    with pytest.raises(HostKeyError, match="another host key is pinned"):
        pins.pin("i-0abc", OTHER)
    assert (pins.pinned("i-0abc"), pins.pinned("i-0ab")) == (KEY, None)
    assert pins.path.read_text() == f"i-0abc ssh-ed25519 {KEY}\n"
    assert stat.S_IMODE(pins.path.stat().st_mode) == 0o600
    KnownHosts(pins.path).pin("i-0def", OTHER)
    assert pins.pinned("i-0def") == OTHER, "that of another process is seen"


@pytest.mark.parametrize("name", ["", "*", "i-0abc,i-0abd", "i-0abc\ni-0abd", "#", "@revoked", "|1|x"])
def test_a_name_with_a_meaning_to_openssh_is_refused(tmp_path, name):
    with pytest.raises(HostKeyError):
        KnownHosts(tmp_path / "known_hosts").pin(name, KEY)


def test_lines_of_others_stay(tmp_path):
    path = tmp_path / "known_hosts"
    lines = ["# mine", "@revoked * ssh-ed25519 AAAA", "example.com ssh-rsa AAAA"]
    path.write_text("\n".join(lines))
    KnownHosts(path).pin("i-0abc", KEY)
    assert path.read_text().splitlines() == [*lines, f"i-0abc ssh-ed25519 {KEY}"]


def test_the_file_is_not_read_again_for_each_pin(tmp_path):
    pins, reads = KnownHosts(tmp_path / "known_hosts"), []
    read = pins._lines
    pins._lines = lambda: reads.append(1) or read()
    for number in range(20):
        pins.pin(f"i-{number}", KEY)
        assert pins.pinned(f"i-{number}") == KEY
    assert len(reads) == 1


def test_pins_of_many_threads_are_all_kept_and_readers_see_whole_files(tmp_path):
    pins = KnownHosts(tmp_path / "known_hosts")
    wanted = {f"i-{n:04x}": base64.b64encode(n.to_bytes(30, "big")).decode() for n in range(100)}
    done = threading.Event()
    torn = []

    def read():
        while not done.is_set():
            torn.extend(line for line in pins._lines() if len(line.split()) != 3)

    reader = threading.Thread(target=read)
    reader.start()
    all_or_raise(fan_out(lambda name: pins.pin(name, wanted[name]), list(wanted)))
    done.set()
    reader.join()
    assert torn == []
    assert {name: pins.pinned(name) for name in wanted} == wanted
    assert {path.name for path in tmp_path.iterdir()} == {"known_hosts", "known_hosts.lock"}
