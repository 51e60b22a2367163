"""What an instance is made of, without a daemon: user data, addresses, processes and servers."""

import asyncio
import os
import select
import subprocess
import time
from ipaddress import IPv4Network

import asyncssh
import psutil
import pytest

from dlcloud.local.instance import processes, sshd
from dlcloud.local.instance.addresses import AddressPool, Sources
from dlcloud.local.instance.cloudinit import read_user_data
from dlcloud.local.instance.container import Container
from dlcloud.local.instance.metadata import MetadataService, Request
from dlcloud.local.instance.processes import instance_environment, package_sources, start_process
from dlcloud.local.instance.sshd import LoginFiles, SshServer
from dlcloud.local.tree import instance_tree
from dlcloud.local.tree.instance_tree import InstanceTree

LIMIT_S = 60.0
ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]\n" for n in range(9))


def test_user_data_is_read():
    text = """#cloud-config
users:
- default
- {name: u, ssh_authorized_keys: [k2]}
ssh_authorized_keys: [k1]
write_files:
- {path: /a, permissions: '0600'}
- {path: /b, permissions: 0600}
"""
    data = read_user_data(text.encode())
    assert [file.mode for file in data.files] == [0o600, 0o600]
    assert data.authorized_keys == ("k1", "k2")
    assert data.warnings == ()


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (b"#cloud-config\n[", "cannot be read"),
        (b"#cloud-config\n- list\n", "cannot be read"),
        (b"\x1f\x8bbroken", "unknown format"),
        (b"hello", "unknown format"),
        (
            b"#cloud-config\nwrite_files:\n- {path: /a, content: eA==, encoding: b64}\n",
            "encoding is not supported",
        ),
        (f"#cloud-config\n{ALIASES}runcmd: [[*a8]]\n".encode(), "cannot be read"),
        (b"#cloud-config\n" + b"[" * 16000, "cannot be read"),
    ],
)
def test_user_data_that_cannot_be_read_or_would_fill_the_memory_is_a_warning(content, warning):
    began, before = time.process_time(), psutil.Process().memory_info().rss
    (found,) = read_user_data(content).warnings
    assert warning in found
    assert time.process_time() - began < 5
    assert psutil.Process().memory_info().rss - before < 100 << 20


@pytest.mark.parametrize("many", [False, True])
def test_instances_share_an_address_or_a_port(many):
    pools = AddressPool(many=many), AddressPool(many=many)
    taken = [pool.take() for pool in pools[: 1 + many] for _ in range(3)]
    assert len({listeners.host for listeners in taken}) == (6 if many else 1)
    ports = [port for listeners in taken[:3] for port in (listeners.ssh_port, listeners.metadata_port)]
    assert len(set(ports)) == (2 if many else 6)
    for listeners in taken:
        listeners.close()


def test_an_instance_gets_its_packages_from_where_this_machine_does(tmp_path):
    own = {
        "HOME": str(tmp_path),
        "PIP_FIND_LINKS": "/wheels",
        "PIP_TARGET": "/x",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    assert package_sources(own) == {"PIP_FIND_LINKS": "/wheels"}
    config = tmp_path / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.touch()
    assert package_sources(own) == {"PIP_FIND_LINKS": "/wheels", "PIP_CONFIG_FILE": str(config)}
    assert package_sources({**own, "PIP_CONFIG_FILE": "/dev/null"})["PIP_CONFIG_FILE"] == "/dev/null"


def test_idle_threads_of_an_instance_wait_as_those_of_its_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    environment = instance_environment(tmp_path, cache=tmp_path, metadata_url="http://x", user="ubuntu")
    assert {name: value for name, value in environment.items() if "OMP" in name} == {
        "OMP_WAIT_POLICY": "PASSIVE"
    }


@pytest.mark.parametrize("rounds", range(8))
def test_a_process_whose_start_is_cancelled_is_killed(rounds):
    """However far the start has come, counted in rounds of the event loop; its child reads its input."""

    async def cancel_start(held):
        options = {"stdin": subprocess.PIPE, "pass_fds": [held]}
        starting = asyncio.create_task(start_process("/bin/sh", "-c", "cat; :", **options))
        for _ in range(rounds):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting], timeout=LIMIT_S)
        assert starting.done()
        if not starting.cancelled():
            starting.result().stdin.close()
        os.close(held)
        return await asyncio.to_thread(select.select, [open_while_it_runs], [], [], LIMIT_S)

    open_while_it_runs, held = os.pipe()
    assert asyncio.run(cancel_start(held))[0], "the process runs on"
    os.close(open_while_it_runs)


def test_a_folder_that_is_written_to_meanwhile_is_removed(tmp_path, monkeypatch):
    root, removals = tmp_path / "i-1", []
    (root / "work/usr/work").mkdir(parents=True, mode=0)

    remove = instance_tree._remove

    def remove_and_write(name, *, cwd):
        remove(name, cwd=cwd)
        removals.append(name)
        if len(removals) == 1:
            (root / "rootfs").mkdir(parents=True)

    monkeypatch.setattr(instance_tree, "_remove", remove_and_write)
    assert processes.remove_root(root)
    assert not root.exists()
    assert len(removals) == 2


PODMAN = """\
#!/bin/sh
echo "$@" >> {notes}
case "$1" in
  ps) [ -e {folder}/gone ] || echo c-1;;
  rm) [ -e {folder}/tried ] && touch {folder}/gone; touch {folder}/tried; [ -e {folder}/gone ];;
esac
"""


def test_the_containers_of_an_instance_go_with_its_folder(tmp_path, monkeypatch):
    """Podman refuses the first time, as where the watcher of the container was killed."""
    root, notes, programs = tmp_path / "i-1", tmp_path / "notes", tmp_path / "programs"
    (root / processes.CONTAINERS).parent.mkdir(parents=True)
    (root / processes.CONTAINERS).touch()
    programs.mkdir()
    (programs / "podman").write_text(PODMAN.format(notes=notes, folder=tmp_path))
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert processes.remove_root(root)
    listed, removed = f"ps --all --quiet --filter label=DLCLOUD_ROOT={root}", "rm --force c-1"
    assert notes.read_text().splitlines() == [listed, removed, listed, removed, listed]


def ssh_server(folder, container=Container):
    """Return the SSH server of an instance of this folder, and its host key."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    server = SshServer(
        host_key=host_key,
        env={},
        container=container(root=folder, interpreter="", owner=os.getuid()),
        files=LoginFiles(tree=InstanceTree(folder), authorized_keys={"u": "keys"}, nologin="nologin"),
        interpreter="",
    )
    return server, host_key


@pytest.mark.parametrize("kind", ["ssh", "metadata"])
def test_a_cancelled_opening_leaves_the_loop_nothing_of_its_socket(kind, tmp_path):
    """Else the next file with the number of its descriptor, as the output of a session, is never read."""

    async def left_after(turns, pool):
        listeners = pool.take()
        socket = getattr(listeners, kind)
        service = MetadataService(documents=dict, power=print, secret="")
        server = ssh_server(tmp_path)[0] if kind == "ssh" else service
        descriptor, opening = socket.fileno(), asyncio.ensure_future(server.open(socket))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_open = opening.done()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await server.close()
        listeners.close()
        return is_open, asyncio.get_running_loop().remove_reader(descriptor)

    async def check():
        pool, turns, is_open = AddressPool(many=True), 0, False
        while not is_open:
            is_open, is_left = await left_after(turns, pool)
            assert not is_left, turns
            turns += 1

    asyncio.run(asyncio.wait_for(check(), LIMIT_S))


def test_a_connection_forwards_no_more_than_its_limit_however_quickly_it_asks(tmp_path):
    """Many may be asked for before the first of them begins."""

    class Waiting(Container):
        async def spawn(self, *_, **__):
            await asyncio.sleep(3600)

    server, key = ssh_server(tmp_path, Waiting)
    (tmp_path / "keys").write_bytes(key.export_public_key())

    async def ask():
        listeners = AddressPool(many=True).take()
        listeners.ssh.admit(Sources(networks=(IPv4Network("0.0.0.0/0"),)))
        await server.open(listeners.ssh)
        address = (listeners.host, listeners.ssh_port)
        async with asyncssh.connect(*address, username="u", client_keys=[key], known_hosts=None) as client:
            asked = [client.open_connection("127.0.0.1", 1) for _ in range(10 * sshd._MOST_FORWARDED)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
        await server.close()
        listeners.close()
        return answers

    answers = asyncio.run(ask())
    refused = [one for one in answers if isinstance(one, asyncssh.ChannelOpenError)]
    assert (len(answers) - len(refused), len(refused)) == (sshd._MOST_FORWARDED, 9 * sshd._MOST_FORWARDED)


def test_tokens_of_the_metadata_service_are_counted():
    service = MetadataService(documents=lambda: {"latest/meta-data/x": "y"}, power=print, secret="s")
    ask = {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
    put = Request(method="PUT", path="/latest/api/token", headers=ask, body=b"")
    tokens = [service._answer(put)[1] for _ in range(10_240)]
    assert len(service._tokens) <= 1024

    def status(token):
        got = {"x-aws-ec2-metadata-token": token}
        return service._answer(Request(method="GET", path="/latest/meta-data/x", headers=got, body=b""))[0]

    assert (status(tokens[0]), status(tokens[-1])) == (401, 200)


def test_an_admitted_key_is_forgotten_in_time(tmp_path):
    server, key = ssh_server(tmp_path)
    text = key.export_public_key().decode()
    assert not server.admits(key)
    server.admit(text, seconds=60)
    assert server.admits(key)
    server.admit(text, seconds=0)
    assert not server.admits(key)
