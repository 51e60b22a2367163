"""What a call must be allowed to do: the actions, resources and tags that IAM would be asked about.

Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2", as far as
dlcloud goes; a resource that a call names is recognized by its id. Importing this imports moto.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends
from moto.ec2.utils import convert_tag_spec

from dlcloud.local.call import Call
from dlcloud.local.policy import Question

_KINDS = {
    "ami": "image",
    "eni": "network-interface",
    "fleet": "fleet",
    "i": "instance",
    "lt": "launch-template",
    "sg": "security-group",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
}
_ID = re.compile(rf"({'|'.join(_KINDS)})-[0-9a-f][0-9a-f-]+")
_READING = ("Describe", "Get", "List")
# These carry ids that IAM is not asked about.
_BESIDE = ("ClientToken", "Filter.", "IpPermissions.", "LaunchTemplateData.", "Tag", "UserData")
_LAUNCHED = ("instance", "volume", "network-interface")
_CREATED = {
    "CreateFleet": ("fleet",),
    "CreateLaunchTemplate": ("launch-template",),
    "CreateSecurityGroup": ("security-group",),
    "RunInstances": _LAUNCHED,
}
_IMPLIED = {"CreateSecurityGroup": ("vpc",), "RunInstances": ("subnet",)}


def questions(call: Call, account: str) -> list[Question]:
    """Return all that must be allowed for a call to be; never nothing."""
    changes = call.service == "ec2" and not call.action.startswith(_READING)
    found = list(_Asked(call, account).questions()) if changes else []
    action = f"{call.service}:{call.action}"
    return found or [Question(action=action, resource=each) for each in _resources_of_json(call) or ("*",)]


def _resources_of_json(call: Call) -> list[str]:
    """Return the parameters that a call of the parameter store names; none where it cannot be read."""
    if call.service != "ssm":
        return []
    try:
        asked = json.loads(call.body or b"{}")
        names = asked.get("Names") or [asked.get("Name") or ""]
    except (ValueError, AttributeError):
        return []
    return [f"arn:aws:ssm:{call.region}::parameter/{str(name).lstrip('/')}" for name in names]


class _Asked:
    """One call of EC2 that changes something."""

    def __init__(self, call: Call, account: str) -> None:
        self._call = call
        self._account = account
        self._backend = ec2_backends[account][call.region]
        self._templates = list(self._named_templates())

    def questions(self) -> Iterator[Question]:
        call = self._call
        action = f"ec2:{call.action}"
        asked, written = call.created_tags(), self._template_tags()
        yield from self._on_existing(action, self._ids(call.parameters))
        yield from self._on_new(action, _CREATED.get(call.action, ()), {**written, **asked})
        yield from self._on_any(action, _IMPLIED.get(call.action, ()))
        if call.action == "CreateFleet":
            # A fleet launches in the caller's name.
            yield from self._on_new("ec2:RunInstances", _LAUNCHED, {**written, **asked})
            yield from self._on_any("ec2:RunInstances", ("subnet",))
        if call.action in {"CreateFleet", "RunInstances"}:
            ids = [template.id for template, _ in self._templates]
            ids += [each for _, data in self._templates for each in _ids_in(data)]
            yield from self._on_existing("ec2:RunInstances", ids)
        for kind, tags in {**written, **asked}.items():
            context = {**_request_tags(tags), "ec2:CreateAction": [call.action]}
            yield Question(action="ec2:CreateTags", resource=self._arn(kind, "*"), context=context)

    def _on_existing(self, action: str, ids: Iterable[str]) -> Iterator[Question]:
        for resource_id in dict.fromkeys(ids):
            kind = _KINDS[resource_id.partition("-")[0]]
            tags = self._backend.tags.get(resource_id, {})
            context = {f"aws:ResourceTag/{key}": [str(value)] for key, value in tags.items()}
            context |= _request_tags(self._call.tags())
            yield Question(action=action, resource=self._arn(kind, resource_id), context=context)

    def _on_new(
        self, action: str, kinds: Iterable[str], tags: Mapping[str, Mapping[str, str]]
    ) -> Iterator[Question]:
        for kind in kinds:
            context = _request_tags(tags.get(kind, {}))
            yield Question(action=action, resource=self._arn(kind, "*"), context=context)

    def _on_any(self, action: str, kinds: Iterable[str]) -> Iterator[Question]:
        for kind in kinds:
            yield Question(action=action, resource=self._arn(kind, "*"))

    def _ids(self, parameters: Iterable[tuple[str, str]]) -> list[str]:
        """Return the ids that the request names, and those of the templates that it names."""
        named = [value for name, value in parameters if not name.startswith(_BESIDE) and _ID.fullmatch(value)]
        if self._call.action == "CreateLaunchTemplate":
            return named
        return [*named, *(template.id for template, _ in self._templates)]

    def _named_templates(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Yield the launch templates that a request names, each with what it says; not missing ones."""
        if self._call.action == "CreateLaunchTemplate":
            return
        for name, value in self._call.parameters:
            field = name.rpartition(".")[2]
            if field in {"LaunchTemplateName", "LaunchTemplateId"}:
                try:
                    # moto has no public way to it.
                    version = self._backend._get_template_from_args({field: value})  # noqa: SLF001
                except ServiceException:
                    continue
                yield version.template, version.data

    def _template_tags(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        if self._call.action in {"CreateFleet", "RunInstances"}:
            for _, data in self._templates:
                found |= convert_tag_spec(data.get("TagSpecifications") or [])
        return found

    def _arn(self, kind: str, resource_id: str) -> str:
        owner = "" if kind == "image" else self._account
        return f"arn:aws:ec2:{self._call.region}:{owner}:{kind}/{resource_id}"


def _request_tags(tags: Mapping[str, str]) -> dict[str, list[str]]:
    context = {f"aws:RequestTag/{key}": [str(value)] for key, value in tags.items()}
    return {**context, "aws:TagKeys": list(tags)} if tags else context


def _ids_in(data: object) -> Iterator[str]:
    """Yield the ids anywhere in what a launch template says."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key not in {"TagSpecifications", "UserData"}:
                yield from _ids_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from _ids_in(value)
    elif isinstance(data, str) and _ID.fullmatch(data):
        yield data
