"""Decode EC2's denials where their plain text does not say what is missing."""

import logging
from collections.abc import Iterator
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from dlcloud.model.denials import ENCODED, read_decoded, read_denial

log = logging.getLogger(__name__)


class Services(Protocol):
    """The clients of a region, by service."""

    def get(self, service: str) -> Any:  # noqa: ANN401  boto3 has no types
        """Return a client."""


def decode_denials(clients: Services, parsed: dict[str, Any]) -> None:
    """Replace the encoded messages of an answer, of its pools too, by what they say."""
    for error, key in _errors(parsed):
        plain, mark, encoded = str(error.get(key, "")).partition(ENCODED)
        if mark:
            text = "" if read_denial(plain) else decode(clients, encoded.strip())
            error[key] = text or plain.strip()


def decode(clients: Services, encoded: str) -> str:
    """Return an encoded message in AWS's words; empty where the caller may not decode it."""
    try:
        answer = clients.get("sts").decode_authorization_message(EncodedMessage=encoded)
        return read_decoded(answer["DecodedMessage"])
    except (ClientError, BotoCoreError, ValueError, KeyError) as error:
        log.info("a denial was not decoded: %s", error)
        return ""


def _errors(parsed: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(parsed.get("Error"), dict):
        yield parsed["Error"], "Message"
    for error in parsed.get("Errors") or ():
        if isinstance(error, dict):
            yield error, "ErrorMessage"
