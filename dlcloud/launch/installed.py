"""Put dlcloud itself on an instance, as it is here, so that the instance can run its commands."""

import shlex
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import dlcloud
from dlcloud.core.events import Emit, stage
from dlcloud.core.protocols import Clock
from dlcloud.core.recipe import Setup
from dlcloud.core.remote import Connection
from dlcloud.launch.setup import FOLDER, prepare
from dlcloud.resources.texts import outside_package

CONTROL = f"{FOLDER}/control"
"""Where an instance keeps what it controls its cluster with, below its user's home."""

COMMAND = f"{CONTROL}/dlcloud"
"""Runs any command of dlcloud there, on the home that was handed over."""

PACKAGE = Path(dlcloud.__file__).parent
OLDEST_PYTHON = "3.11.4"
"""As `requires-python` in pyproject.toml says."""

RUNTIME = ("boto3", "click", "paramiko", "pydantic", "pyyaml", "rich", "tabulate")
"""As `dependencies` in pyproject.toml says."""

_START = 'import sys; sys.argv[0] = "dlcloud"; from dlcloud.cli.main import main; main()'


def install(connection: Connection, variables: Mapping[str, str], *, clock: Clock, emit: Emit) -> str:
    """Install this very dlcloud; what was installed before is replaced.

    Args:
        connection: To the instance.
        variables: What its environment is to hold besides.
        clock: Times the stages.
        emit: Is told of each.

    Returns:
        The absolute path of CONTROL on the instance.

    Raises:
        RemoteCommandError: The instance could not take it.
    """
    python = prepare(connection, Setup(), requirements(), clock=clock, emit=emit, least=OLDEST_PYTHON)
    with stage(emit, clock, "sending dlcloud itself", instance_id=connection.endpoint.instance_id):
        # Whoever else may log in there must not read the cluster's key.
        made = connection.check(f"mkdir -p {CONTROL} && chmod 700 {CONTROL} && cd {CONTROL} && pwd")
        folder = made.decode().strip()
        connection.send_tree(PACKAGE, f"{CONTROL}/app/dlcloud")
        for name, texts in outside_package().items():
            connection.send_tree(texts, f"{CONTROL}/app/dlcloud/resources/{name}")
        connection.send_bytes(_script(python, folder, variables).encode(), COMMAND, mode=0o700)
    return folder


def requirements() -> str:
    """Return the packages that dlcloud needs, in the versions that it runs with here."""
    return "\n".join(f"{name}=={version(name)}" for name in RUNTIME)


def _script(python: str, folder: str, variables: Mapping[str, str]) -> str:
    known = {"DLCLOUD_HOME": f"{folder}/home", "PYTHONPATH": f"{folder}/app", **variables}
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in known.items())
    # -P: the folder that it is called in, which may have a `dlcloud` of its own, is no place to import from.
    return f'#!/bin/sh\nexport {exports}\nexec {shlex.quote(python)} -P -c {shlex.quote(_START)} "$@"\n'
