"""A cluster of real SSH servers on 127.0.0.1, each with a folder that stands for its root."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from dlcloud.model.remote import Endpoint
from dlcloud.ssh import keys
from dlcloud.ssh.dial import Dialer


class RealClock:
    """Time as it is: the servers are real too."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.05))


class Loop:
    """An asyncio loop in a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(600)

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()


class Host(asyncssh.SSHServer):
    """One instance: a host key, a root folder, who may log in, and every command it was sent."""

    def __init__(self, loop: Loop, root: Path, instance_id: str, authorized: str):
        self.loop = loop
        self.root = root
        self.instance_id = instance_id
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.secret = keys.new_secret()
        self.authorized: set[str] = {authorized.split()[1]}
        self.commands: list[str] = []
        self.logins = 0
        self.refused_logins = 0
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.before: Callable[[str], None] = lambda _: None
        self.shells: set[asyncio.subprocess.Process] = set()
        self.port = 0
        self.path = os.environ["PATH"]
        (root / "home").mkdir(parents=True)
        self._server = None

    @property
    def host_key(self) -> str:
        return self.key.export_public_key().decode().split()[1]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(instance_id=self.instance_id, host="127.0.0.1", port=self.port, user="ubuntu")

    @property
    def sent(self) -> list[str]:
        """Every command but the one that asks for the proof."""
        return [command for command in self.commands if command != keys.PROOF_COMMAND]

    def prove(self, proof: str | None = None) -> None:
        """Write the proof, the right one if none is given, as openssl prints it."""
        right = keys.compute_proof(self.secret, self.instance_id, self.host_key)
        path = self.root / "var/lib/dlcloud/host-proof"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"SHA2-256(stdin)= {right if proof is None else proof}\n")

    def replace(self, program: str, script: str) -> None:
        """Let commands find a script of the shell in the place of a program."""
        fake = self.root / "bin" / program
        fake.parent.mkdir()
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        self.path = f"{fake.parent}:{self.path}"

    def start(self) -> "Host":
        async def listen():
            return await asyncssh.listen(
                "127.0.0.1",
                self.port,
                server_factory=lambda: _Session(self),
                server_host_keys=[self.key],
                process_factory=self._run,
                encoding=None,
            )

        self._server = self.loop.call(listen())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        """Stop listening and cut every connection."""

        async def close():
            self._server.close()
            self._cut()
            for shell in self.shells:
                if shell.returncode is None:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                        os.killpg(shell.pid, signal.SIGKILL)
                shell._transport.close()
            while self.shells:  # noqa: ASYNC110 each handler takes its own shell out
                await asyncio.sleep(0.001)

        if self._server is not None:
            self.loop.call(close())
            self._server = None

    def cut(self) -> None:
        """Drop every connection without a word."""
        self.loop.loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for connection in self.connections:
            connection.abort()

    async def _run(self, process: asyncssh.SSHServerProcess) -> None:
        self.commands.append(process.command)
        self.before(process.command)
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command,
            cwd=self.root / "home",
            env={"PATH": self.path, "DLCLOUD_ROOT": str(self.root), "HOME": str(self.root / "home")},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.shells.add(shell)
        feeding = asyncio.create_task(_feed(process.stdin, shell.stdin))
        try:
            await asyncio.gather(_pump(shell.stdout, process.stdout), _pump(shell.stderr, process.stderr))
            status = await shell.wait()
            if status < 0:
                process.exit_with_signal("TERM")
            else:
                process.exit(status)
        except (OSError, asyncssh.Error):
            pass  # the client is gone
        finally:
            feeding.cancel()
            try:
                await _end(shell)
            finally:
                self.shells.discard(shell)


async def _end(shell) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        if shell.returncode is None:
            os.killpg(shell.pid, signal.SIGKILL)
    shell._transport.close()  # wait() would wait until the pipes are read
    await shell.wait()


async def _pump(source, sink) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()


async def _feed(source, sink) -> None:
    """Pass input on; asyncssh's own redirection loses the end of stderr, so this is done by hand."""
    with contextlib.suppress(OSError, asyncssh.Error):
        await _pump(source, sink)
    sink.close()


class _Session(asyncssh.SSHServer):
    def __init__(self, host: Host):
        self.host = host

    def connection_made(self, conn):
        self.host.connections.append(conn)

    def begin_auth(self, username):  # noqa: ARG002 asyncssh names it
        return True

    def public_key_auth_supported(self):
        return True

    def validate_public_key(self, username, key):  # noqa: ARG002
        if key.export_public_key().decode().split()[1] in self.host.authorized:
            self.host.logins += 1
            return True
        self.host.refused_logins += 1
        return False


@pytest.fixture(scope="session")
def loop():
    loop = Loop()
    yield loop
    loop.stop()


@pytest.fixture
def key_path(tmp_path):
    path = tmp_path / "cluster" / "key"
    keys.create_key(path)
    return path


@pytest.fixture
def make_host(loop, tmp_path, key_path):
    """Make hosts that have proven nothing yet and are not started."""
    hosts = []

    def make(instance_id="i-0abc") -> Host:
        host = Host(loop, tmp_path / f"root-{len(hosts)}", instance_id, keys.public_key(key_path))
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.stop()


@pytest.fixture
def host(make_host):
    """An honest instance that has booted."""
    host = make_host().start()
    host.prove()
    return host


@pytest.fixture
def make_dialer(key_path):
    dialers = []

    def make(*hosts, **options) -> Dialer:
        secrets = {host.instance_id: host.secret for host in hosts}
        settings = {"secret": secrets.get, "clock": RealClock(), "loopback_only": True} | options
        dialer = Dialer(key_path=key_path, known_hosts=key_path.with_name("known_hosts"), **settings)
        dialers.append(dialer)
        return dialer

    yield make
    for dialer in dialers:
        dialer.close()


@pytest.fixture
def connection(host, make_dialer):
    """A proven connection to an honest instance."""
    return make_dialer(host).dial(host.endpoint)
