"""API calls and their replies, read once: what IAM judges is what is carried out.

The endpoint reads a request by `read_call`, verifies its signature, refuses it if it can be read in two
ways (`ambiguity`) or names more than it may (`limit_refusal`), and hands `judged_request` on: the action
and the parameters that were judged, and nothing else that the client sent.
"""

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape

_TAG = re.compile(r"TagSpecification\.(\d+)\.Tag\.(\d+)\.(Key|Value)")
_MEMBER_TAG = re.compile(r"Tags\.member\.(\d+)\.(Key|Value)")
QUERY_SERVICES = frozenset({"ec2", "iam", "sts"})
"""Services whose calls are parameters, in the query or in a form; those of the others are JSON."""
_KEPT = frozenset(
    {
        "HTTP_AUTHORIZATION",
        "HTTP_HOST",
        "HTTP_USER_AGENT",
        "HTTP_X_AMZ_DATE",
        "HTTP_X_AMZ_SECURITY_TOKEN",
        "HTTP_X_AMZ_TARGET",
    }
)
_CREDENTIAL_PARTS = 5  # key/date/region/service/aws4_request


_BATCH_ACTIONS = {
    f"/v1/{action.lower()}": action
    for action in (
        *("CreateComputeEnvironment", "DescribeComputeEnvironments", "UpdateComputeEnvironment"),
        *("DeleteComputeEnvironment", "CreateJobQueue", "DescribeJobQueues", "UpdateJobQueue"),
        *("DeleteJobQueue", "RegisterJobDefinition", "DescribeJobDefinitions", "DeregisterJobDefinition"),
        *("SubmitJob", "DescribeJobs", "ListJobs", "TerminateJob", "CancelJob"),
    )
}
"""The API of AWS Batch is REST: its paths name the actions. Source: botocore's model of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One API call; `access_key` and `session_token` are the caller's."""

    service: str
    region: str
    action: str
    body: bytes
    parameters: tuple[tuple[str, str], ...]
    is_json: bool
    access_key: str = ""
    session_token: str = ""

    @property
    def is_reading(self) -> bool:
        """True if the action changes nothing."""
        return self.action.startswith(("Describe", "Get", "List"))

    def parameter(self, name: str) -> str:
        """Return a form parameter, or an empty text."""
        return next((value for key, value in self.parameters if key == name), "")

    def created_tags(self) -> dict[str, dict[str, str]]:
        """Return the tags of the resources that the call creates, by the type of resource."""
        tags: dict[str, dict[str, str]] = {}
        for number, pairs in _tags_by_specification(self.parameters).items():
            resource_type = self.parameter(f"TagSpecification.{number}.ResourceType")
            tags.setdefault(resource_type, {}).update(pairs)
        return tags

    def tags(self) -> dict[str, str]:
        """Return the tags of a CreateTags call."""
        pairs = ((f"TagSpecification.0.{name}", value) for name, value in self.parameters)
        return _tags_by_specification(pairs).get("0", {})

    def member_tags(self) -> dict[str, str]:
        """Return the tags of a call of IAM that creates something."""
        pairs = (
            (f"TagSpecification.0.Tag.{match[1]}.{match[2]}", value)
            for name, value in self.parameters
            if (match := _MEMBER_TAG.fullmatch(name))
        )
        return _tags_by_specification(pairs).get("0", {})


NO_ANSWER = 0
"""The status of a reply that is not sent: its connection is closed instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole HTTP reply."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of a service: HTTP status, code and message."""

    code: str
    message: str
    status: int = 400

    def reply_to(self, call: Call) -> Reply:
        """Return the error in the form that clients of the call's service read."""
        if call.is_json:
            return json_reply(self.status, {"__type": self.code, "message": self.message})
        detail = f"<Code>{escape(self.code)}</Code><Message>{escape(self.message)}</Message>"
        if call.service == "ec2":
            request_id = f"<RequestID>{uuid.uuid4()}</RequestID>"
            text = f"<Response><Errors><Error>{detail}</Error></Errors>{request_id}</Response>"
        elif call.service == "s3":
            text = f"<Error>{detail}<RequestId>{uuid.uuid4()}</RequestId></Error>"
        else:
            text = f"<ErrorResponse><Error><Type>Sender</Type>{detail}</Error></ErrorResponse>"
        headers = (("Content-Type", "text/xml;charset=UTF-8"),)
        return Reply(status=self.status, headers=headers, body=text.encode())


def json_reply(status: int, content: Mapping[str, Any]) -> Reply:
    headers = (("Content-Type", "application/x-amz-json-1.1"),)
    return Reply(status=int(status), headers=headers, body=json.dumps(content).encode())


def read_call(environ: dict[str, Any]) -> Call:
    """Read a WSGI request; its body can be read again afterwards."""
    body = environ["wsgi.input"].read()
    environ["wsgi.input"] = BytesIO(body)
    access_key, region, service = _credential_scope(environ.get("HTTP_AUTHORIZATION", ""))
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    pairs: list[tuple[str, str]] = []
    if not target:
        pairs = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        pairs += parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True)
    action = target.rpartition(".")[2] or next((value for name, value in pairs if name == "Action"), "")
    is_rest = service == "batch"
    action = _BATCH_ACTIONS.get(environ.get("PATH_INFO", ""), "") if is_rest else action
    return Call(
        service=service,
        region=region,
        action=action,
        body=body,
        parameters=tuple(pairs),
        is_json=bool(target) or is_rest,
        access_key=access_key,
        session_token=environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""),
    )


def ambiguity(call: Call, environ: Mapping[str, Any]) -> str:
    """Return why a request could be read in two ways, or is in no way that is read here; else an empty text.

    IAM judges a call by its action and its parameters. What carries it out must find the same ones: a request
    has them in one place, and once each.
    """
    query, target = environ.get("QUERY_STRING", ""), environ.get("HTTP_X_AMZ_TARGET")
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    names = [name for name, _ in call.parameters]
    if environ.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
        return "The body must not be compressed."
    if kind == "multipart/form-data":
        return "The body must not be a multipart form."
    if call.service not in QUERY_SERVICES:
        is_post = environ["REQUEST_METHOD"] == "POST" and bool(target or call.service == "batch")
        is_plain = is_post and not query and _json_object(call.body) is not None
        return "" if is_plain else "The request must be a POST of a JSON object, without a query."
    if target or (query and call.body):
        return "The parameters must be in the query or in the body, without X-Amz-Target."
    return "" if len(names) == len(set(names)) else "A parameter must not be there twice."


def judged_request(call: Call, environ: Mapping[str, Any]) -> dict[str, Any]:
    """Return the WSGI request of a call: its parameters or its JSON, with no more of what the client sent."""
    kind, body = "application/x-www-form-urlencoded", urlencode(call.parameters).encode()
    if call.service not in QUERY_SERVICES:
        # moto looks for an action in every body: `&Action=` in a text of the JSON would be one.
        text = json.dumps(_json_object(call.body))
        kind, body = (
            "application/x-amz-json-1.1",
            text.replace("&", r"\u0026").replace("=", r"\u003d").encode(),
        )
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith("HTTP_")}
    return {
        **kept,
        "REQUEST_METHOD": "POST",
        "QUERY_STRING": "",
        "RAW_URI": environ["PATH_INFO"],
        "CONTENT_TYPE": kind,
        "HTTP_CONTENT_TYPE": kind,
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_LENGTH": str(len(body)),
        "wsgi.input": BytesIO(body),
    }


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _credential_scope(authorization: str) -> tuple[str, str, str]:
    """Return access key, region and service of a version 4 signature, without verifying it."""
    _, _, rest = authorization.partition("Credential=")
    parts = rest.partition(",")[0].split("/")
    return (parts[0], parts[2], parts[3]) if len(parts) == _CREDENTIAL_PARTS else ("", "", "")


def _tags_by_specification(parameters: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Join the keys and the values of tags, by the number of their specification."""
    halves: dict[tuple[str, str], dict[str, str]] = {}
    for name, text in parameters:
        if match := _TAG.fullmatch(name):
            halves.setdefault((match[1], match[2]), {})[match[3]] = text
    tags: dict[str, dict[str, str]] = {}
    for (number, _), pair in halves.items():
        tags.setdefault(number, {})[pair.get("Key", "")] = pair.get("Value", "")
    return tags


_MOST_IDS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "CreateTags": ("ResourceId.", 1000),
        "DeleteTags": ("ResourceId.", 1000),
        "DeleteFleets": ("FleetId.", 25),
        "DescribeInstances": ("InstanceId.", 1000),
        "DescribeInstanceStatus": ("InstanceId.", 100),
        "TerminateInstances": ("InstanceId.", 1000),
    }
)
"""The most ids by action, and the begin of their parameters. Source: EC2 API reference, of each action."""

_LAUNCHED_AT_ONCE = 1000
"""Source: EC2 developer guide, "Request throttling": RunInstances has a bucket of 1,000 resource tokens."""

_MOST_CAPACITY, _MOST_POOLS = 10_000, 300
"""Source: EC2 user guide, "Quotas for EC2 Fleet and Spot Fleet": target capacity, and pools, of a fleet."""

_POOL = ".InstanceType"


def limit_refusal(call: Call) -> Refusal | None:
    """Return the error of a request that names more than one may."""
    if call.service != "ec2":
        return None
    if call.action == "RunInstances":
        return _too_many_instances(call)
    if call.action == "CreateFleet":
        return _too_large_fleet(call)
    prefix, most = _MOST_IDS.get(call.action, ("", 0))
    count = sum(name.startswith(prefix) for name, _ in call.parameters) if prefix else 0
    if count <= most:
        return None
    message = f"{count} exceeds the maximum number of IDs that can be specified ({most})."
    return Refusal(code="InvalidRequest", message=message)


def _too_many_instances(call: Call) -> Refusal | None:
    if _number(call.parameter("MaxCount")) <= _LAUNCHED_AT_ONCE:
        return None
    message = "Request limit exceeded: it exceeds the resource throttling limit of ec2:RunInstances."
    return Refusal(code="RequestLimitExceeded", message=message, status=503)


def _too_large_fleet(call: Call) -> Refusal | None:
    capacity = _number(call.parameter("TargetCapacitySpecification.TotalTargetCapacity"))
    pools = sum(name.endswith(_POOL) for name, _ in call.parameters)
    if capacity <= _MOST_CAPACITY and pools <= _MOST_POOLS:
        return None
    message = f"A fleet has at most {_MOST_CAPACITY} instances, of {_MOST_POOLS} pools."
    return Refusal(code="InvalidParameterValue", message=message)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
