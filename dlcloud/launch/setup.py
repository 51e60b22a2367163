"""Prepare an instance for a workload: the recipe's commands, then the environment of its pinned packages."""

import hashlib
import json

from dlcloud.core.errors import RemoteCommandError
from dlcloud.core.events import Emit, Notice, stage
from dlcloud.core.ports import Clock
from dlcloud.core.recipe import Setup
from dlcloud.core.remote import Connection
from dlcloud.resources.texts import template

FOLDER = "dlcloud"
"""Where dlcloud's files lie on an instance, below the home of its user."""

JOB = f"{FOLDER}/job.py"


def prepare(connection: Connection, setup: Setup, requirements: str, *, clock: Clock, emit: Emit) -> str:
    """Set one instance up.

    Args:
        connection: To the instance.
        setup: The recipe's commands.
        requirements: Pinned packages, a line each; the environment is keyed by their digest, and reused.
        clock: Times the stages.
        emit: Is told of each stage.

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
            connection.send_bytes(setup.commands.encode(), f"{FOLDER}/setup.sh")
            connection.check(f"sh -e {FOLDER}/setup.sh >{FOLDER}/setup.log")
    if not packages_of(requirements):
        return "python3"
    key = environment_key(requirements)
    with stage(emit, clock, "building the environment, or finding it built", instance_id=instance_id):
        told = connection.check(f"python3 {FOLDER}/environment.py {key}", stdin=requirements.encode())
    try:
        answer = json.loads(told.splitlines()[-1])
        python = str(answer["python"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RemoteCommandError(
            f"{instance_id}: environment.py gave no answer but {told[-200:]!r}"
        ) from error
    if answer.get("reused"):
        emit(Notice(message=f"environment {key} was built before and is used again", instance_id=instance_id))
    return python


def environment_key(requirements: str) -> str:
    """Return the digest by which an environment is known: of its packages, not of comments or their order."""
    return hashlib.sha256("\n".join(packages_of(requirements)).encode()).hexdigest()[:16]


def packages_of(requirements: str) -> list[str]:
    """Return the packages that requirements name, sorted, without comments."""
    lines = (line.split("#")[0].strip() for line in requirements.splitlines())
    return sorted(filter(None, lines))
