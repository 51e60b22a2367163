"""A local EC2 whose instances are SSH servers and nothing else, a thousand of them in one process.

    python tests/performance/light_ec2.py FOLDER

It serves `dlcloud` in the home whose local EC2 lies in FOLDER, in place of the daemon that dlcloud starts.

Real: EC2's answers, as the local EC2 gives them; an address and a port for each instance; SSH handshakes with
a host key for each; logins by key; MaxSessions; the proof of the host key with the secret of the user data;
every byte that the launcher sends and receives.

Not real: no process runs on an instance, no metadata service answers there. Its files are in memory. The
commands of the launcher for a plain workload are recognised by their text and done in a few lines of
Python; any other command ends with status 127. A job runs for LIGHT_JOB_S seconds; then it has the records of
the file LIGHT_RECORDS. Copies from one instance to another are made in memory.
"""

import asyncio
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncssh

from dlcloud.local import daemon
from dlcloud.local.instance.cloudinit import read_user_data
from dlcloud.ssh.keys import PROOF_COMMAND, compute_proof

JOB_S = float(os.environ.get("LIGHT_JOB_S", "2"))
RECORDS = os.environ.get("LIGHT_RECORDS", "")
SECRET = re.compile(rb'SECRET = "([0-9a-f]{64})"')


class CommandError(Exception):
    """A command that fails; its text goes to stderr."""


class UnknownCommandError(CommandError):
    """A command that only a real instance has."""


class Files:
    """The files and jobs of one instance."""

    def __init__(self, instance_id: str, proof: bytes) -> None:
        self.instance_id = instance_id
        self.proof = proof
        self.content: dict[str, bytes] = {}
        self.started: dict[str, float] = {}

    def below(self, folder: str) -> dict[str, bytes]:
        """Return the files of a folder by their names in it."""
        top = f"{folder.strip('/')}/"
        return {name[len(top) :]: data for name, data in self.content.items() if name.startswith(top)}

    def unpack(self, folder: str, archive: bytes) -> None:
        """Keep the regular files of a tar archive."""
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as stream:
            for member in stream:
                file = stream.extractfile(member)
                if file is not None:
                    self.content[f"{folder}/{member.name}"] = file.read()

    def pack(self, folder: str, names: list[str]) -> bytes:
        """Return files of a folder as a tar archive."""
        buffer, files = io.BytesIO(), self.below(folder)
        with tarfile.open(fileobj=buffer, mode="w") as stream:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = len(files[name.removeprefix("./")])
                stream.addfile(member, io.BytesIO(files[name.removeprefix("./")]))
        return buffer.getvalue()

    def end_job(self, folder: str) -> None:
        """Write what a job leaves behind."""
        records = Path(RECORDS).read_bytes() if RECORDS else b""
        self.content[f"{folder}/records.jsonl"] = records.replace(b"@HOST@", self.instance_id.encode())
        self.content[f"{folder}/log"] = b""

    def is_running(self, folder: str) -> bool:
        """True until a job's time is over."""
        running = time.monotonic() - self.started[folder] < JOB_S
        if not running and f"{folder}/records.jsonl" not in self.content:
            self.end_job(folder)
        return running


HOSTS: dict[str, Files] = {}
INSTANCES: dict[str, Files] = {}
Work = Callable[[Files, "re.Match[str]", bytes], Coroutine[Any, Any, bytes]]


async def prove(files: Files, _match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Print the proof of the host key."""
    return files.proof


async def show(files: Files, match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Print a file."""
    if match[1] not in files.content:
        raise CommandError(match[1])
    return files.content[match[1]]


async def write(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Write a file whole."""
    if len(stdin) != int(match[1]):
        raise CommandError("the input was cut off")
    files.content[match[2]] = stdin
    return b""


async def unpack(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Unpack an archive."""
    files.unpack(match[1], stdin)
    return b""


async def write_several(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Write small files."""
    files.unpack(match[1], stdin)
    return b""


async def keep(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Keep an archive for others, and unpack it."""
    files.content |= {f"{match[1]}/archive": stdin, f"{match[1]}/complete": b""}
    return await unpack_verified(files, match[1], match[2], match[3])


async def unpack_verified(files: Files, folder: str, digest: str, target: str) -> bytes:
    """Unpack an archive that has the digest."""
    archive = files.content[f"{folder}/archive"]
    if hashlib.sha256(archive).hexdigest() != digest:
        raise CommandError("another archive")
    files.unpack(target, archive)
    return b""


async def offer(files: Files, _match: "re.Match[str]", stdin: bytes) -> bytes:
    """Offer an archive; it is copied in memory, so that any port will do."""
    order = json.loads(stdin)
    if f"{order['folder']}/{order['name']}/complete" not in files.content:
        raise CommandError("there is none")
    return b'{"port": 1}\n'


async def take(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Copy an archive from another instance, and unpack it."""
    order = json.loads(stdin)
    folder = f"{order['folder']}/{order['name']}"
    for name in ("archive", "complete"):
        files.content[f"{folder}/{name}"] = HOSTS[order["host"]].content[f"{folder}/{name}"]
    return await unpack_verified(files, folder, match[1], match[2])


async def find(files: Files, match: "re.Match[str]", _stdin: bytes) -> bytes:
    """List the files of a folder."""
    return b"".join(f"./{name}\0".encode() for name in files.below(match[1]))


async def pack(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Print an archive of the listed files."""
    names = stdin.replace(b"\0", b"\n").decode().splitlines()
    return files.pack(match[1], [name for name in names if name.removeprefix("./") in files.below(match[1])])


async def start(files: Files, match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Start a job, once."""
    if f"{match[1]}/command" not in files.content:
        raise CommandError(f"{match[1]}: nothing to start")
    files.started.setdefault(match[1], time.monotonic())
    return b""


async def follow(files: Files, match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Print a file of a job from an offset, at its end."""
    folder, name, offset = match[1], match[2], int(match[3])
    await asyncio.sleep(max(0.0, files.started[folder] + JOB_S - time.monotonic()))
    files.is_running(folder)
    return files.content.get(f"{folder}/{name}", b"")[offset:]


async def state(files: Files, match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Print the state of a job."""
    if match[1] not in files.started:
        return json.dumps({"state": "new", "exit_status": None}).encode()
    running = files.is_running(match[1])
    return json.dumps(
        {"state": "running" if running else "ended", "exit_status": None if running else 0}
    ).encode()


async def manifest(files: Files, match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Print the manifest of the user's files."""
    return files.content.get(f"{match[1]}/manifest.json", b"null")


async def remove(_files: Files, _match: "re.Match[str]", _stdin: bytes) -> bytes:
    """Remove nothing: each run of this program begins with new instances."""
    return b""


async def finish(files: Files, match: "re.Match[str]", stdin: bytes) -> bytes:
    """Keep the manifest, and give a run its copy of the user's files."""
    files.content[f"{match[1]}/manifest.json"] = stdin
    for name, data in files.below(f"{match[1]}/tree").items():
        files.content[f"{match[2]}/{name}"] = data
    return b""


UNPACK = r"echo '(\w+)  \S+' \| sha256sum -c --status && mkdir -p (\S+) && tar -xzof \S+ -C \S+"
JOB = r"python3 -I -S dlcloud/job\.py"
FILES = r"python3 -I -S dlcloud/files\.py"
COMMANDS: list[tuple[str, Work]] = [
    (re.escape(PROOF_COMMAND), prove),
    (r"cat (\S+)", show),
    (r".* -eq (\d+) \] && chmod \S+ \S+ && mv -f \S+ (\S+) \|\| .*", write),
    (r"mkdir -p (\S+) && tar -xz?of - -C \S+", unpack),
    (r'mkdir -p (\S+)/\w+\.part && tar -xof .* mv -f "\$@" .*', write_several),
    (rf"mkdir -p (\S+) && cat > .* && {UNPACK}", keep),
    (r"python3 -I -S dlcloud/peer\.py serve", offer),
    (rf"python3 -I -S dlcloud/peer\.py fetch && {UNPACK}", take),
    (r"cd (\S+) && find \. -type f -print0", find),
    (r"cd (\S+) && (?:while .* done \| )?tar -cf - --null -T -", pack),
    (rf"{JOB} start (\S+)(?: -)?", start),
    (rf"{JOB} follow (\S+) (\S+) (\d+)", follow),
    (rf"{JOB} state (\S+)", state),
    (rf"mkdir -p \S+ && cat > .* && {FILES} manifest (\S+)", manifest),
    (rf"{FILES} remove (\S+)", remove),
    (rf"{FILES} finish (\S+) (\S+)", finish),
]


WITH_INPUT = {manifest, write, write_several, unpack, pack, finish, keep, offer, take}


async def execute(files: Files, process: "asyncssh.SSHServerProcess[bytes]") -> bytes:
    """Do what a command says.

    Raises:
        CommandError: It is none of those that are known, or it fails.
    """
    for pattern, work in COMMANDS:
        match = re.fullmatch(pattern, process.command or "", re.DOTALL)
        if match is not None:
            stdin = await process.stdin.read() if work in WITH_INPUT else b""
            return await work(files, match, stdin)
    raise UnknownCommandError(f"a light instance does not know this command: {process.command}")


async def serve(files: Files, process: "asyncssh.SSHServerProcess[bytes]") -> None:
    """Run the command of a session."""
    try:
        process.stdout.write(await execute(files, process))
        process.exit(0)
    except CommandError as error:
        process.stderr.write(str(error).encode())
        process.exit(127 if isinstance(error, UnknownCommandError) else 1)


def lighten() -> None:
    """Replace the instances of the local EC2 by light ones; now, as moto reads its settings at import."""
    from dlcloud.local.ec2 import instances  # noqa: PLC0415
    from dlcloud.local.instance import sshd  # noqa: PLC0415
    from dlcloud.local.instance.local_instance import LocalInstance  # noqa: PLC0415
    from dlcloud.local.tree.instance_tree import InstanceTree  # noqa: PLC0415

    class LightServer(sshd.SshServer):
        """The local EC2's SSH server, without programs."""

        __slots__ = ("in_memory",)

        async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
            await serve(self.in_memory, process)

    class LightInstance(LocalInstance):
        """An instance without programs: its SSH server answers at once."""

        async def boot(self) -> None:
            key = asyncssh.generate_private_key("ssh-ed25519")
            self.public_host_key = key.export_public_key().decode().strip()
            data = read_user_data(self.identity.user_data)
            self.root.mkdir(mode=0o700)
            keys = self.root / "authorized_keys"
            keys.write_text("".join(f"{line}\n" for line in data.authorized_keys))
            secret = next((found[1] for file in data.files if (found := SECRET.search(file.content))), b"")
            name = self.identity.instance_id
            public = self.public_host_key.split()[1]
            files = Files(name, compute_proof(secret.decode(), name, public).encode())
            INSTANCES[name] = files
            HOSTS[self.listeners.host] = files
            HOSTS[self.properties().get("local-ipv4", "")] = files
            server = LightServer(
                host_key=key,
                env={},
                container=self.container,
                files=sshd.LoginFiles(
                    tree=InstanceTree(self.root), authorized_keys={self._user: keys.name}, nologin="nologin"
                ),
                interpreter="",
                instance_users=self.instance_users,
            )
            server.in_memory = files
            self._ssh = server
            await server.open(self.listeners.ssh)

        async def close(self) -> None:
            if self._ssh is not None:
                await self._ssh.close()
            self.listeners.close()
            INSTANCES.pop(self.identity.instance_id, None)

    async def end_all(*_arguments: object, **_options: object) -> None:
        """There are no processes to end."""

    instances.LocalInstance = LightInstance
    instances.end_all = end_all


def main() -> int:
    """Run the local EC2 of a folder with light instances."""
    import_service = daemon._import_service

    def import_light_service() -> Callable[[Any], None]:
        run = import_service()
        lighten()
        return run

    daemon._import_service = import_light_service
    os.environ["DLCLOUD_LOCAL_ISOLATION"] = "none"
    return daemon.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
