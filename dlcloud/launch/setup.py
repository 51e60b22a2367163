"""Prepare an instance for a workload: the recipe's commands, then the environment of its pinned packages."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlcloud.launch.build_failures import name_failure
from dlcloud.launch.container import in_container, pull_image
from dlcloud.launch.peers import EnvironmentPeer, copy_environment, read_answer
from dlcloud.model.clock import Clock
from dlcloud.model.errors import DlcloudError, RemoteCommandError
from dlcloud.model.events import Emit, Info, stage
from dlcloud.model.remote import Connection
from dlcloud.resources.texts import template
from dlcloud.system.parallel import fan_out

if TYPE_CHECKING:  # pydantic, which `logs` and `ssh` never need
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


def prepare(
    connection: Connection,
    setup: "Setup",
    requirements: str,
    *,
    clock: Clock,
    emit: Emit,
    minimum_python: str = "",
    peers: Sequence[EnvironmentPeer] = (),
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
    with stage(emit, clock, "building the environment, or finding it built", instance_id=instance_id):
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
        connection.check(f"sh -e {FOLDER}/setup.sh >{FOLDER}/setup.log")


def prepare_all(
    connections: Mapping[str, Connection],
    setup: "Setup",
    requirements: Callable[[str], str],
    *,
    clock: Clock,
    emit: Emit,
) -> dict[str, DlcloudError]:
    """Set up, in parallel, the instances that are not set up in this way; the others go on undisturbed.

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


def _ran_in_image(connection: Connection, setup: "Setup") -> bool:
    return connection.run(f"cat {IMAGE}").stdout.decode(errors="replace") == commands_digest(setup)


def environment_key(requirements: str) -> str:
    """Return the digest that names an environment: of its packages, not of comments or their order."""
    return hashlib.sha256("\n".join(packages_of(requirements)).encode()).hexdigest()[:16]


def packages_of(requirements: str) -> list[str]:
    """Return the packages of a requirements text, sorted, without comments."""
    lines = (line.split("#")[0].strip() for line in requirements.splitlines())
    return sorted(filter(None, lines))
