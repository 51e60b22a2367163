"""One instance: its folder, its boot, its SSH server and its metadata service.

`ec2/instances.py` makes it at the launch and drives it: `boot` writes the folder of a fresh image, opens the
metadata service, starts the container, runs the boot commands of the user data and opens SSH; the last
commands run after that. `end_logins` and `close` end it in this order, and `remove` deletes the folder.

Programs of the instance change the folder at any time, so it is read and written through `tree` alone; a
cancelled boot waits for its writing thread before the folder is removed.
"""

import asyncio
import contextlib
import fnmatch
import json
import logging
import secrets
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import asyncssh

from dlcloud.local.instance.addresses import Listeners
from dlcloud.local.instance.cloudinit import (
    WRITE_FILES,
    describe_files,
    read_console,
    read_user_data,
    root_key,
)
from dlcloud.local.instance.container import Container, InstanceServices
from dlcloud.local.instance.machine_images import default_user
from dlcloud.local.instance.metadata import Identity, MetadataService, Notices
from dlcloud.local.instance.processes import instance_environment, remove_root, shell_path
from dlcloud.local.instance.rootfs import hosts_line
from dlcloud.local.instance.shims import write_shims
from dlcloud.local.instance.sshd import LoginFiles, SshServer
from dlcloud.local.tree.copies import restore

_T = TypeVar("_T")
_FOLDERS = (
    *("home/.ssh", "root/.ssh", "bin", "etc/ssh", "lib", "run/cloud-init", "tmp"),
    *("var/lib/dlcloud", "var/log"),
)
_NOLOGIN, _KEYS = "run/nologin", ".ssh/authorized_keys"
_LOG = "var/log/cloud-init-output.log"
_PER_BOOT = "var/lib/cloud/scripts/per-boot"
# A login shell reads /etc/profile, which sets a PATH of its own: put the shims in front again.
_PROFILE = 'PATH="$DLCLOUD_ROOT/bin:$PATH"\nexport PATH\n'

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class LocalInstance:
    """The folder, the processes and the servers of an instance.

    Args:
        root: Its folder, made at boot and removed at the end; `bin` and `lib` are read-only to its programs.
        image: The folder that its image is a copy of; missing for those that the local EC2 comes with.
        cache: The folder that all instances share as `~/.cache`, or one of its own there.
        properties: Returns its metadata documents by path, as they are now.
        iam: Returns its role's metadata documents by path.
        power: Carries out an order of its shutdown program.
        minute_s: Length of a minute of its timers; less than 60 rehearses long waits.
        is_silent: SSH never answers, while everything else is up.
        apt_lock_s: How long a job of the image holds apt's locks at first boot.
        machine: A command that boots a virtual machine in place of the processes here; empty for none.
    """

    identity: Identity
    root: Path
    container: Container
    instance_users: range
    image: Path
    cache: Path
    listeners: Listeners
    interpreter: str
    properties: Callable[[], Mapping[str, str]]
    iam: Callable[[], Mapping[str, str]]
    power: Callable[[str], None]
    minute_s: float = 60.0
    is_silent: bool = False
    apt_lock_s: float = 0.0
    machine: str = ""
    notices: Notices = field(default_factory=Notices)

    def __post_init__(self) -> None:
        self._user_data = read_user_data(self.identity.user_data)
        self._user = default_user(self.identity.image_id)
        self._secret = secrets.token_hex(16)
        self.tree = self.container.tree
        self._metadata = MetadataService(
            documents=self._documents,
            power=self.power,
            secret=self._secret,
            instance_users=self.instance_users,
        )
        self.services = InstanceServices(container=self.container)
        self.container.on_end = lambda: self.power("0")
        self._ssh: SshServer | None = None
        self._last_stage: asyncio.Task[object] | None = None
        self._console = ""
        self._writing: asyncio.Future[object] | None = None

    @property
    def _env(self) -> dict[str, str]:
        url = f"http://{self.listeners.host}:{self.listeners.metadata_port}"
        return instance_environment(
            self.root, cache=self.cache, metadata_url=url, user=self._user, minute_s=self.minute_s
        )

    async def boot(self) -> None:
        """Boot for the first time: everything up to an open SSH port; the last commands continue after it."""
        host_key = await self._write(self._create_folder)
        await self._metadata.open(self.listeners.metadata)
        if self.machine:
            self._last_stage = asyncio.create_task(self._run_machine())
            return
        await self.container.start(self._hostname())
        await self._run("bootcmd", self._user_data.boot_commands)
        await self._write_files()
        self._ssh = SshServer(
            host_key=host_key,
            env=self._env,
            container=self.container,
            files=LoginFiles(
                tree=self.tree,
                authorized_keys={self._user: f"home/{_KEYS}", "root": f"root/{_KEYS}"},
                nologin=_NOLOGIN,
            ),
            interpreter=self.interpreter,
            instance_users=self.instance_users,
        )
        if self.is_silent:
            return
        await self._ssh.open(self.listeners.ssh)
        self._last_stage = asyncio.create_task(self._run_last_stage())

    async def run_service(
        self, name: str, argv: list[str], env: Mapping[str, str], *, limit_s: float | None
    ) -> int:
        """Run a program with the instance's variables and its own; see `InstanceServices.run`."""
        return await self.services.run(name, argv, {**self._env, **env}, limit_s=limit_s)

    def console(self) -> str:
        """Return the console output; that of a removed instance is kept."""
        if self.tree.exists():
            self._console = read_console(self.tree) or self._console
        return self._console

    def forbid_logins(self, *, forbid: bool) -> None:
        """Create or remove /run/nologin, with which only root may log in."""
        with contextlib.suppress(OSError):  # it has ended, or its programs interfere
            if forbid:
                self.tree.write(_NOLOGIN, b"")
            else:
                self.tree.remove(_NOLOGIN)

    def admit_key(self, public_key: str, *, seconds: float) -> bool:
        """Accept a public key for a while; False before the SSH server is there.

        Raises:
            ValueError: It is no public key.
        """
        if self._ssh is None:
            return False
        self._ssh.admit(public_key, seconds=seconds)
        return True

    async def end_logins(self) -> None:
        """Take no new SSH connections and cut the open ones, as sshd at SIGTERM."""
        if self._last_stage is not None:
            self._last_stage.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._ssh is not None:
            self._ssh.end_logins()

    async def close(self) -> None:
        """Close the SSH server and the metadata service with all their connections; drop the namespaces."""
        if self._ssh is not None:
            await self._ssh.close()
        await self._metadata.close()
        await self.container.stop()
        self.listeners.close()

    def remove(self) -> None:
        """Remove the folder; the shared cache behind its link stays."""
        self.console()
        if not remove_root(self.root):
            log.warning("the folder of %s could not be removed", self.identity.instance_id)

    def _dns_names(self) -> list[str]:
        """Return the private name, and the public one where there is one."""
        properties = self.properties()
        return [properties[key] for key in ("local-hostname", "public-hostname") if properties.get(key)]

    def _hostname(self) -> str:
        return self._dns_names()[0].partition(".")[0]

    async def _write(self, work: Callable[[], _T]) -> _T:
        """Write files in a thread; a cancelled boot waits for it before the folder is removed."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        self._writing = task  # type: ignore[assignment]  # a future of anything; only its end matters
        return await asyncio.shield(task)

    def _create_folder(self) -> asyncssh.SSHKey:
        """Create the folder with the files of a fresh image; returns the host key."""
        self.tree.create()
        if self.image.is_dir():
            restore(self.image, self.root)
        for name in _FOLDERS:
            self.tree.make_folder(name)
        self._link_cache()
        for name in (".profile", ".bash_profile", ".bashrc"):
            self.tree.write(f"home/{name}", _PROFILE)
        host_key = self._write_host_key()
        self._write_authorized_keys()
        self._write_shims()
        self.tree.write("var/lib/apt-lock", str(int(time.time() + self.apt_lock_s)))
        self.tree.write(_LOG, "".join(f"{warning}\n" for warning in self._user_data.warnings))
        self.container.create_folders()
        self.container.write_hosts([hosts_line(self.listeners.host, self._dns_names())])
        self.container.give_folders()
        return host_key

    def _write_host_key(self) -> asyncssh.SSHKey:
        """Write a new key of the SSH server, as cloud-init: an image's keys do not outlive it.

        Where the image's instance had removed keys of the machine, overlayfs has left devices in their place.
        """
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        for old in fnmatch.filter(self.tree.names("etc/ssh"), "ssh_host_*_key*"):
            self.tree.remove(f"etc/ssh/{old}")
        path = "etc/ssh/ssh_host_ed25519_key"
        self.tree.write(path, host_key.export_private_key("openssh"), mode=0o600)
        self.tree.write(f"{path}.pub", host_key.export_public_key("openssh"))
        return host_key

    def _write_authorized_keys(self) -> None:
        """Add the launch's keys to those of the image, as cloud-init does."""
        for home, keys in (("home", self._authorized_keys()), ("root", self._root_keys())):
            path, kept = f"{home}/.ssh/authorized_keys", b""
            with contextlib.suppress(OSError):  # the image has none that can be read
                kept = self.tree.read(path)
            self.tree.write(path, kept + "".join(f"{key}\n" for key in keys).encode(), mode=0o600)

    def _link_cache(self) -> None:
        """Show the shared cache as the instance's own; without one, keep what its image has."""
        own = "home/.cache"
        if self.cache == self.root / own:
            self.tree.make_folder(own)
        else:
            self.tree.link(own, str(self.cache))

    def _authorized_keys(self) -> tuple[str, ...]:
        key_pair = (self.identity.public_key,) if self.identity.public_key else ()
        return (*self._user_data.authorized_keys, *key_pair)

    def _root_keys(self) -> tuple[str, ...]:
        return tuple(root_key(key, self._user) for key in self._authorized_keys())

    def _write_shims(self) -> None:
        address = (self.listeners.host, self.listeners.metadata_port)
        write_shims(
            self.tree,
            interpreter=self.interpreter,
            address=address,
            secret=self._secret,
            owner=self.container.owner,
        )

    async def _write_files(self) -> None:
        """Write the files of the user data as the instance's own program: it sees its own folders."""
        if self._user_data.files:
            request = describe_files(self._user_data.files, self.container.base)
            await self._log_program([self.interpreter, "-I", "-S", "-c", WRITE_FILES], content=request)

    async def _run(self, name: str, commands: tuple[str, ...]) -> int:
        """Run commands as one shell script, as cloud-init does: a failing one does not stop the next."""
        if not commands:
            return 0
        script = self._write_script(name, "\n".join(commands).encode() + b"\n")
        return await self._log_program([shell_path(), str(script)])

    def _write_script(self, name: str, content: bytes) -> Path:
        self.tree.write(f"lib/{name}", content, mode=0o755)
        return self.root / "lib" / name

    async def _run_last_stage(self) -> None:
        """Run cloud-init's last stage, and store its result for `cloud-init status`.

        Source: cloud-init, config/cloud.cfg.tmpl: scripts-per-boot comes before scripts-user.
        """
        user_data = self._user_data
        status = 0
        try:
            status = await self._run_per_boot()
            status = await self._run("runcmd", user_data.run_commands) or status
            if user_data.script:
                script = self._write_script("user-data", user_data.script)
                status = await self._log_program([str(script)]) or status
        except OSError as error:
            log.warning("user data of %s could not be run: %s", self.identity.instance_id, error)
            status = 1
        result = "error" if status or user_data.warnings else "done"
        self.tree.write("lib/cloud-init-result", result)

    async def _run_machine(self) -> None:
        """Run the virtual machine, which answers at the instance's SSH address, until it powers off."""
        self.listeners.ssh.close()
        addresses = {
            "SSH_ADDRESS": f"{self.listeners.host}:{self.listeners.ssh_port}",
            "METADATA_ADDRESS": f"{self.listeners.host} {self.listeners.metadata_port}",
            # cloud-init configures the interface that the metadata names.
            "MAC_ADDRESS": self.properties()["mac"],
        }
        await self._log_program([shell_path(), "-c", self.machine], addresses)
        self.power("0")

    async def _run_per_boot(self) -> int:
        """Run the executable files of the folder by name; return the status of the last that failed, or 0."""
        status = 0
        for name in self.tree.names(_PER_BOOT):
            if self._is_program(f"{_PER_BOOT}/{name}"):
                status = await self._log_program([str(self.root / _PER_BOOT / name)]) or status
        return status

    def _is_program(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            mode = self.tree.state(path).st_mode
            return stat.S_ISREG(mode) and bool(mode & 0o111)
        return False

    async def _log_program(
        self, argv: list[str], variables: Mapping[str, str] = MappingProxyType({}), content: bytes = b""
    ) -> int:
        """Run a program of the boot, which appends its output to the log itself; returns its exit status."""
        env = {**self._env, "INSTANCE_ID": self.identity.instance_id, **variables}
        command = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(self.root / _LOG), *argv]
        process = await self.container.spawn(command, env=env, stdin=subprocess.PIPE)
        await process.communicate(content)
        return await process.wait()

    def _documents(self) -> dict[str, str]:
        """Return the documents of the metadata service by path."""
        values = {**self.properties(), **self.iam(), **self.notices.documents()}
        documents = {f"latest/meta-data/{name}": value for name, value in values.items()}
        documents["latest/dynamic/instance-identity/document"] = json.dumps(
            self.identity.document(self.listeners.host), indent=2
        )
        if self.identity.user_data:
            documents["latest/user-data"] = self.identity.user_data.decode(errors="replace")
        return documents
