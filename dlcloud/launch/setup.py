"""Prepare an instance for a workload: the recipe's commands, then the environment of its pinned packages."""

import hashlib
import json
import re
from collections.abc import Mapping

from dlcloud.core.errors import DlcloudError, RemoteCommandError
from dlcloud.core.events import Emit, Notice, stage
from dlcloud.core.protocols import Clock
from dlcloud.core.recipe import Setup
from dlcloud.core.remote import Connection
from dlcloud.resources.texts import template
from dlcloud.system.parallel import fan_out

FOLDER = "dlcloud"
"""The folder of dlcloud's files on an instance, below the home of its user."""

JOB = f"python3 -I -S {FOLDER}/job.py"
"""The command that runs job.py, isolated from the image's packages, which also slow its start."""

APT = re.compile(r"\bapt(-get)?\s")
"""Set-up commands that use apt: `apt.sh` comes first."""

PREPARED = f"{FOLDER}/prepared"
"""The file on an instance with the digest of its last set-up by `prepare_all`."""


def prepare(
    connection: Connection,
    setup: Setup,
    requirements: str,
    *,
    clock: Clock,
    emit: Emit,
    minimum_python: str = "",
) -> str:
    """Set one instance up: the recipe's commands, then the environment.

    `requirements` are pinned packages, a line each; the environment is keyed by their digest, and reused.
    `minimum_python` is a version (`3.11.4`), where the image's own may be too old.

    Returns:
        The path of the environment's Python interpreter on the instance.

    Raises:
        RemoteCommandError: A command failed; the message carries the end of what it printed.
    """
    instance_id = connection.endpoint.instance_id
    for name in ("environment.py", "job.py"):
        connection.send_bytes(template(name).encode(), f"{FOLDER}/{name}")
    if setup.commands.strip():
        with stage(emit, clock, "running the recipe's set-up commands", instance_id=instance_id):
            if APT.search(setup.commands):
                connection.send_bytes(template("apt.sh").encode(), f"{FOLDER}/apt.sh")
                connection.check(f"sh {FOLDER}/apt.sh >{FOLDER}/apt.log")
            connection.send_bytes(setup.commands.encode(), f"{FOLDER}/setup.sh")
            connection.check(f"sh -e {FOLDER}/setup.sh >{FOLDER}/setup.log")
    if not packages_of(requirements):
        return "python3"
    key = environment_key(requirements)
    with stage(emit, clock, "building the environment, or finding it built", instance_id=instance_id):
        build = f"python3 {FOLDER}/environment.py {key} {minimum_python}".rstrip()
        output = connection.check(build, stdin=requirements.encode())
    try:
        answer = json.loads(output.splitlines()[-1])
        python = str(answer["python"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RemoteCommandError(
            f"{instance_id}: environment.py gave no answer but {output[-200:]!r}"
        ) from error
    if answer.get("reused"):
        emit(Notice(message=f"environment {key} was built before and is used again", instance_id=instance_id))
    return python


def prepare_all(
    connections: Mapping[str, Connection], setup: Setup, requirements: str, *, clock: Clock, emit: Emit
) -> dict[str, DlcloudError]:
    """Set up, all at once, the instances that are not set up in this way; the others go on undisturbed.

    Returns:
        The errors of those that failed, by instance id.
    """
    outcomes = fan_out(
        lambda name: _prepare_once(connections[name], setup, requirements, clock=clock, emit=emit),
        list(connections),
        width=max(1, len(connections)),
    )
    failed: dict[str, DlcloudError] = {}
    for outcome in outcomes:
        if isinstance(outcome.error, DlcloudError):
            failed[outcome.item] = outcome.error
        elif outcome.error is not None:
            raise outcome.error
    return failed


def _prepare_once(
    connection: Connection, setup: Setup, requirements: str, *, clock: Clock, emit: Emit
) -> None:
    """Set one instance up, and store the digest of the set-up there, for the next command."""
    content = json.dumps([setup.commands, packages_of(requirements)])
    digest = hashlib.sha256(content.encode()).hexdigest()
    earlier = connection.run(f"cat {PREPARED}").stdout.decode(errors="replace").strip()
    if earlier == digest:
        return
    prepare(connection, setup, requirements, clock=clock, emit=emit)
    connection.send_bytes(digest.encode(), PREPARED)


def environment_key(requirements: str) -> str:
    """Return the digest that names an environment: of its packages, not of comments or their order."""
    return hashlib.sha256("\n".join(packages_of(requirements)).encode()).hexdigest()[:16]


def packages_of(requirements: str) -> list[str]:
    """Return the packages of a requirements text, sorted, without comments."""
    lines = (line.split("#")[0].strip() for line in requirements.splitlines())
    return sorted(filter(None, lines))
