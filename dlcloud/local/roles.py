"""What the holder of a role may do: credentials of instances, and the refusal of everything else.

A caller with the home's access key is the owner of the account, who may do anything here. The requests to
IAM that a call implies follow the Service Authorization Reference, "Actions, resources, and condition keys
for Amazon EC2", as far as dlcloud goes; a resource that a call names is recognized by its id. Importing this
imports moto.
"""

import json
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.ec2.models import ec2_backends
from moto.ec2.utils import convert_tag_spec
from moto.iam.models import iam_backends
from moto.sts.models import AssumedRole, sts_backends

from dlcloud.core.instance import Market
from dlcloud.local.call import Call, Refusal
from dlcloud.local.policy import AccessRequest, is_allowed
from dlcloud.local.record import template_version
from dlcloud.local.signature import AuthError

# Source: IAM user guide, "Use an IAM role to grant permissions to applications running on EC2 instances".
SESSION_S = 6 * 3600.0
_ISO = "%Y-%m-%dT%H:%M:%SZ"
_PARTITION = "aws"

_RESOURCE_TYPES = {
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
_ID = re.compile(rf"({'|'.join(_RESOURCE_TYPES)})-[0-9a-f][0-9a-f-]+")
# IAM is not asked about ids in these parameters.
_UNCHECKED = ("ClientToken", "Filter.", "IpPermissions.", "LaunchTemplateData.", "Tag", "UserData")
_LAUNCHED = ("instance", "volume", "network-interface")
_CREATED = {
    "CreateFleet": ("fleet",),
    "CreateLaunchTemplate": ("launch-template",),
    "CreateSecurityGroup": ("security-group",),
    "RunInstances": _LAUNCHED,
}
_IMPLIED = {"CreateSecurityGroup": ("vpc",), "RunInstances": ("subnet",)}


class InstanceRoles:
    """The sessions of roles, of instances and of AssumeRole. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.session_s = SESSION_S
        self._lock = threading.Lock()
        # The newest session and its beginning, by instance and role.
        self._newest: dict[tuple[str, str], tuple[AssumedRole, datetime]] = {}

    def documents(self, instance_id: str, profile: Any) -> dict[str, str]:  # noqa: ANN401 - moto's object
        """Return the metadata documents below `iam/` of an instance with a profile, or with None.

        Source: EC2 user guide, "Instance metadata categories": iam/info, iam/security-credentials/role-name.
        """
        if profile is None:
            return {}
        info = {"Code": "Success", "InstanceProfileArn": profile.arn, "InstanceProfileId": profile.id}
        info["LastUpdated"] = profile.create_date.strftime(_ISO)
        documents = {"iam/info": json.dumps(info)}
        for role in profile.roles:
            session, begun_at = self._instance_session(instance_id, role)
            credentials = {
                "Code": "Success",
                "LastUpdated": begun_at.strftime(_ISO),
                "Type": "AWS-HMAC",
                "AccessKeyId": session.access_key_id,
                "SecretAccessKey": session.secret_access_key,
                "Token": session.session_token,
                "Expiration": _end(session).strftime(_ISO),
            }
            documents[f"iam/security-credentials/{role.name}"] = json.dumps(credentials)
        return documents

    def secret(self, access_key: str) -> str | None:
        """Return the secret of a session's access key; None for an unknown key."""
        session = _session(access_key)
        return None if session is None else session.secret_access_key

    def refusal(self, call: Call) -> Refusal | None:
        """Return why a call with the credentials of a role is refused; None if it may go on."""
        session = _session(call.access_key)
        if session is None:
            return None
        if datetime.now(UTC) >= _end(session):
            return AuthError.TOKEN_EXPIRED.refuse(call, "The security token is expired.")
        role = _role(session)
        token = session.session_token.encode()
        if role is None or not secrets.compare_digest(call.session_token.encode(), token):
            return AuthError.UNKNOWN_KEY.refuse(call, "The security token is not valid.")
        policies = [*role.policies.values(), *(policy.document for policy in role.managed_policies.values())]
        for request in access_requests(call, session.account_id):
            if not is_allowed(policies, request):
                code = "AccessDeniedException" if call.is_json else "AccessDenied"
                code = "UnauthorizedOperation" if call.service == "ec2" else code
                message = (
                    f"User: {session.arn} is not authorized to perform: {request.action} on resource: "
                    f"{request.resource} because no identity-based policy allows it"
                )
                return Refusal(status=403, code=code, message=message)
        return None

    def _instance_session(self, instance_id: str, role: Any) -> tuple[AssumedRole, datetime]:  # noqa: ANN401
        """Return the session of an instance and its beginning; a new one when half of its time has passed."""
        now = datetime.now(UTC)
        with self._lock:
            newest = self._newest.get((instance_id, role.arn))
            if newest is None or _end(newest[0]) - now < (_end(newest[0]) - newest[1]) / 2:
                session = sts_backends[role.account_id][_PARTITION].assume_role(
                    region_name="us-east-1",
                    role_session_name=instance_id,
                    role_arn=role.arn,
                    policy="",
                    duration=int(self.session_s),
                    external_id="",
                )
                newest = self._newest[instance_id, role.arn] = (session, now)
            return newest


def _session(access_key: str) -> AssumedRole | None:
    return sts_backends[ACCOUNT][_PARTITION].get_assumed_role_from_access_key(access_key)


def _end(session: AssumedRole) -> datetime:
    """Return when a session expires, in whole seconds as in the metadata."""
    return session.expiration.replace(microsecond=0, tzinfo=UTC)


def _role(session: AssumedRole) -> Any | None:  # noqa: ANN401 - moto's object
    roles = iam_backends[session.account_id][_PARTITION].roles.values()
    return next((role for role in list(roles) if role.arn == session.role_arn), None)


def access_requests(call: Call, account: str) -> list[AccessRequest]:
    """Return all requests to IAM that must be allowed for a call; at least one."""
    requests: list[AccessRequest] = []
    if call.service == "ec2" and not call.is_reading:
        requests = list(_Change(call, account).requests())
    resources = _parameter_arns(call) or ["*"]
    action = f"{call.service}:{call.action}"
    return requests or [AccessRequest(action=action, resource=resource) for resource in resources]


def _parameter_arns(call: Call) -> list[str]:
    """Return the parameters that a call of the parameter store names; none if it cannot be read."""
    if call.service != "ssm":
        return []
    try:
        request = json.loads(call.body or b"{}")
        names = request.get("Names") or [request.get("Name") or ""]
    except (ValueError, AttributeError):
        return []
    return [f"arn:aws:ssm:{call.region}::parameter/{str(name).lstrip('/')}" for name in names]


class _Change:
    """A call of EC2 that changes something."""

    def __init__(self, call: Call, account: str) -> None:
        self._call = call
        self._account = account
        self._backend = ec2_backends[account][call.region]
        self._templates = list(self._named_templates())

    def requests(self) -> Iterator[AccessRequest]:
        call = self._call
        action = f"ec2:{call.action}"
        tags = {**self._template_tags(), **call.created_tags()}
        yield from self._on_existing(action, self._named_ids())
        yield from self._on_new(action, _CREATED.get(call.action, ()), tags)
        yield from self._on_new(action, _IMPLIED.get(call.action, ()), {})
        if call.action == "CreateFleet":
            # A fleet launches in the caller's name.
            yield from self._on_new("ec2:RunInstances", _LAUNCHED, tags)
            yield from self._on_new("ec2:RunInstances", ("subnet",), {})
        if self._launches_spot():
            yield from self._on_new("ec2:RunInstances", ("spot-instances-request",), tags)
        if call.action in {"CreateFleet", "RunInstances"}:
            ids = [version.template.id for version in self._templates]
            ids += [name for version in self._templates for name in _ids_in(version.data)]
            yield from self._on_existing("ec2:RunInstances", ids)
        for kind, values in tags.items():
            context = {**_request_tags(values), "ec2:CreateAction": [call.action]}
            yield AccessRequest(action="ec2:CreateTags", resource=self._arn(kind, "*"), context=context)

    def _launches_spot(self) -> bool:
        """True if the call requests spot instances, which EC2 authorizes as a resource of RunInstances.

        EC2 reports the denial of a fleet's requests in its reply's `Errors`; here the whole call is refused.
        Source: Service Authorization Reference, RunInstances; karpenter-provider-aws, issue 5850.
        """
        call = self._call
        if call.action == "CreateFleet":
            names = ("SpotTargetCapacity", "OnDemandTargetCapacity", "TotalTargetCapacity")
            values = [call.parameter(f"TargetCapacitySpecification.{name}") for name in names]
            spot, on_demand, total = (int(value) if value.isdigit() else 0 for value in values)
            default = call.parameter("TargetCapacitySpecification.DefaultTargetCapacityType")
            return spot > 0 or (default == Market.SPOT and total > on_demand)
        if call.action != "RunInstances":
            return False
        options = [version.data.get("InstanceMarketOptions") or {} for version in self._templates]
        markets = [option.get("MarketType") for option in options]
        return Market.SPOT in [call.parameter("InstanceMarketOptions.MarketType"), *markets]

    def _on_existing(self, action: str, ids: Iterable[str]) -> Iterator[AccessRequest]:
        for resource_id in dict.fromkeys(ids):
            kind = _RESOURCE_TYPES[resource_id.partition("-")[0]]
            tags = self._backend.tags.get(resource_id, {})
            context = {f"aws:ResourceTag/{key}": [str(value)] for key, value in tags.items()}
            context |= _request_tags(self._call.tags())
            yield AccessRequest(action=action, resource=self._arn(kind, resource_id), context=context)

    def _on_new(
        self, action: str, kinds: Iterable[str], tags: Mapping[str, Mapping[str, str]]
    ) -> Iterator[AccessRequest]:
        for kind in kinds:
            context = _request_tags(tags.get(kind, {}))
            yield AccessRequest(action=action, resource=self._arn(kind, "*"), context=context)

    def _named_ids(self) -> list[str]:
        """Return the ids that the request names, and those of the templates that it names."""
        ids = [
            value
            for name, value in self._call.parameters
            if not name.startswith(_UNCHECKED) and _ID.fullmatch(value)
        ]
        return [*ids, *(version.template.id for version in self._templates)]

    def _named_templates(self) -> Iterator[Any]:
        """Yield the versions of the launch templates that a request names; missing ones are left out."""
        if self._call.action == "CreateLaunchTemplate":
            return
        for name, value in self._call.parameters:
            field = name.rpartition(".")[2]
            if field in {"LaunchTemplateName", "LaunchTemplateId"}:
                try:
                    yield template_version(self._backend, {field: value})
                except ServiceException:
                    continue

    def _template_tags(self) -> dict[str, dict[str, str]]:
        tags: dict[str, dict[str, str]] = {}
        if self._call.action in {"CreateFleet", "RunInstances"}:
            for version in self._templates:
                tags |= convert_tag_spec(version.data.get("TagSpecifications") or [])
        return tags

    def _arn(self, kind: str, resource_id: str) -> str:
        owner = "" if kind == "image" else self._account
        return f"arn:aws:ec2:{self._call.region}:{owner}:{kind}/{resource_id}"


def _request_tags(tags: Mapping[str, str]) -> dict[str, list[str]]:
    context = {f"aws:RequestTag/{key}": [str(value)] for key, value in tags.items()}
    return {**context, "aws:TagKeys": list(tags)} if tags else context


def _ids_in(data: object) -> Iterator[str]:
    """Yield the ids anywhere in the data of a launch template."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key not in {"TagSpecifications", "UserData"}:
                yield from _ids_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from _ids_in(value)
    elif isinstance(data, str) and _ID.fullmatch(data):
        yield data
