"""One instance: its folder, its boot, its SSH server and its metadata service."""

import asyncio
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import asyncssh

from dlcloud.local.addresses import Listeners
from dlcloud.local.cloudinit import UserData, WrittenFile, read_user_data
from dlcloud.local.metadata import MetadataService
from dlcloud.local.processes import environment, run_logged, shell_path
from dlcloud.local.shims import write_shims
from dlcloud.local.sshd import SshServer

_T = TypeVar("_T")
_USER = "ubuntu"
_FOLDERS = ("home/.ssh", "bin", "etc/ssh", "run/cloud-init", "tmp", "var/lib/dlcloud", "var/log")
# A login shell reads /etc/profile, which sets a PATH of its own: put the shims in front again.
_PROFILE = 'PATH="$DLCLOUD_ROOT/bin:$PATH"\nexport PATH\n'
_ISO = "%Y-%m-%dT%H:%M:%SZ"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an instance is, as EC2 says; fixed at its launch."""

    instance_id: str
    instance_type: str
    image_id: str
    region: str
    zone: str
    account_id: str
    hostname: str
    lifecycle: str
    launched_at: datetime
    user_data: bytes
    public_key: str | None


@dataclass(slots=True, kw_only=True)
class Notices:
    """What EC2 has announced to an instance."""

    ends_at: datetime | None = None
    rebalance_at: datetime | None = None


class Machine:
    """The running side of an instance.

    Args:
        identity: What it is.
        root: Its folder, made at boot and removed at the end.
        cache: What it shares with all instances as `~/.cache`.
        listeners: Its bound sockets.
        interpreter: The Python of its programs.
        tags: Returns its tags, which can change.
        iam: Returns what its metadata service shows of its role, by path.
        power: Carries out an order of its shutdown program.
        minute_s: How long a minute of its timers takes; less than 60 rehearses long waits.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        root: Path,
        cache: Path,
        listeners: Listeners,
        interpreter: str,
        tags: Callable[[], Mapping[str, str]],
        iam: Callable[[], Mapping[str, str]],
        power: Callable[[str], None],
        minute_s: float = 60.0,
    ) -> None:
        self.identity = identity
        self.root = root
        self.notices = Notices()
        self.host = listeners.host
        self.ssh_port = listeners.ssh_port
        self.metadata_port = listeners.metadata_port
        self._listeners = listeners
        self._cache = cache
        self._interpreter = interpreter
        self._tags = tags
        self._iam = iam
        self._minute_s = minute_s
        self._plan = read_user_data(identity.user_data)
        self._secret = secrets.token_hex(16)
        self._metadata = MetadataService(documents=self._documents, power=power, secret=self._secret)
        self._ssh: SshServer | None = None
        self._final: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[object] | None = None

    @property
    def _env(self) -> dict[str, str]:
        url = f"http://{self.host}:{self.metadata_port}"
        env = environment(self.root, metadata_url=url, user=_USER, minute_s=self._minute_s)
        # What is built in the cache must carry no instance's path: the cache outlives them all.
        return {**env, "TMPDIR": str(self.root / "tmp"), "XDG_CACHE_HOME": str(self._cache)}

    @property
    def _output(self) -> Path:
        return self.root / "var/log/cloud-init-output.log"

    async def boot(self) -> None:
        """Boot for the first time: everything up to an open SSH port; the last commands go on after it."""
        host_key = await self._write(self._furnish)
        await self._metadata.open(self._listeners.metadata)
        await self._run("bootcmd", self._plan.boot_commands)
        await self._write(self._write_files)
        self._ssh = SshServer(
            host_key=host_key,
            authorized=_authorized(self.identity, self._plan),
            env=self._env,
            home=self.root / "home",
            interpreter=self._interpreter,
        )
        await self._ssh.open(self._listeners.ssh)
        self._final = asyncio.create_task(self._finish(self._plan), name=f"final {self.identity.instance_id}")

    async def boot_again(self, listeners: Listeners) -> None:
        """Boot after a stop, on new sockets: the services and the boot commands, nothing else."""
        self._listeners = listeners
        self.host, self.ssh_port = listeners.host, listeners.ssh_port
        self.metadata_port = listeners.metadata_port
        await self._write(self._write_shims)
        await self._metadata.open(listeners.metadata)
        await self._run("bootcmd", self._plan.boot_commands)
        if self._ssh is not None:
            self._ssh.env = self._env
            await self._ssh.open(listeners.ssh)

    def admit_key(self, public_key: str, *, seconds: float) -> bool:
        """Let the holder of a key in for a while; False before the SSH server is there.

        Raises:
            ValueError: It is no public key.
        """
        if self._ssh is None:
            return False
        self._ssh.admit(public_key, seconds=seconds)
        return True

    async def refuse(self) -> None:
        """Take no new SSH connections; programs get the time to end."""
        if self._final is not None:
            self._final.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._ssh is not None:
            self._ssh.refuse()

    async def close(self) -> None:
        """Close the SSH server and the metadata service with all their connections."""
        if self._ssh is not None:
            await self._ssh.close()
        await self._metadata.close()
        self._listeners.close()

    def remove(self) -> None:
        """Remove the folder; the shared cache behind its link stays."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self.root.exists():
            log.warning("the folder of %s could not be removed", self.identity.instance_id)

    async def _write(self, work: Callable[[], _T]) -> _T:
        """Write files in a thread; a boot that is called off waits for it before the folder is removed."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        self._writing = task  # type: ignore[assignment]  # a future of anything; only its end matters
        return await asyncio.shield(task)

    def _furnish(self) -> asyncssh.SSHKey:
        """Make the folder and what a fresh image has in it."""
        self.root.mkdir(mode=0o700)
        for name in _FOLDERS:
            (self.root / name).mkdir(parents=True)
        (self.root / "home/.cache").symlink_to(self._cache)
        for name in (".profile", ".bash_profile"):
            (self.root / "home" / name).write_text(_PROFILE, encoding="utf-8")
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        path = self.root / "etc/ssh/ssh_host_ed25519_key"
        path.touch(mode=0o600)
        path.write_bytes(host_key.export_private_key("openssh"))
        host_key.write_public_key(path.with_suffix(".pub"))
        keys = self.root / "home/.ssh/authorized_keys"
        keys.touch(mode=0o600)
        keys.write_text(
            "".join(f"{key}\n" for key in _authorized(self.identity, self._plan)), encoding="utf-8"
        )
        self._write_shims()
        self._output.write_text("".join(f"{text}\n" for text in self._plan.complaints), encoding="utf-8")
        return host_key

    def _write_shims(self) -> None:
        address = (self.host, self.metadata_port)
        write_shims(self.root, interpreter=self._interpreter, address=address, secret=self._secret)

    def _write_files(self) -> None:
        for file in self._plan.files:
            _write_file(self.root, file)

    async def _run(self, name: str, commands: tuple[str, ...]) -> int:
        """Run commands as one shell script, as cloud-init does: a failing one does not stop the next."""
        if not commands:
            return 0
        script = self.root / "var/lib/dlcloud" / name
        script.write_text("\n".join(commands) + "\n", encoding="utf-8")
        return await self._log_program([shell_path(), str(script)])

    async def _finish(self, plan: UserData) -> None:
        """Do what cloud-init does last, and leave word of how it went for `cloud-init status`."""
        status = 0
        try:
            status = await self._run("runcmd", plan.run_commands)
            if plan.script:
                script = self.root / "var/lib/dlcloud/user-data"
                script.write_bytes(plan.script)
                script.chmod(0o700)
                status = await self._log_program([str(script)])
        except OSError as error:
            log.warning("user data of %s could not be run: %s", self.identity.instance_id, error)
            status = 1
        result = "error" if status or plan.complaints else "done"
        draft = self.root / "run/cloud-init/result.new"
        draft.write_text(result, encoding="ascii")
        draft.replace(draft.with_name("result"))

    async def _log_program(self, argv: list[str]) -> int:
        env = {**self._env, "INSTANCE_ID": self.identity.instance_id}
        return await run_logged(argv, env=env, cwd=self.root / "home", output=self._output)

    def _documents(self) -> dict[str, str]:
        """Return what the metadata service shows, by path."""
        me = self.identity
        values = {
            "instance-id": me.instance_id,
            "instance-type": me.instance_type,
            "instance-life-cycle": me.lifecycle,
            "ami-id": me.image_id,
            "hostname": me.hostname,
            "local-hostname": me.hostname,
            "local-ipv4": self.host,
            "public-ipv4": self.host,
            "placement/availability-zone": me.zone,
            "placement/region": me.region,
            **{f"tags/instance/{name}": value for name, value in self._tags().items()},
            **self._iam(),
            **self._announced(),
        }
        documents = {f"latest/meta-data/{name}": value for name, value in values.items()}
        documents["latest/dynamic/instance-identity/document"] = json.dumps(self._document(), indent=2)
        if me.user_data:
            documents["latest/user-data"] = me.user_data.decode(errors="replace")
        return documents

    def _announced(self) -> dict[str, str]:
        shown = {}
        if self.notices.ends_at is not None:
            action = {"action": "terminate", "time": self.notices.ends_at.strftime(_ISO)}
            shown["spot/instance-action"] = json.dumps(action)
            shown["spot/termination-time"] = action["time"]
        if self.notices.rebalance_at is not None:
            notice = {"noticeTime": self.notices.rebalance_at.strftime(_ISO)}
            shown["events/recommendations/rebalance"] = json.dumps(notice)
        return shown

    def _document(self) -> dict[str, str]:
        me = self.identity
        return {
            "accountId": me.account_id,
            "architecture": "x86_64",
            "availabilityZone": me.zone,
            "imageId": me.image_id,
            "instanceId": me.instance_id,
            "instanceType": me.instance_type,
            "pendingTime": me.launched_at.strftime(_ISO),
            "privateIp": self.host,
            "region": me.region,
            "version": "2017-09-30",
        }


def _authorized(identity: Identity, plan: UserData) -> tuple[str, ...]:
    return (*plan.authorized_keys, *((identity.public_key,) if identity.public_key else ()))


def _write_file(root: Path, file: WrittenFile) -> None:
    """Write a file of the user data below the root; one that would leave it is not written."""
    path = (root / file.path.lstrip("/")).resolve()
    if not path.is_relative_to(root.resolve()):
        log.warning("user data asks for a file outside of the instance; left out")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if file.append else "wb") as stream:
        stream.write(file.content)
    path.chmod(file.mode)
