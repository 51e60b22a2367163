"""Probe the hardware of an instance, before anything is installed on it."""

import shlex

from dlcloud.launch.setup import FOLDER
from dlcloud.model.errors import RemoteCommandError
from dlcloud.model.hardware import hardware_of
from dlcloud.model.remote import Connection
from dlcloud.model.untrusted import parse_json
from dlcloud.planning.fit import Machine, machine_of_probe
from dlcloud.runs.program import RunProgram, is_sent

PROBE = f"{FOLDER}/probe"


def probe_machine(connection: Connection, program: RunProgram, *, instance_type: str) -> Machine:
    """Return the machine that an instance reports.

    Args:
        connection: Connection to the instance.
        program: Any bundled program; they are sent together.
        instance_type: Its type, for messages.

    Raises:
        RemoteCommandError: Its report cannot be read.
    """
    instance_id = connection.endpoint.instance_id
    connection.send_tree(program.package, f"{PROBE}/benchmarks", only=is_sent)
    report = connection.check(f"cd {shlex.quote(PROBE)} && python3 -m benchmarks.harness.hardware")
    try:
        hardware = hardware_of({"hardware": parse_json(report.decode("utf-8", "replace"))})
    except (ValueError, AttributeError, TypeError) as error:
        raise RemoteCommandError(f"{instance_id}: bad report of its hardware: {report[-200:]!r}") from error
    return machine_of_probe(f"{instance_id} ({instance_type})", hardware)
