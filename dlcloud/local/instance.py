"""One instance: its folder, its boot, its SSH server and its metadata service."""

import asyncio
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import asyncssh

from dlcloud.local.addresses import Listeners
from dlcloud.local.cloudinit import WrittenFile, read_user_data
from dlcloud.local.console import read_console
from dlcloud.local.metadata import MetadataService
from dlcloud.local.processes import instance_environment, run_logged, shell_path
from dlcloud.local.shims import write_shims
from dlcloud.local.sshd import SshServer
from dlcloud.system.files import write_file

_T = TypeVar("_T")
_USER = "ubuntu"
_FOLDERS = ("home/.ssh", "bin", "etc/ssh", "run/cloud-init", "tmp", "var/lib/dlcloud", "var/log")
# A login shell reads /etc/profile, which sets a PATH of its own: put the shims in front again.
_PROFILE = 'PATH="$DLCLOUD_ROOT/bin:$PATH"\nexport PATH\n'
_ISO = "%Y-%m-%dT%H:%M:%SZ"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The properties of an instance that its own services show; fixed at its launch."""

    instance_id: str
    instance_type: str
    image_id: str
    region: str
    zone: str
    account_id: str
    architecture: str
    launched_at: datetime
    user_data: bytes
    public_key: str | None


@dataclass(slots=True, kw_only=True)
class Notices:
    """Announcements of EC2 to an instance."""

    ends_at: datetime | None = None
    rebalance_at: datetime | None = None


@dataclass(kw_only=True, eq=False)
class LocalInstance:
    """The folder, the processes and the servers of an instance.

    Args:
        identity: Its properties.
        root: Its folder, made at boot and removed at the end.
        cache: The folder that all instances share as `~/.cache`.
        listeners: Its bound sockets.
        interpreter: The Python of its programs.
        properties: Returns its metadata documents by path, as they are now.
        iam: Returns its role's metadata documents by path.
        power: Carries out an order of its shutdown program.
        minute_s: Length of a minute of its timers; less than 60 rehearses long waits.
    """

    identity: Identity
    root: Path
    cache: Path
    listeners: Listeners
    interpreter: str
    properties: Callable[[], Mapping[str, str]]
    iam: Callable[[], Mapping[str, str]]
    power: Callable[[str], None]
    minute_s: float = 60.0
    notices: Notices = field(default_factory=Notices)

    def __post_init__(self) -> None:
        self._user_data = read_user_data(self.identity.user_data)
        self._secret = secrets.token_hex(16)
        self._metadata = MetadataService(documents=self._documents, power=self.power, secret=self._secret)
        self._ssh: SshServer | None = None
        self._last_stage: asyncio.Task[None] | None = None
        self.public_host_key = ""
        self._booted_at: datetime | None = None
        self._console = ""
        self._writing: asyncio.Future[object] | None = None

    @property
    def _env(self) -> dict[str, str]:
        url = f"http://{self.listeners.host}:{self.listeners.metadata_port}"
        return instance_environment(
            self.root, cache=self.cache, metadata_url=url, user=_USER, minute_s=self.minute_s
        )

    @property
    def _output(self) -> Path:
        return self.root / "var/log/cloud-init-output.log"

    async def boot(self) -> None:
        """Boot for the first time: everything up to an open SSH port; the last commands go on after it."""
        host_key = await self._write(self._create_folder)
        self.public_host_key = host_key.export_public_key().decode().strip()
        await self._metadata.open(self.listeners.metadata)
        await self._run("bootcmd", self._user_data.boot_commands)
        await self._write(self._write_files)
        self._ssh = SshServer(
            host_key=host_key,
            env=self._env,
            home=self.root / "home",
            interpreter=self.interpreter,
        )
        await self._ssh.open(self.listeners.ssh)
        self._booted_at = datetime.now(UTC)
        self._last_stage = asyncio.create_task(self._run_last_stage())

    def console(self) -> str:
        """Return the console output; that of a removed instance is kept."""
        if self.root.exists():
            hostname = self.properties().get("local-hostname", "")
            self._console = (
                read_console(self.root, hostname=hostname, booted_at=self._booted_at) or self._console
            )
        return self._console

    async def boot_again(self, listeners: Listeners) -> None:
        """Boot after a stop, on new sockets: the services and the boot commands, nothing else."""
        self.listeners = listeners
        await self._write(self._write_shims)
        await self._metadata.open(listeners.metadata)
        await self._run("bootcmd", self._user_data.boot_commands)
        if self._ssh is not None:
            self._ssh.env = self._env
            await self._ssh.open(listeners.ssh)

    def admit_key(self, public_key: str, *, seconds: float) -> bool:
        """Accept a public key for a while; False before the SSH server is there.

        Raises:
            ValueError: It is no public key.
        """
        if self._ssh is None:
            return False
        self._ssh.admit(public_key, seconds=seconds)
        return True

    async def refuse_logins(self) -> None:
        """Take no new SSH connections; programs get the time to end."""
        if self._last_stage is not None:
            self._last_stage.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._ssh is not None:
            self._ssh.refuse_logins()

    async def close(self) -> None:
        """Close the SSH server and the metadata service with all their connections."""
        if self._ssh is not None:
            await self._ssh.close()
        await self._metadata.close()
        self.listeners.close()

    def remove(self) -> None:
        """Remove the folder; the shared cache behind its link stays."""
        self.console()
        shutil.rmtree(self.root, ignore_errors=True)
        if self.root.exists():
            log.warning("the folder of %s could not be removed", self.identity.instance_id)

    async def _write(self, work: Callable[[], _T]) -> _T:
        """Write files in a thread; a cancelled boot waits for it before the folder is removed."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        self._writing = task  # type: ignore[assignment]  # a future of anything; only its end matters
        return await asyncio.shield(task)

    def _create_folder(self) -> asyncssh.SSHKey:
        """Create the folder with the files of a fresh image; returns the host key."""
        self.root.mkdir(mode=0o700)
        for name in _FOLDERS:
            (self.root / name).mkdir(parents=True)
        (self.root / "home/.cache").symlink_to(self.cache)
        for name in (".profile", ".bash_profile"):
            (self.root / "home" / name).write_text(_PROFILE, encoding="utf-8")
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        path = self.root / "etc/ssh/ssh_host_ed25519_key"
        path.touch(mode=0o600)
        path.write_bytes(host_key.export_private_key("openssh"))
        host_key.write_public_key(path.with_suffix(".pub"))
        keys = self.root / "home/.ssh/authorized_keys"
        keys.touch(mode=0o600)
        keys.write_text("".join(f"{key}\n" for key in self._authorized_keys()), encoding="utf-8")
        self._write_shims()
        self._output.write_text(
            "".join(f"{warning}\n" for warning in self._user_data.warnings), encoding="utf-8"
        )
        return host_key

    def _authorized_keys(self) -> tuple[str, ...]:
        key_pair = (self.identity.public_key,) if self.identity.public_key else ()
        return (*self._user_data.authorized_keys, *key_pair)

    def _write_shims(self) -> None:
        address = (self.listeners.host, self.listeners.metadata_port)
        write_shims(self.root, interpreter=self.interpreter, address=address, secret=self._secret)

    def _write_files(self) -> None:
        for file in self._user_data.files:
            _write_file(self.root, file)

    async def _run(self, name: str, commands: tuple[str, ...]) -> int:
        """Run commands as one shell script, as cloud-init does: a failing one does not stop the next."""
        if not commands:
            return 0
        script = self.root / "var/lib/dlcloud" / name
        script.write_text("\n".join(commands) + "\n", encoding="utf-8")
        return await self._log_program([shell_path(), str(script)])

    async def _run_last_stage(self) -> None:
        """Run cloud-init's last stage, and store its result for `cloud-init status`."""
        user_data = self._user_data
        status = 0
        try:
            status = await self._run("runcmd", user_data.run_commands)
            if user_data.script:
                script = self.root / "var/lib/dlcloud/user-data"
                script.write_bytes(user_data.script)
                script.chmod(0o700)
                status = await self._log_program([str(script)])
        except OSError as error:
            log.warning("user data of %s could not be run: %s", self.identity.instance_id, error)
            status = 1
        result = "error" if status or user_data.warnings else "done"
        write_file(self.root / "run/cloud-init/result", result)

    async def _log_program(self, argv: list[str]) -> int:
        env = {**self._env, "INSTANCE_ID": self.identity.instance_id}
        return await run_logged(argv, env=env, cwd=self.root / "home", output=self._output)

    def _documents(self) -> dict[str, str]:
        """Return the documents of the metadata service by path."""
        values = {**self.properties(), **self.iam(), **self._notice_documents()}
        documents = {f"latest/meta-data/{name}": value for name, value in values.items()}
        documents["latest/dynamic/instance-identity/document"] = json.dumps(
            self._identity_document(), indent=2
        )
        if self.identity.user_data:
            documents["latest/user-data"] = self.identity.user_data.decode(errors="replace")
        return documents

    def _notice_documents(self) -> dict[str, str]:
        documents = {}
        if self.notices.ends_at is not None:
            action = {"action": "terminate", "time": self.notices.ends_at.strftime(_ISO)}
            documents["spot/instance-action"] = json.dumps(action)
            documents["spot/termination-time"] = action["time"]
        if self.notices.rebalance_at is not None:
            notice = {"noticeTime": self.notices.rebalance_at.strftime(_ISO)}
            documents["events/recommendations/rebalance"] = json.dumps(notice)
        return documents

    def _identity_document(self) -> dict[str, str | None]:
        identity = self.identity
        absent = ("billingProducts", "devpayProductCodes", "kernelId", "marketplaceProductCodes", "ramdiskId")
        return {
            **dict.fromkeys(absent),
            "accountId": identity.account_id,
            "architecture": identity.architecture,
            "availabilityZone": identity.zone,
            "imageId": identity.image_id,
            "instanceId": identity.instance_id,
            "instanceType": identity.instance_type,
            "pendingTime": identity.launched_at.strftime(_ISO),
            "privateIp": self.listeners.host,
            "region": identity.region,
            "version": "2017-09-30",
        }


def _write_file(root: Path, file: WrittenFile) -> None:
    """Write a file of the user data below the root; skip a path that leaves it."""
    path = (root / file.path.lstrip("/")).resolve()
    if not path.is_relative_to(root.resolve()):
        log.warning("user data asks for a file outside of the instance; left out")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if file.append else "wb") as stream:
        stream.write(file.content)
    path.chmod(file.mode)
