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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh

from dlcloud.local import daemon
from dlcloud.local.instance.cloudinit import read_user_data
from dlcloud.ssh.keys import PROOF_COMMAND, compute_proof

JOB_S = float(os.environ.get("LIGHT_JOB_S", "2"))
RECORDS = os.environ.get("LIGHT_RECORDS", "")
SECRET = re.compile(r'SECRET = "([0-9a-f]{64})"')


class CommandError(Exception):
    """A command that fails; its text goes to stderr."""


class Files:
    """The files and jobs of one instance."""

    def __init__(self, instance_id: str, proof: bytes) -> None:
        self.instance_id, self.proof = instance_id, proof
        self.content: dict[str, bytes] = {}
        self.ends_at: dict[str, float] = {}

    def below(self, folder: str) -> dict[str, bytes]:
        """Return the files of a folder by their names in it."""
        top = f"{folder.strip('/')}/"
        return {name[len(top) :]: data for name, data in self.content.items() if name.startswith(top)}

    def unpack(self, folder: str, archive: bytes, digest: str = "") -> None:
        """Keep the regular files of a tar archive, which has the digest if there is one."""
        if digest and hashlib.sha256(archive).hexdigest() != digest:
            raise CommandError("another archive")
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as stream:
            for member in stream:
                file = stream.extractfile(member)
                if file is not None:
                    self.content[f"{folder}/{member.name}"] = file.read()

    def is_running(self, folder: str) -> bool:
        """Return whether a job's time is not over; else write what it leaves behind."""
        if time.monotonic() < self.ends_at[folder]:
            return True
        records = Path(RECORDS).read_bytes() if RECORDS else b""
        self.content[f"{folder}/records.jsonl"] = records.replace(b"@HOST@", self.instance_id.encode())
        self.content[f"{folder}/log"] = b""
        return False


HOSTS: dict[str, Files] = {}
Work = Callable[..., Any]
COMMANDS: list[tuple[str, Work, bool]] = []
UNPACK = r"echo '(\w+)  \S+' \| sha256sum -c --status && mkdir -p (\S+) && tar -xzof \S+ -C \S+"
JOB = r"python3 -I -S dlcloud/job\.py"
FILES = r"python3 -I -S dlcloud/files\.py"


def command(pattern: str, *, reads: bool = False) -> Callable[[Work], Work]:
    """Let a function do what commands of this form do; it gets the groups, and stdin where it reads it."""

    def register(work: Work) -> Work:
        COMMANDS.append((pattern, work, reads))
        return work

    return register


@command(re.escape(PROOF_COMMAND))
async def prove(files: Files) -> bytes:
    return files.proof


@command(r"cat (\S+)")
async def show(files: Files, path: str) -> bytes:
    if path not in files.content:
        raise CommandError(path)
    return files.content[path]


@command(r".* -eq (\d+) \] && chmod \S+ \S+ && mv -f \S+ (\S+) \|\| .*", reads=True)
async def write(files: Files, size: str, path: str, stdin: bytes) -> None:
    if len(stdin) != int(size):
        raise CommandError("the input was cut off")
    files.content[path] = stdin


@command(r"mkdir -p (\S+) && tar -xz?of - -C \S+", reads=True)
@command(r'mkdir -p (\S+)/\w+\.part && tar -xof .* mv -f "\$@" .*', reads=True)
async def unpack(files: Files, folder: str, stdin: bytes) -> None:
    files.unpack(folder, stdin)


@command(rf"mkdir -p (\S+) && cat > .* && {UNPACK}", reads=True)
async def keep(files: Files, folder: str, digest: str, target: str, stdin: bytes) -> None:
    """Keep an archive for others, and unpack it."""
    files.content |= {f"{folder}/archive": stdin, f"{folder}/complete": b""}
    files.unpack(target, stdin, digest)


@command(r"python3 -I -S dlcloud/peer\.py serve", reads=True)
async def offer(files: Files, stdin: bytes) -> bytes:
    """Offer an archive; it is copied in memory, so that any port will do."""
    order = json.loads(stdin)
    if f"{order['folder']}/{order['name']}/complete" not in files.content:
        raise CommandError("there is none")
    return b'{"port": 1}\n'


@command(rf"python3 -I -S dlcloud/peer\.py fetch && {UNPACK}", reads=True)
async def take(files: Files, digest: str, target: str, stdin: bytes) -> None:
    """Copy an archive from another instance, and unpack it."""
    order = json.loads(stdin)
    folder = f"{order['folder']}/{order['name']}"
    for name in (f"{folder}/archive", f"{folder}/complete"):
        files.content[name] = HOSTS[order["host"]].content[name]
    files.unpack(target, files.content[f"{folder}/archive"], digest)


@command(r"cd (\S+) && find \. -type f -print0")
async def find(files: Files, folder: str) -> bytes:
    return b"".join(f"./{name}\0".encode() for name in files.below(folder))


@command(r"cd (\S+) && (?:while .* done \| )?tar -cf - --null -T -", reads=True)
async def pack(files: Files, folder: str, stdin: bytes) -> bytes:
    """Print an archive of the listed files."""
    buffer, content = io.BytesIO(), files.below(folder)
    with tarfile.open(fileobj=buffer, mode="w") as stream:
        for name in stdin.replace(b"\0", b"\n").decode().splitlines():
            if (data := content.get(name.removeprefix("./"))) is not None:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                stream.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@command(rf"{JOB} start (\S+)(?: -)?")
async def start(files: Files, folder: str) -> None:
    if f"{folder}/command" not in files.content:
        raise CommandError(f"{folder}: nothing to start")
    files.ends_at.setdefault(folder, time.monotonic() + JOB_S)


@command(rf"{JOB} follow (\S+) (\S+) (\d+)")
async def follow(files: Files, folder: str, name: str, offset: str) -> bytes:
    """Print a file of a job from an offset, at its end."""
    await asyncio.sleep(max(0.0, files.ends_at[folder] - time.monotonic()))
    files.is_running(folder)
    return files.content.get(f"{folder}/{name}", b"")[int(offset) :]


@command(rf"{JOB} state (\S+)")
async def state(files: Files, folder: str) -> bytes:
    word, status = "new", None
    if folder in files.ends_at:
        word, status = ("running", None) if files.is_running(folder) else ("ended", 0)
    return json.dumps({"state": word, "exit_status": status}).encode()


@command(rf"{JOB} written .*")
async def written(_files: Files) -> bytes:
    """List no files: a light job writes none."""
    return b"[]"


@command(rf"mkdir -p \S+ && cat > .* && {FILES} manifest (\S+)", reads=True)
async def manifest(files: Files, folder: str, stdin: bytes) -> bytes:  # noqa: ARG001  the program, not kept
    return files.content.get(f"{folder}/manifest.json", b"null")


@command(rf"{FILES} remove \S+")
async def remove(_files: Files) -> None:
    """Remove nothing: each run of this program begins with new instances."""


@command(rf"{FILES} finish (\S+) (\S+)", reads=True)
async def finish(files: Files, folder: str, run: str, stdin: bytes) -> None:
    """Keep the manifest, and give a run its copy of the user's files."""
    files.content[f"{folder}/manifest.json"] = stdin
    for name, data in files.below(f"{folder}/tree").items():
        files.content[f"{run}/{name}"] = data


async def serve(files: Files, process: "asyncssh.SSHServerProcess[bytes]") -> None:
    """Do what the command of a session says; status 127 if it is none of those that are known."""
    for pattern, work, reads in COMMANDS:
        if match := re.fullmatch(pattern, process.command or "", re.DOTALL):
            stdin = {"stdin": await process.stdin.read()} if reads else {}
            try:
                process.stdout.write(await work(files, *match.groups(), **stdin) or b"")
                process.exit(0)
            except CommandError as error:
                process.stderr.write(str(error).encode())
                process.exit(1)
            return
    process.stderr.write(f"a light instance does not know this command: {process.command}".encode())
    process.exit(127)


def lighten() -> None:
    """Replace the instances of the local EC2 by light ones; now, as moto reads its settings at import."""
    from dlcloud.local.ec2 import instances  # noqa: PLC0415
    from dlcloud.local.instance import sshd  # noqa: PLC0415
    from dlcloud.local.instance.local_instance import LocalInstance  # noqa: PLC0415
    from dlcloud.local.tree.instance_tree import InstanceTree  # noqa: PLC0415

    class LightServer(sshd.SshServer):
        """The local EC2's SSH server, without programs."""

        __slots__ = ("in_memory",)

        async def run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
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
            secret = next((found[1] for file in data.files if (found := SECRET.search(file.content))), "")
            name = self.identity.instance_id
            public = self.public_host_key.split()[1]
            files = Files(name, compute_proof(secret, name, public).encode())
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
