"""What moto answers differently from EC2 in every action, and how it is mended: one table of texts.

`refusals` has what EC2 refuses, `members` what it shows, `mended_responses` actions that answer otherwise.
"""

import re
import uuid
from collections.abc import Callable, Mapping

_NAMESPACE = b'xmlns="http://ec2.amazonaws.com/doc/2016-11-15"'
_REQUEST_ID = re.compile(rb"<(requestId|RequestID)>(?:request-id)?</")
_MISSING_KEY = re.compile(rb"The keypair '\{(.*?)\}' does not exist\.?")
_ERROR = re.compile(rb"<Response [^>]*>")
# Of an answer without a member: its element, the id of the request or not, and the end.
_EMPTY = re.compile(
    rb"(?P<begin><(?P<name>\w+Response)(?: [^>]*[^/>])?>)\s*"
    rb"(?P<id><requestId>[^<]*</requestId>)?\s*(?P<end></(?P=name)>)"
)


def _close_namespace(body: bytes) -> bytes:
    """Libcloud looks for elements by the namespace that EC2 has, which ends in a slash."""
    return body.replace(_NAMESPACE, _NAMESPACE[:-1] + b'/"', 1)


def _name_request(body: bytes) -> bytes:
    """Each request has an id of its own."""
    return _REQUEST_ID.sub(rb"<\1>" + str(uuid.uuid4()).encode() + b"</", body, count=1)


def _bare_error(body: bytes) -> bytes:
    """An error has no namespace."""
    return _ERROR.sub(b"<Response>", body, count=1)


def _return_true(body: bytes) -> bytes:
    """An action that answers nothing answers true, which Libcloud and Ansible read."""
    match = _EMPTY.search(body)
    if match is None:
        return body
    parts = (match["begin"], match["id"] or b"", b"<return>true</return>", match["end"])
    return body[: match.start()] + b"".join(parts) + body[match.end() :]


def _name_key_error(body: bytes) -> bytes:
    """ImportKeyPair has a code of its own for what is no key."""
    return body.replace(b"<Code>InvalidKeyPair.Format</Code>", b"<Code>InvalidKey.Format</Code>", 1)


def _name_missing_key(body: bytes) -> bytes:
    """A key pair that is missing is named without Python's braces."""
    return _MISSING_KEY.sub(rb"The key pair \1 does not exist", body, count=1)


MENDS: Mapping[str, Callable[[bytes], bytes]] = {
    "the namespace ends in a slash": _close_namespace,
    "errors have no namespace": _bare_error,
    "requestId is that of the request": _name_request,
    "an answer without members has return": _return_true,
    "a malformed key is InvalidKey.Format": _name_key_error,
    "a missing key pair is named": _name_missing_key,
}


def mend(body: bytes) -> bytes:
    """Return moto's answer to a call of EC2 as EC2 gives it."""
    for change in MENDS.values():
        body = change(body)
    return body
