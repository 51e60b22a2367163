"""Copy an environment to an instance from another one of its cluster, which has it already."""

import json
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.model.clock import Clock
from dlcloud.model.errors import DlcloudError, RemoteCommandError
from dlcloud.model.events import Emit, Info, Warned, stage
from dlcloud.model.remote import Connection
from dlcloud.model.untrusted import number_or_none, parse_json
from dlcloud.resources.texts import template

MOST_PEERS = 2
"""So many are asked before the environment is built; each may take a while to fail."""
KEY_BYTES = 32
COPY_TIMEOUT_S = 900.0
MIB = 1 << 20

log = logging.getLogger(__name__)


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
