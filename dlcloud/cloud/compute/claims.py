"""Claims of the control of a cluster, of which EC2 grants one a term."""

from collections.abc import Mapping
from datetime import UTC, datetime

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import error_code, translate_errors
from dlcloud.cloud.compute.requests import cluster_filter, tag_specification
from dlcloud.model.cluster import CLAIM_TAG, CLUSTER_TAG, ControlClaim

TAKEN = "InvalidLaunchTemplateName.AlreadyExistsException"
DATA = {"InstanceType": "t3.nano"}
"""A launch template must have some content; none is launched from this one."""


class Ec2Claims:
    """Claims of the control of clusters in one region."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def claim(self, term: int, instance_id: str, tags: Mapping[str, str]) -> bool:
        """Claim the control of a cluster for an instance; False if another instance has claimed this term.

        The claim is a launch template: EC2 makes only one of a name, so of several claims one succeeds.
        """
        name = f"dlcloud-{tags[CLUSTER_TAG]}-control-{term}"
        with translate_errors(f"claiming the control of the cluster, {name} (ec2:CreateLaunchTemplate)"):
            try:
                self._clients.get("ec2").create_launch_template(
                    LaunchTemplateName=name,
                    LaunchTemplateData=DATA,
                    TagSpecifications=[
                        tag_specification("launch-template", {**tags, CLAIM_TAG: instance_id})
                    ],
                )
            except ClientError as error:
                if error_code(error) != TAKEN:
                    raise
                return False
        return True

    def find(self, cluster_id: str) -> list[ControlClaim]:
        """Return the claims of a cluster, the oldest first."""
        with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
            templates = self._clients.pages(
                "ec2", "describe_launch_templates", "LaunchTemplates", Filters=cluster_filter(cluster_id)
            )
        claims = []
        for template in templates:
            tags = {tag["Key"]: tag["Value"] for tag in template.get("Tags", ())}
            _, _, term = template["LaunchTemplateName"].rpartition("-control-")
            if CLAIM_TAG in tags and term.isdecimal():
                at = template.get("CreateTime") or datetime.now(UTC)
                claims.append(ControlClaim(term=int(term), instance_id=tags[CLAIM_TAG], at=at))
        return sorted(claims, key=lambda claim: claim.term)
