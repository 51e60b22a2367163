"""Look at what an instance really has, before anything is installed on it."""

import json
import shlex

from dlcloud.bench.program import Program, travels
from dlcloud.core.errors import RemoteCommandError
from dlcloud.core.fit import Machine, machine_of_probe
from dlcloud.core.remote import Connection
from dlcloud.core.result import hardware_of
from dlcloud.launch.setup import FOLDER

PROBE = f"{FOLDER}/probe"


def look(connection: Connection, program: Program, *, instance_type: str) -> Machine:
    """Return what an instance has, by its own account.

    Args:
        connection: To the instance.
        program: Any of the bundled ones; they travel together.
        instance_type: What it was launched as.

    Raises:
        RemoteCommandError: It did not tell.
    """
    instance_id = connection.endpoint.instance_id
    connection.send_tree(program.package, f"{PROBE}/benchmarks", only=travels)
    told = connection.check(f"cd {shlex.quote(PROBE)} && python3 -m benchmarks.harness.hardware")
    try:
        hardware = hardware_of({"hardware": json.loads(told)})
    except (ValueError, AttributeError, TypeError) as error:
        raise RemoteCommandError(f"{instance_id} did not tell what it has, but {told[-200:]!r}") from error
    return machine_of_probe(f"{instance_id} ({instance_type})", hardware)
