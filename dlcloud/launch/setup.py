"""Prepare an instance for a workload: the recipe's commands, then the environment of its pinned packages.

`prepare` sends the programs that run on every instance, runs the recipe's commands once (an image of `dlcloud
image` has run them before), pulls the container image, and builds the environment, which is keyed by the
digest of its packages and used again. Where other instances of the cluster have the environment, it is copied
from one of them: a build downloads up to 4 GB. `prepare_all` does so on several instances, and does nothing
on those that are set up in this way.

What must never happen: that one instance that fails stops the others, or that a package index that does not
answer is reported as a wrong recipe.
"""

import hashlib
import json
import logging
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dlcloud.model.clock import Clock
from dlcloud.model.errors import DlcloudError, RemoteCommandError
from dlcloud.model.events import Emit, Info, Warned, stage
from dlcloud.model.job_environment import NAMES_VARIABLE, JobEnvironment
from dlcloud.model.remote import Connection
from dlcloud.model.untrusted import number_or_none, parse_json, printable
from dlcloud.resources.texts import template
from dlcloud.system.parallel import fan_out

if TYPE_CHECKING:  # pydantic, which `logs` and `ssh` never need
    from dlcloud.launch.managed import ManagedCluster
    from dlcloud.recipe.workload import Setup

FOLDER = "dlcloud"
"""The folder of dlcloud's files on an instance, below the home of its user."""

JOB = f"python3 -I -S {FOLDER}/job.py"
"""The command that runs job.py, isolated from the image's packages, which also slow its start."""

APT = re.compile(r"\bapt(-get)?\s")
"""Set-up commands that use apt: `apt.sh` comes first."""

OLDEST_PYTHON = "3.11"
"""The oldest for which the packages of the bundled benchmarks and of the trainer have builds: NumPy 2.4's."""

IMAGE = f"{FOLDER}/image"
"""The file on instances of an image of `dlcloud image`: the digest of the commands that were run before."""

PREPARED = f"{FOLDER}/prepared"
"""The file on an instance with the digest of its last set-up by `prepare_all`."""

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's builds for CPUs, `2.13.0+cpu` of 2.13.0, which pip takes for the newer ones of the same version.

PyPI's builds for Linux, those for aarch64 too, bring CUDA's libraries, 4 GB. Source: pytorch.org, "Start
Locally"; metadata of torch 2.13.0 on PyPI, read 2026-11.
"""

CONTAINER_PROGRAM = "dlcloud/container.py"
RUN_CONTAINER = f'python3 -I -S "$HOME/{CONTAINER_PROGRAM}"'
NO_NAMES = "-"
MISSING = re.compile(
    r"No matching distribution found for (\S+)|no version of (\S+?),? |[Bb]ecause (\S+) was not found"
)
"""How pip and uv name what an index does not have. Source: pip 25.3, uv 0.9."""

_NO_INDEX = re.compile(
    r"connection broken by|Failed to establish a new connection|Failed to fetch|[Cc]ould not connect|"
    r"dns error"
)
_NEEDS_PYTHON = r"(?<![\w.]){version} Requires-Python ([^;\n]+)"
_CONFLICT = re.compile(r"Cannot install (.+?) because these package versions have conflicting dependencies")
_NOISE = re.compile(r"^(WARNING: Retrying|ERROR: Ignored the following|\[notice\]|\s*$)|\(from versions:")
_SHOW_SETUP = f"{{ status=$?; tail -n 20 {FOLDER}/setup.log >&2; exit $status; }}"
MOST_PEERS = 2
"""This many are asked before the environment is built; each may take a while to fail."""

KEY_BYTES = 32
COPY_TIMEOUT_S = 900.0
MIB = 1 << 20
COMPILED = "llama-cpp-python=="
log = logging.getLogger(__name__)


def prepare(
    connection: Connection,
    setup: "Setup",
    requirements: str,
    *,
    clock: Clock,
    emit: Emit,
    minimum_python: str = "",
    peers: "Sequence[EnvironmentPeer]" = (),
) -> str:
    """Set one instance up: the recipe's commands, then the environment.

    `requirements` are pinned packages, a line each; the environment is keyed by their digest, and reused.
    `minimum_python` is a version (`3.11`), where the image's own may be too old. Where there are `peers`,
    the environment is copied from one of them, and built from the package index only if none gives it.

    Returns:
        The path of the environment's Python interpreter on the instance.

    Raises:
        RemoteCommandError: A command failed; the message carries the end of what it printed.
    """
    instance_id = connection.endpoint.instance_id
    connection.send_contents(_programs(), FOLDER)
    if setup.commands.strip() and _ran_in_image(connection, setup):
        message = "the set-up commands were run when its image was made, and are not repeated"
        emit(Info(message=message, instance_id=instance_id))
    elif setup.commands.strip():
        _run_commands(connection, setup, clock=clock, emit=emit)
    if setup.image:
        pull_image(connection, setup.image, clock=clock, emit=emit)
    if not packages_of(requirements):
        return "python3"
    key = environment_key(requirements)
    program, name = f"python3 {FOLDER}/environment.py", f"{key} {minimum_python}".rstrip()
    if peers:
        find = f"{program} --find {name}"
        copy_environment(connection, find, peers, folder=FOLDER, clock=clock, emit=emit)
    slow = ": llama.cpp is compiled, in five to ten minutes" if COMPILED in requirements else ""
    with stage(emit, clock, f"building the environment, or finding it built{slow}", instance_id=instance_id):
        build = f"{program} {name}"
        if setup.image:
            build = in_container(build, setup.image, name=f"dlcloud-{key}")
        try:
            output = connection.check(build, stdin=requirements.encode())
        except RemoteCommandError as error:
            raise name_failure(error, instance_id) from error
    answer = read_answer(connection, output)
    if "python" not in answer:
        raise RemoteCommandError(f"{instance_id}: environment.py named no Python, but answered {answer}")
    if answer.get("reused"):
        emit(Info(message=f"environment {key} was built before and is used again", instance_id=instance_id))
    return str(answer["python"])


def prepare_all(
    connections: Mapping[str, Connection],
    setup: "Setup",
    requirements: Callable[[str], str],
    *,
    clock: Clock,
    emit: Emit,
) -> dict[str, DlcloudError]:
    """Set up, in parallel, the instances that are not set up in this way; the others continue undisturbed.

    Args:
        connections: Of the instances, by id.
        setup: The recipe's.
        requirements: Returns the packages of an instance by its id.
        clock: Dates events.
        emit: Takes them.

    Returns:
        The errors of those that failed, by instance id.
    """
    outcomes = fan_out(
        lambda name: _prepare_once(connections[name], setup, requirements(name), clock=clock, emit=emit),
        list(connections),
        width=None,
    )
    return {outcome.item: outcome.error for outcome in outcomes if outcome.error is not None}


@cache
def _programs() -> Mapping[str, bytes]:
    """Return what is run on every instance."""
    names = ("environment.py", "job.py", "apt.sh", "peer.py")
    masking = files("dlcloud.trainer").joinpath("masking.py").read_bytes()
    return MappingProxyType({"masking.py": masking} | {name: template(name).encode() for name in names})


def _run_commands(connection: Connection, setup: "Setup", *, clock: Clock, emit: Emit) -> None:
    instance_id = connection.endpoint.instance_id
    if APT.search(setup.commands):
        message = "waiting for cloud-init and for apt's locks, 20 minutes at most"
        with stage(emit, clock, message, instance_id=instance_id):
            connection.check(f"sh {FOLDER}/apt.sh >{FOLDER}/apt.log")
    with stage(emit, clock, "running the recipe's set-up commands", instance_id=instance_id):
        connection.send_bytes(setup.commands.encode(), f"{FOLDER}/setup.sh")
        done = connection.run(f"sh -e {FOLDER}/setup.sh >{FOLDER}/setup.log 2>&1 || {_SHOW_SETUP}")
    if done.exit_status:
        output = printable(done.stderr.decode(errors="replace").strip())
        message = f"{instance_id}: setup.commands ended with status {done.exit_status}"
        hint = f"up --keep keeps the instance: dlcloud exec NAME -- cat {FOLDER}/setup.log"
        raise RemoteCommandError(f"{message}:\n{output}" if output else message, hint)


def _ran_in_image(connection: Connection, setup: "Setup") -> bool:
    return connection.run(f"cat {IMAGE}").stdout.decode(errors="replace") == commands_digest(setup)


def _prepare_once(
    connection: Connection, setup: "Setup", requirements: str, *, clock: Clock, emit: Emit
) -> None:
    """Set one instance up, and store the digest of the set-up there, for the next command."""
    image = [setup.image] if setup.image else []
    content = json.dumps([setup.commands, packages_of(requirements), *image])
    digest = hashlib.sha256(content.encode()).hexdigest()
    earlier = connection.run(f"cat {PREPARED}").stdout.decode(errors="replace").strip()
    if earlier == digest:
        return
    prepare(connection, setup, requirements, clock=clock, emit=emit)
    connection.send_bytes(digest.encode(), PREPARED)


def commands_digest(setup: "Setup") -> str:
    """Return the digest that names the set-up commands, for an image that was made after them."""
    return hashlib.sha256(setup.commands.encode()).hexdigest()


def environment_key(requirements: str) -> str:
    """Return the digest that names an environment: of its packages, not of comments or their order."""
    return hashlib.sha256("\n".join(packages_of(requirements)).encode()).hexdigest()[:16]


def packages_of(requirements: str) -> list[str]:
    """Return the packages of a requirements text, sorted, without comments."""
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in requirements.splitlines())
    return sorted(filter(None, lines))


def requirements_on(managed: "ManagedCluster", instance_type: str, requirements: str) -> str:
    """Return the requirements for a type: PyTorch without CUDA where the type has no GPU.

    A rehearsal installs what this machine's pip is configured for, whatever the type. Where the hardware of
    the type is not known, PyPI's build serves.
    """
    if managed.cluster.cloud == "local":
        return requirements
    if not any(re.match(r"torch|[^#]*\btorch\b", package) for package in packages_of(requirements)):
        return requirements
    hardware = managed.cloud.types.hardware([instance_type]).get(instance_type)
    if hardware is None or hardware.gpu is not None:
        return requirements
    return f"--extra-index-url {CPU_INDEX}\n{requirements}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPeer:
    """An instance that may have the environment: its address for the others, and how to connect to it."""

    instance_id: str
    host: str
    connect: Callable[[], Connection]


def copy_environment(
    connection: Connection,
    find: str,
    peers: Sequence[EnvironmentPeer],
    *,
    folder: str,
    clock: Clock,
    emit: Emit,
    thing: str = "the environment",
    otherwise: str = "it is built from the package index",
) -> bool:
    """Copy an environment that an instance lacks from the first peer that gives it; warn if none does.

    `find` is the command there that looks for the environment (environment.py), `folder` that of dlcloud's
    files on all instances. The best peers come first; their ports are open to their cluster only. `thing` is
    what it is called, `otherwise` what happens where no peer gives it.

    Returns:
        True if the instance has it.

    Raises:
        UnreachableError, RemoteCommandError: The instance itself does not answer as it should.
    """
    environment = read_answer(connection, connection.check(find))
    if environment.get("complete") or not peers:
        return bool(environment.get("complete"))
    name = connection.endpoint.instance_id
    failures = []
    with stage(emit, clock, f"copying {thing} from another instance", instance_id=name):
        connection.send_bytes(template("peer.py").encode(), f"{folder}/peer.py")
        for peer in peers[:MOST_PEERS]:
            try:
                copied = _copy(connection, peer, f"python3 -I -S {folder}/peer.py", environment, folder)
            except DlcloudError as error:
                log.warning("%s: %s not from %s: %s", name, thing, peer.instance_id, error.message)
                failures.append(f"{peer.instance_id} does not give {thing} ({error.message})")
                continue
            size, seconds = copied["bytes"] / MIB, copied["seconds"]
            message = f"has {thing} of {peer.instance_id}: {size:.0f} MiB in {seconds:.1f} s"
            emit(Info(message=message, instance_id=name))
            return True
    emit(Warned(message=f"{'; '.join(failures)}: {otherwise}", instance_id=name))
    return False


def _copy(
    connection: Connection, peer: EnvironmentPeer, program: str, environment: dict[str, Any], folder: str
) -> dict[str, Any]:
    """Let a peer offer the environment, and the instance fetch it; the key goes over SSH, to both.

    Raises:
        RemoteCommandError: One of them answers nothing of the kind.
    """
    source = peer.connect()
    source.send_bytes(template("peer.py").encode(), f"{folder}/peer.py")
    place = {"folder": environment["folder"]} if "folder" in environment else {}
    order = {**place, "name": environment.get("name"), "key": secrets.token_hex(KEY_BYTES), "host": peer.host}
    offer = json.dumps({**order, "system": environment.get("system")}).encode()
    port = read_answer(source, source.check(f"{program} serve", stdin=offer)).get("port")
    request = json.dumps({**order, "port": port}).encode()
    output = connection.check(f"{program} fetch", stdin=request, timeout_s=COPY_TIMEOUT_S)
    answer = read_answer(connection, output)
    if number_or_none(answer.get("bytes")) is None or number_or_none(answer.get("seconds")) is None:
        raise RemoteCommandError(f"{connection.endpoint.instance_id}: peer.py answered {answer}")
    return answer


def read_answer(connection: Connection, output: bytes) -> dict[str, Any]:
    """Return the JSON object in the last line of what one of dlcloud's programs printed.

    Raises:
        RemoteCommandError: There is none.
    """
    try:
        answer = parse_json(output.splitlines()[-1].decode("utf-8", "replace"))
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        name = connection.endpoint.instance_id
        raise RemoteCommandError(f"{name}: environment.py gave no answer but {output[-200:]!r}")
    return answer


def pull_image(connection: Connection, image: str, *, clock: Clock, emit: Emit) -> None:
    """Pull the image on an instance.

    Raises:
        RemoteCommandError: It has no podman or docker, or may not pull it; the message says which.
    """
    connection.send_bytes(template("container.py").encode(), CONTAINER_PROGRAM)
    with stage(emit, clock, f"pulling {image}", instance_id=connection.endpoint.instance_id):
        connection.check(f"{RUN_CONTAINER} pull {shlex.quote(image)}")


def in_container(command: str, image: str, *, name: str, environment: JobEnvironment | None = None) -> str:
    """Return the command that runs a command, one program with its arguments, in a container `name`."""
    names = [] if environment is None else [*environment.variables, *environment.secrets]
    names += [NAMES_VARIABLE] if environment is not None and environment.secrets else []
    words = shlex.join(["run", image, name, ",".join(names) or NO_NAMES])
    return f"{RUN_CONTAINER} {words} {command}"


def send_command(
    connection: Connection, folder: str, command: str, *, image: str, environment: JobEnvironment
) -> None:
    """Send the command of a run to its folder; with an image it runs in a container, which a stop ends."""
    for name, text in command_files(folder, command, image=image, environment=environment).items():
        connection.send_bytes(text.encode(), f"{folder}/{name}")


def command_files(folder: str, command: str, *, image: str, environment: JobEnvironment) -> dict[str, str]:
    """Return the files of a run's folder that start its command; the last one is `command`."""
    if not image:
        return {"command": command}
    name = "dlcloud-" + folder.rpartition("/")[2]
    outer = in_container("sh ../program", image, name=name, environment=environment)
    return {
        "program": command,
        "stop": f"exec {RUN_CONTAINER} stop {shlex.quote(name)}\n",
        "command": f"exec {outer}\n",
    }


def name_failure(error: RemoteCommandError, instance_id: str) -> RemoteCommandError:
    """Return the error of a build that failed, in one sentence where its cause is known.

    Args:
        error: Of the command, with the end of its output.
        instance_id: Where it ran.
    """
    command, _, output = error.message.partition("\n")
    if sentence := _sentence(output):
        text, hint = sentence
        return RemoteCommandError(f"{instance_id}: the environment was not built: {text}", hint)
    kept = [line for line in output.splitlines() if not _NOISE.search(line)]
    return RemoteCommandError("\n".join([command, *kept]), error.hint)


def _sentence(output: str) -> tuple[str, str] | None:
    """Return the cause and what to do; None if it is not known."""
    match = MISSING.search(" ".join(output.split()))
    name = next(filter(None, match.groups()), "").rstrip(".,;") if match else ""
    if _NO_INDEX.search(output):
        package = f" for {name}" if name else ""
        return (
            f"the package index does not answer{package}",
            "the instance needs a way to PyPI, or an own index",
        )
    if conflict := _CONFLICT.search(output):
        text = f"{conflict[1]} need versions of others that exclude each other"
        return text, "change setup.requirements"
    if not name:
        return None
    version = name.partition("==")[2]
    if version and (needed := re.search(_NEEDS_PYTHON.format(version=re.escape(version)), output)):
        return f"{name} needs Python {needed[1].strip()}", "choose a version for the instance's Python"
    return f"the package index has no {name}", "change setup.requirements"
