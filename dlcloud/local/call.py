"""An API call as far as the layer before moto looks into it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

_TAG = re.compile(r"TagSpecification\.(\d+)\.Tag\.(\d+)\.(Key|Value)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One API call; `access_key` and `session_token` say whose it claims to be."""

    service: str
    region: str
    action: str
    body: bytes
    parameters: tuple[tuple[str, str], ...]
    is_json: bool
    access_key: str = ""
    session_token: str = ""

    def parameter(self, name: str) -> str:
        """Return a form parameter, or an empty text."""
        return next((value for key, value in self.parameters if key == name), "")

    def created_tags(self) -> dict[str, dict[str, str]]:
        """Return the tags that the call asks for what it creates, by the kind of resource."""
        found: dict[str, dict[str, str]] = {}
        for number, tags in _paired(_TAG, self.parameters).items():
            kind = self.parameter(f"TagSpecification.{number}.ResourceType")
            found.setdefault(kind, {}).update(tags)
        return found

    def tags(self) -> dict[str, str]:
        """Return the tags that a call of CreateTags gives."""
        pairs = ((f"TagSpecification.0.{name}", value) for name, value in self.parameters)
        return _paired(_TAG, pairs).get("0", {})


def read_call(environ: dict[str, Any]) -> Call:
    """Read a WSGI request; its body can be read again afterwards."""
    body = environ["wsgi.input"].read()
    environ["wsgi.input"] = BytesIO(body)
    access_key, region, service = _credential(environ.get("HTTP_AUTHORIZATION", ""))
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    pairs: list[tuple[str, str]] = []
    if not target:
        pairs = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        pairs += parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True)
    action = target.rpartition(".")[2] or next((value for name, value in pairs if name == "Action"), "")
    return Call(
        service=service,
        region=region,
        action=action,
        body=body,
        parameters=tuple(pairs),
        is_json=bool(target),
        access_key=access_key,
        session_token=environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""),
    )


def _credential(authorization: str) -> tuple[str, str, str]:
    """Return access key, region and service out of a version 4 signature, which nobody checks."""
    _, _, rest = authorization.partition("Credential=")
    parts = rest.partition(",")[0].split("/")
    return (parts[0], parts[2], parts[3]) if len(parts) == 5 else ("", "", "")  # noqa: PLR2004 - key/date/region/service/aws4_request


def _paired(pattern: re.Pattern[str], parameters: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Join the keys and the values of tags, by the number of their specification."""
    halves: dict[tuple[str, str], dict[str, str]] = {}
    for name, text in parameters:
        if match := pattern.fullmatch(name):
            halves.setdefault((match[1], match[2]), {})[match[3]] = text
    found: dict[str, dict[str, str]] = {}
    for (number, _), pair in halves.items():
        found.setdefault(number, {})[pair.get("Key", "")] = pair.get("Value", "")
    return found
