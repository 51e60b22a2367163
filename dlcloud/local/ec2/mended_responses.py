"""The EC2 actions that moto answers wrongly or lacks, and that are about no subject of another class here."""

import base64
from collections.abc import Mapping
from typing import Any, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.launch_templates import LaunchTemplate, LaunchTemplateVersion

from dlcloud.local.ec2.describe import DescribingResponses
from dlcloud.local.ec2.launch_checks import refuse
from dlcloud.local.ec2.members import MEMBERS
from dlcloud.local.ec2.refusals import check_call


class MendedResponses(DescribingResponses):
    """moto's answers, after the checks of `refusals` and with the members of `members`."""

    RESPONSE_KEY_PATH_TO_TRANSFORMER = {  # noqa: RUF012 - moto declares it of instances
        **DescribingResponses.RESPONSE_KEY_PATH_TO_TRANSFORMER,
        **MEMBERS,
    }

    def call_action(self) -> TYPE_RESPONSE:
        """Answer a call, unless EC2 refuses it."""
        try:
            check_call(self._get_action(), self.params, self.ec2_backend)
        except EC2ClientError as error:
            return self._refuse(error)
        return super().call_action()

    def create_launch_template_version(self) -> ActionResult:
        """Make a version of a source version's data, with what the request changes."""
        source = self.params.get("SourceVersion")
        if source:
            data = self._template().get_version(source).data
            self.params["LaunchTemplateData"] = {**data, **(self.params.get("LaunchTemplateData") or {})}
        return super().create_launch_template_version()

    def delete_launch_template_versions(self) -> ActionResult:
        """Delete versions but the default one; answer for each."""
        self.error_on_dryrun()
        template = self._template()
        template.__class__ = NumberedTemplate
        numbers = [str(number) for number in self.params.get("Versions") or ()]
        if str(template.default_version_number) in numbers:
            # [from memory]: EC2's text.
            raise refuse("InvalidParameterValue", "Cannot delete the default launch template version.")
        versions = {str(version.number): version for version in template.versions}
        names = {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name}
        deleted, failed = [], []
        for number in numbers:
            if number in versions:
                template.versions.remove(versions[number])
                deleted.append({**names, "VersionNumber": int(number)})
            else:
                error = {"Code": "launchTemplateVersionDoesNotExist", "Message": f"no version {number}"}
                failed.append({**names, "VersionNumber": int(number), "ResponseError": error})
        return ActionResult(
            {
                "SuccessfullyDeletedLaunchTemplateVersions": deleted,
                "UnsuccessfullyDeletedLaunchTemplateVersions": failed,
            }
        )

    def _template(self) -> Any:  # noqa: ANN401 - moto's object
        name = self.params.get("LaunchTemplateName")
        if name:
            return self.ec2_backend.get_launch_template_by_name(name)
        return self.ec2_backend.get_launch_template(self.params.get("LaunchTemplateId"))

    def authorize_security_group_ingress(self) -> ActionResult:
        """Answer with the rules of all permissions, not of the last alone."""
        self.error_on_dryrun()
        rules: list[Any] = []
        for arguments in self._process_rules_from_querystring():
            rules += self.ec2_backend.authorize_security_group_ingress(**arguments)[0]
        return ActionResult({"Return": True, "SecurityGroupRules": rules})

    def revoke_security_group_ingress(self) -> ActionResult:
        """Answer with the rules that are no more."""
        group = self.ec2_backend.get_security_group_by_name_or_id(
            self.params.get("GroupId") or self.params.get("GroupName")
        )
        before = [] if group is None else list(group.ingress_rules)
        result = cast("dict[str, Any]", super().revoke_security_group_ingress().result)
        left = {rule.id for rule in group.ingress_rules} if group is not None else set()
        revoked = [_shown_revoked(rule) for rule in before if rule.id not in left]
        return ActionResult({**result, "RevokedSecurityGroupRules": revoked})

    def modify_instance_attribute(self) -> ActionResult:
        """Take user data in base64 once, as EC2; moto decodes it twice."""
        data = self.params.get("UserData")
        if isinstance(data, dict) and data.get("Value") is not None:
            value = data["Value"]
            raw = value if isinstance(value, bytes) else str(value).encode()
            self.params["UserData"] = {"Value": base64.b64encode(raw).decode()}
        return super().modify_instance_attribute()

    def describe_instance_attribute(self) -> ActionResult:
        """Know two attributes that moto leaves out."""
        attribute = self.params.get("Attribute")
        if attribute not in ("blockDeviceMapping", "enaSupport"):
            return super().describe_instance_attribute()
        self.error_on_dryrun()
        instance = self.ec2_backend.get_instance(self.params.get("InstanceId"))
        shown: Mapping[str, Any] = {"EnaSupport": {"Value": True}}
        if attribute == "blockDeviceMapping":
            shown = {"BlockDeviceMappings": _devices(instance)}
        return ActionResult({"InstanceId": instance.id, **shown})

    def describe_snapshots(self) -> ActionResult:
        """Return the snapshots of the owners that the request names, or all."""
        result = cast("dict[str, Any]", super().describe_snapshots().result)
        owners = set(self.params.get("OwnerIds") or ())
        if not owners:
            return ActionResult(result)
        accounts = {self.current_account if owner == "self" else owner for owner in owners}
        chosen = [snapshot for snapshot in result["Snapshots"] if snapshot.owner_id in accounts]
        return ActionResult({**result, "Snapshots": chosen})

    def describe_account_attributes(self) -> ActionResult:
        """Return the attributes that the request names, or all."""
        names = set(self.params.get("AttributeNames") or ())
        result = cast("dict[str, Any]", super().describe_account_attributes().result)
        attributes = result["AccountAttributes"]
        shown = [attribute for attribute in attributes if not names or attribute["AttributeName"] in names]
        return ActionResult({"AccountAttributes": shown})


class NumberedTemplate(LaunchTemplate):
    """A launch template of which versions were deleted; moto finds them by their place."""

    def create_version(self, data: dict[str, Any], description: str) -> LaunchTemplateVersion:
        """Make the next version; numbers are not used again."""
        version = LaunchTemplateVersion(self, self.versions[-1].number + 1, data, description)
        self.versions.append(version)
        return version

    def get_version(self, num: Any) -> LaunchTemplateVersion:  # noqa: ANN401 - a number or a text
        """Return a version by its number, $Latest or $Default."""
        if str(num).lower() == "$latest":
            return self.versions[-1]
        number = self.default_version_number if str(num).lower() == "$default" else int(num)
        for version in self.versions:
            if version.number == number:
                return version
        raise refuse(
            "InvalidLaunchTemplateId.VersionNotFound",
            f"Could not find the specified version {num} for the launch template with ID {self.id}.",
        )

    def default_version(self) -> LaunchTemplateVersion:
        """Return the default version."""
        return self.get_version(self.default_version_number)


def _shown_revoked(rule: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's object
    shown = {
        "SecurityGroupRuleId": rule.id,
        "GroupId": rule.group_id,
        "IsEgress": rule.is_egress,
        "IpProtocol": rule.ip_protocol,
        "FromPort": rule.from_port,
        "ToPort": rule.to_port,
        "CidrIpv4": rule.ip_range.get("CidrIp"),
        "CidrIpv6": rule.ip_range.get("CidrIpv6"),
        "PrefixListId": rule.prefix_list_id,
        "ReferencedGroupId": rule.source_group.get("GroupId"),
    }
    return {name: value for name, value in shown.items() if value is not None}


def _devices(instance: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - moto's object
    return [
        {
            "DeviceName": name,
            "Ebs": {
                "AttachTime": device.attach_time,
                "DeleteOnTermination": bool(device.delete_on_termination),
                "Status": "attached" if device.status == "in-use" else device.status,
                "VolumeId": device.volume_id,
            },
        }
        for name, device in instance.block_device_mapping.items()
    ]
