"""Probe the hardware of an instance, before anything is installed on it."""

import shlex

from dlcloud.bench.program import Program, is_sent
from dlcloud.core.errors import RemoteCommandError
from dlcloud.core.fit import Machine, machine_of_probe
from dlcloud.core.remote import Connection
from dlcloud.core.result import hardware_of
from dlcloud.core.untrusted import parse_json
from dlcloud.launch.setup import FOLDER

PROBE = f"{FOLDER}/probe"


def probe_machine(connection: Connection, program: Program, *, instance_type: str) -> Machine:
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
