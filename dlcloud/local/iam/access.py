"""The requests to IAM that a call implies: each action with each resource that it touches.

They follow the Service Authorization Reference, "Actions, resources, and condition keys" of Amazon EC2, EC2
Instance Connect and IAM, as far as dlcloud goes; `tests/unit/cloud/test_permissions.py` compares them with
its published data. A resource that a call names is recognized by its id. Importing this imports moto.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends
from moto.ec2.utils import convert_tag_spec
from moto.iam.models import iam_backends
from moto.secretsmanager.models import secretsmanager_backends

from dlcloud.local.api.call import Call
from dlcloud.local.api.policy import AccessRequest
from dlcloud.local.ec2.network import groups_of
from dlcloud.local.ec2.record import template_version
from dlcloud.local.s3.calls import S3Call
from dlcloud.model.instance import Market

PARTITION = "aws"
SPOT_SERVICE = "spot.amazonaws.com"
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
SPOT_REQUEST = "spot-instances-request"
_FREE = ("sts:GetCallerIdentity",)
"""Allowed to everyone, whatever a policy says. Source: STS API reference, GetCallerIdentity."""
_RESOURCE_TYPES = {
    "ami": "image",
    "cr": "capacity-reservation",
    "eice": "instance-connect-endpoint",
    "eni": "network-interface",
    "fleet": "fleet",
    "i": "instance",
    "lt": "launch-template",
    "pg": "placement-group",
    "sg": "security-group",
    "snap": "snapshot",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
}
_PUBLIC = ("image", "snapshot")  # their ARNs name no account
_ID = re.compile(rf"({'|'.join(_RESOURCE_TYPES)})-[0-9a-f][0-9a-f-]+")
# IAM is not asked about ids in these parameters.
_UNCHECKED = ("ClientToken", "Filter.", "IpPermissions.", "LaunchTemplateData.", "Tag", "UserData")
_LAUNCHED = ("instance", "volume", "network-interface")
_CREATED = {
    "CreateCapacityReservation": ("capacity-reservation",),
    "CreateFleet": ("fleet", "instance", "volume"),
    "CreateImage": ("image", "snapshot"),
    "CreateLaunchTemplate": ("launch-template",),
    "CreatePlacementGroup": ("placement-group",),
    "CreateSecurityGroup": ("security-group",),
    "RunInstances": _LAUNCHED,
}
_IMPLIED = {"CreateSecurityGroup": ("vpc",), "RunInstances": ("subnet",)}
_PASSING = ("AssociateIamInstanceProfile", "CreateFleet", "RunInstances")
"""What puts a profile on instances. Source: EC2 user guide, "Grant permissions to pass an IAM role"."""
_BATCH_NAMES = {
    "compute-environment": ("computeEnvironmentName", "computeEnvironment"),
    "job-queue": ("jobQueueName", "jobQueue"),
    "job-definition": ("jobDefinitionName", "jobDefinition"),
}
_PASSED_BY_BATCH = (
    ("computeResources", "instanceRole", "ec2.amazonaws.com"),
    ("containerProperties", "jobRoleArn", "ecs-tasks.amazonaws.com"),
)
_TAG_ACTIONS = {"CreateRole": "iam:TagRole", "CreateInstanceProfile": "iam:TagInstanceProfile"}


def access_requests(call: Call, account: str) -> list[AccessRequest]:
    """Return all requests to IAM that must be allowed for a call; none for what everyone may do."""
    action = f"{call.service}:{call.action}"
    if action in _FREE:
        return []
    requests = list(_BY_SERVICE.get(call.service, _no_requests)(call, account))
    return requests or [AccessRequest(action=action, resource="*")]


def needs_spot_role(call: Call, account: str) -> bool:
    """True if EC2 makes its role for Spot Instances in the caller's name: at an account's first request."""
    if call.action not in {"CreateFleet", "RunInstances"} or call.service != "ec2":
        return False
    return not _has_spot_role(account) and _Change(call, account).launches_spot()


def create_spot_role(account: str) -> None:
    """Create EC2's role for Spot Instances."""
    if not _has_spot_role(account):
        iam_backends[account][PARTITION].create_role(
            SPOT_ROLE, "{}", f"/aws-service-role/{SPOT_SERVICE}/", None, "", [], "3600"
        )


def spot_role_request(account: str) -> AccessRequest:
    """Return the request to IAM to create EC2's role for Spot Instances.

    Source: EC2 user guide, "Service-linked role for Spot Instance requests".
    """
    arn = f"arn:{PARTITION}:iam::{account}:role/aws-service-role/{SPOT_SERVICE}/{SPOT_ROLE}"
    context = {"iam:AWSServiceName": [SPOT_SERVICE]}
    return AccessRequest(action="iam:CreateServiceLinkedRole", resource=arn, context=context)


def _has_spot_role(account: str) -> bool:
    return any(role.name == SPOT_ROLE for role in list(iam_backends[account][PARTITION].roles.values()))


def _no_requests(_: Call, __: str) -> Iterator[AccessRequest]:
    return iter(())


def _ec2_requests(call: Call, account: str) -> Iterator[AccessRequest]:
    return iter(()) if call.is_reading else _Change(call, account).requests()


def _connect_requests(call: Call, account: str) -> Iterator[AccessRequest]:
    """Yield the instance of a key that is sent to it."""
    instance_id = str(_json(call).get("InstanceId") or "*")
    tags = ec2_backends[account][call.region].tags.get(instance_id, {})
    context = {f"aws:ResourceTag/{key}": [str(value)] for key, value in tags.items()}
    arn = f"arn:{PARTITION}:ec2:{call.region}:{account}:instance/{instance_id}"
    yield AccessRequest(action=f"{call.service}:{call.action}", resource=arn, context=context)


def _parameter_requests(call: Call, account: str) -> Iterator[AccessRequest]:
    """Yield the parameters that a call of the parameter store names; none if it cannot be read."""
    request = _json(call)
    for name in request.get("Names") or [request.get("Name") or ""]:
        owner = "" if str(name).startswith("/aws/service/") else account
        arn = f"arn:{PARTITION}:ssm:{call.region}:{owner}:parameter/{str(name).lstrip('/')}"
        yield AccessRequest(action=f"{call.service}:{call.action}", resource=arn)


def _secret_requests(call: Call, account: str) -> Iterator[AccessRequest]:
    """Yield the secret that a call of Secrets Manager names, by its ARN; the API takes names, too."""
    name = str(_json(call).get("SecretId") or _json(call).get("Name") or "*")
    secrets = secretsmanager_backends[account][call.region].secrets
    prefix = f"arn:{PARTITION}:secretsmanager:{call.region}:{account}:secret:"
    arn = next((s.arn for s in list(secrets.values()) if name in {s.name, s.arn}), prefix + name)
    yield AccessRequest(action=f"secretsmanager:{call.action}", resource=arn)


def _batch_requests(call: Call, account: str) -> Iterator[AccessRequest]:
    """Yield the resources of AWS Batch that a call changes, and the roles that it passes.

    Source: Service Authorization Reference, "AWS Batch".
    """
    request = _json(call)
    if call.is_reading or call.action == "TerminateJob":
        return
    context = _request_tags(request.get("tags") or {})
    if call.action == "SubmitJob":
        arn = f"arn:{PARTITION}:batch:{call.region}:{account}:job/new"
        yield AccessRequest(action="batch:SubmitJob", resource=arn, context=context)
    for kind, keys in _BATCH_NAMES.items():
        if kind == "compute-environment" and call.action == "CreateJobQueue":
            continue
        for name in filter(None, (request.get(key) for key in keys)):
            arn = f"arn:{PARTITION}:batch:{call.region}:{account}:{kind}/"
            arn = name if name.startswith("arn:") else arn + name
            yield AccessRequest(action=f"batch:{call.action}", resource=arn, context=context)
            if context:
                yield AccessRequest(action="batch:TagResource", resource=arn, context=context)
    roles = list(iam_backends[account][PARTITION].roles.values())
    for key, field, service in _PASSED_BY_BATCH:
        name = (request.get(key) or {}).get(field)
        yield from _passed((role for role in roles if name in {role.name, role.arn}), service)


def _iam_requests(call: Call, account: str) -> Iterator[AccessRequest]:
    """Yield the role or the instance profile that a call of IAM names, its tags, and the role it passes.

    One that does not exist has no ARN: only a policy for every resource allows what concerns it.
    Source: keikoproj/iam-manager, pull request 35.
    """
    backend = iam_backends[account][PARTITION]
    role, profile = call.parameter("RoleName"), call.parameter("InstanceProfileName")
    if not role and not profile:
        return
    kind, name = ("instance-profile", profile) if profile else ("role", role)
    existing: Mapping[str, Any] = backend.instance_profiles if profile else backend.roles
    arn = next((item.arn for item in list(existing.values()) if item.name == name), "")
    if not arn and call.action in _TAG_ACTIONS:
        arn = f"arn:{PARTITION}:iam::{account}:{kind}{call.parameter('Path') or '/'}{name}"
    yield AccessRequest(action=f"iam:{call.action}", resource=arn or f"{kind.replace('-', ' ')} {name}")
    tags = call.member_tags()
    if tags and call.action in _TAG_ACTIONS:
        yield AccessRequest(action=_TAG_ACTIONS[call.action], resource=arn, context=_request_tags(tags))
    if call.action == "AddRoleToInstanceProfile":
        yield from _passed(item for item in list(backend.roles.values()) if item.name == role)


def _passed(roles: Iterable[Any], service: str = "ec2.amazonaws.com") -> Iterator[AccessRequest]:
    """Yield the requests to hand roles to a service, as to instances."""
    for role in roles:
        context = {"iam:PassedToService": [service]}
        yield AccessRequest(action="iam:PassRole", resource=role.arn, context=context)


def _s3_requests(call: Call, _: str) -> Iterator[AccessRequest]:
    if isinstance(call, S3Call):
        yield from call.access_requests()


_BY_SERVICE: Mapping[str, Callable[[Call, str], Iterator[AccessRequest]]] = {
    "batch": _batch_requests,
    "ec2": _ec2_requests,
    "ec2-instance-connect": _connect_requests,
    "iam": _iam_requests,
    "s3": _s3_requests,
    "secretsmanager": _secret_requests,
    "ssm": _parameter_requests,
}


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
        ids = self._named_ids()
        if call.action == "RunInstances":
            ids += self._launch_ids(ids)
        yield from self._on_existing(action, ids)
        yield from self._on_new(action, _CREATED.get(call.action, ()), tags)
        yield from self._on_new(action, _IMPLIED.get(call.action, ()), {})
        yield from self._on_placement_group(action)
        is_dry_fleet = call.action == "CreateFleet" and call.parameter("DryRun") == "true"
        if call.action == "CreateFleet":
            # A fleet launches in the caller's name.
            ids = self._launch_ids(ids)
            yield from self._on_existing(action, [name for name in ids if name.startswith("ami-")])
            yield from self._on_new(action, ("subnet",), {})
        if call.action == "CreateFleet" and not is_dry_fleet:
            yield from self._on_new("ec2:RunInstances", (*_LAUNCHED, "subnet"), tags)
            yield from self._on_existing("ec2:RunInstances", ids)
        if self.launches_spot() and not is_dry_fleet:
            yield from self._on_new("ec2:RunInstances", (SPOT_REQUEST,), tags)
        if call.action in _PASSING and not is_dry_fleet:
            yield from _passed(self._profile_roles())
        for kind, values in tags.items():
            context = {**_request_tags(values), "ec2:CreateAction": [call.action]}
            yield AccessRequest(action="ec2:CreateTags", resource=self._arn(kind, "*"), context=context)

    def launches_spot(self) -> bool:
        """True if the call requests spot instances, which EC2 authorizes as a resource of RunInstances.

        Source: karpenter-provider-aws, issue 5850; the reference's table of RunInstances leaves it out.
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

    def _launch_ids(self, named: Iterable[str]) -> list[str]:
        """Return the ids that a launch touches in addition to those that it names.

        Those of its templates, of its image's snapshot, and of the VPC's default group where it names none.
        """
        ids = [version.template.id for version in self._templates]
        ids += [name for version in self._templates for name in _ids_in(version.data)]
        all_ids = [*named, *ids]
        ids += [
            image.ebs_snapshot.id
            for name in all_ids
            if (image := self._backend.amis.get(name)) is not None and image.ebs_snapshot
        ]
        if not any(name.startswith("sg-") for name in all_ids):
            ids += self._default_groups()
        return ids

    def _default_groups(self) -> list[str]:
        vpcs = (vpc for vpc in list(self._backend.vpcs.values()) if vpc.is_default)
        groups = (self._backend.get_security_group_from_name("default", vpc.id) for vpc in vpcs)
        return [group.id for group in groups if group is not None]

    def _on_existing(self, action: str, ids: Iterable[str]) -> Iterator[AccessRequest]:
        for resource_id in dict.fromkeys(ids):
            kind = _RESOURCE_TYPES[resource_id.partition("-")[0]]
            tags = self._backend.tags.get(resource_id, {})
            context = {f"aws:ResourceTag/{key}": [str(value)] for key, value in tags.items()}
            context |= _request_tags(self._call.tags())
            yield AccessRequest(action=action, resource=self._arn(kind, resource_id), context=context)

    def _on_placement_group(self, action: str) -> Iterator[AccessRequest]:
        """Yield the placement group that the call, or a template that it names, launches into or deletes."""
        names = {self._call.parameter("Placement.GroupName")}
        names |= {(v.data.get("Placement") or {}).get("GroupName") or "" for v in self._templates}
        if action == "ec2:DeletePlacementGroup":
            names = {self._call.parameter("GroupName")}
        for name in sorted(names - {""}):
            group = groups_of(self._backend).get(name)
            tags = {} if group is None else group.tags
            context = {f"aws:ResourceTag/{key}": [value] for key, value in tags.items()}
            launching = "ec2:RunInstances" if action == "ec2:CreateFleet" else action
            arn = self._arn("placement-group", name)
            yield AccessRequest(action=launching, resource=arn, context=context)

    def _on_new(
        self, action: str, kinds: Iterable[str], tags: Mapping[str, Mapping[str, str]]
    ) -> Iterator[AccessRequest]:
        for kind in kinds:
            context, arn = _request_tags(tags.get(kind, {})), self._arn(kind, "*")
            types = self._instance_types() if kind == "instance" and action == "ec2:RunInstances" else []
            for instance_type in types:
                asked = {**context, "ec2:InstanceType": [instance_type]}
                yield AccessRequest(action=action, resource=arn, context=asked)
            if not types:
                yield AccessRequest(action=action, resource=arn, context=context)

    def _instance_types(self) -> list[str]:
        """Return the types that a launch or a fleet names: each is its own request."""
        values = [value for name, value in self._call.parameters if name.rpartition(".")[2] == "InstanceType"]
        return sorted(set(values))

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

    def _profile_roles(self) -> list[Any]:
        """Return the roles of the instance profiles that the request, or a template that it names, has."""
        named = [self._call.parameter(f"IamInstanceProfile.{field}") for field in ("Name", "Arn")]
        profiles = [version.data.get("IamInstanceProfile") or {} for version in self._templates]
        names = {*named, *(name for profile in profiles for name in profile.values())} - {""}
        existing = list(iam_backends[self._account][PARTITION].instance_profiles.values())
        return [role for item in existing if {item.name, item.arn} & names for role in item.roles]

    def _arn(self, kind: str, resource_id: str) -> str:
        owner = "" if kind in _PUBLIC else self._account
        return f"arn:{PARTITION}:ec2:{self._call.region}:{owner}:{kind}/{resource_id}"


def _request_tags(tags: Mapping[str, str]) -> dict[str, list[str]]:
    context = {f"aws:RequestTag/{key}": [str(value)] for key, value in tags.items()}
    return {**context, "aws:TagKeys": list(tags)} if tags else context


def _json(call: Call) -> dict[str, Any]:
    try:
        content = json.loads(call.body or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


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
