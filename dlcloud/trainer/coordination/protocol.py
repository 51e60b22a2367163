"""The messages between workers and lighthouse, checked as if any other program had sent them.

`quorum_server.py` describes them. A message that is not as described ends its connection, and nothing of it
is used.
"""

import json
from typing import Any

from .quorum import Ask, Attendant, Peer, Quorum

LONGEST_LINE = 16 << 20
LONGEST_NAME = 300
MOST_MEMBERS = 4096
LONGEST_RECORD = 64 << 10
LARGEST = 1 << 53
"""Of a number: what JSON keeps exactly."""


class ProtocolError(ValueError):
    """A message is not as described."""


class OtherRunError(ProtocolError):
    """A message belongs to another run."""


def parse_line(line: bytes) -> dict[str, Any]:
    """Read a message.

    Raises:
        ProtocolError: It is too long, cut off, or no JSON object.
    """
    if len(line) > LONGEST_LINE or not line.endswith(b"\n"):
        raise ProtocolError("a message that is too long, or was cut off")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message that is no JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("a message that is no JSON object")
    return message


def parse_hello(message: dict[str, Any]) -> Attendant:
    """Read the first message of a worker; raises as `parse_line` does."""
    hello = message.get("hello")
    if not isinstance(hello, dict):
        raise ProtocolError("no hello")
    return Attendant(
        id=_name(hello, "id"),
        host=_name(hello, "host"),
        store=_port(hello, "store"),
        state=_port(hello, "state"),
    )


def parse_ask(message: dict[str, Any]) -> tuple[Ask, list[str]]:
    """Read a request for the next step, and its records; raises as `parse_line` does."""
    values = message.get("ask")
    if not isinstance(values, dict):
        raise ProtocolError("an ask that is no JSON object")
    ask = Ask(
        number=_whole(values, "number"),
        step=_whole(values, "step"),
        group=_whole(values, "group"),
        quorum=_whole(values, "quorum"),
        before=_names(values, "before"),
        unreachable=_names(values, "unreachable"),
    )
    records = message.get("records", [])
    if not isinstance(records, list) or not all(isinstance(line, str) for line in records):
        raise ProtocolError("records that are no texts")
    return ask, records


def parse_quorum(message: dict[str, Any], *, own: str, run: str) -> tuple[int, Quorum, tuple[Peer, ...], int]:
    """Read the lighthouse's answer to a worker.

    Args:
        message: With a key `quorum`.
        own: Id of the worker, which must be a member.
        run: Name of its run.

    Returns:
        The number of the request, the quorum, its members, and how many steps are recorded.

    Raises:
        ProtocolError: It is not as described.
        OtherRunError: It is of another run.
    """
    if message.get("run", run) != run:
        raise OtherRunError(f"answers for run {str(message['run'])[:LONGEST_NAME]!r}, not {run}")
    values = message.get("members")
    if not isinstance(values, list) or not 0 < len(values) <= MOST_MEMBERS:
        raise ProtocolError("a quorum without members")
    peers = tuple(_peer(value) for value in values)
    ids = [peer.id for peer in peers]
    if len(set(ids)) < len(ids) or own not in ids:
        raise ProtocolError("a quorum that this worker is not in, or another one twice")
    recorded = _whole(message, "recorded")
    if recorded > max(peer.step for peer in peers):
        raise ProtocolError("a record of steps that no worker has taken")
    number = _whole(message, "quorum")
    return _whole(message, "ask"), Quorum(number, tuple(ids)), peers, recorded


def parse_number(message: dict[str, Any], name: str) -> int:
    """Return a whole number of a message, 0 where it is missing; raises as `parse_line` does."""
    return _whole(message, name) if name in message else 0


def parse_text(message: dict[str, Any], name: str) -> str:
    """Return a text of a message, empty where it is missing; raises as `parse_line` does."""
    value = message.get(name, "")
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is no text")
    return "".join(letter if letter.isprintable() else "?" for letter in value[:LONGEST_NAME])


def parse_record(line: str, *, run: str, most: int) -> dict[str, Any] | None:
    """Return the record of a step if a line is one: of this run, and of no step after `most`."""
    if len(line) > LONGEST_RECORD or "\n" in line:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("record") != "step":
        return None
    step, lineage = record.get("step"), record.get("lineage")
    is_of_run = not run or record.get("run", run) == run
    is_whole = type(step) is int and 0 < step <= most and (lineage is None or type(lineage) is int)
    return record if is_of_run and is_whole else None


def _peer(value: Any) -> Peer:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(value, dict):
        raise ProtocolError("a member that is no JSON object")
    return Peer(
        id=_name(value, "id"),
        host=_name(value, "host"),
        store=_port(value, "store"),
        state=_port(value, "state"),
        step=_whole(value, "step"),
    )


def _whole(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise ProtocolError(f"{name} is no whole number of at least 0")
    return value


def _port(values: dict[str, Any], name: str) -> int:
    value = _whole(values, name)
    if value >= 1 << 16:
        raise ProtocolError(f"{name} is no port")
    return value


def _name(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_NAME:
        raise ProtocolError(f"{name} is no name")
    return value


def _names(values: dict[str, Any], name: str) -> tuple[str, ...]:
    listed = values.get(name, [])
    if not isinstance(listed, list) or len(listed) > MOST_MEMBERS:
        raise ProtocolError(f"{name} is no list of names")
    return tuple(_name({name: value}, name) for value in listed)
