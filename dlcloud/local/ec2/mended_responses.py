"""The EC2 actions that moto answers wrongly or lacks, and that are about no subject of another class here."""

from typing import Any, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError

from dlcloud.local.ec2.describe import DescribingResponses
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

    def describe_snapshots(self) -> ActionResult:
        """Return the snapshots of the owners that the request names, or all."""
        result = cast("dict[str, Any]", super().describe_snapshots().result)
        owners = set(self.params.get("OwnerIds") or ())
        if not owners:
            return ActionResult(result)
        accounts = {self.current_account if owner == "self" else owner for owner in owners}
        chosen = [snapshot for snapshot in result["Snapshots"] if snapshot.owner_id in accounts]
        return ActionResult({**result, "Snapshots": chosen})


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
