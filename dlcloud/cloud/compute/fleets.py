"""Fleets of clusters in one region, with the launch templates that they are made from."""

from base64 import b64encode
from collections.abc import Callable, Sequence

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import retry_launch, translate_errors
from dlcloud.cloud.compute.fleet_requests import fleet_arguments, read_fleet
from dlcloud.cloud.compute.requests import cluster_filter, tag_specification, template_data, template_name
from dlcloud.model.cluster import CLUSTER_TAG
from dlcloud.planning.launch_request import FleetRequest, LaunchRequest, LaunchResult

NO_TEMPLATE = {
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFoundException",
}
FLEETS_A_CALL = 25  # Source: EC2 API reference, DeleteFleets: instant fleets a request


class Ec2Fleets:
    """Fleets of one region.

    Args:
        clients: The region's clients.
        pause: Waits so many seconds before a refused call is repeated.
    """

    def __init__(self, *, clients: Clients, pause: Callable[[float], None]) -> None:
        self._clients = clients
        self._pause = pause

    def create_template(self, request: LaunchRequest) -> str:
        """Return the name of a launch template that says what `request` does; made if it is missing."""
        data = template_data(request, b64encode(request.user_data.encode()).decode())
        name = template_name(request.tags[CLUSTER_TAG], data)
        with translate_errors(
            "creating the launch template (ec2:CreateLaunchTemplate)",
            ignore={"InvalidLaunchTemplateName.AlreadyExistsException"},
        ):
            self._clients.get("ec2").create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=[tag_specification("launch-template", request.tags)],
            )
            # What a list shows cannot be overlooked when the cluster goes down.
            self._clients.call_until_visible("describe_launch_templates", LaunchTemplateNames=[name])
        return name

    def launch(self, request: FleetRequest) -> LaunchResult:
        """Make one CreateFleet call; its token makes a repeated one harmless."""
        action = f"launching {request.spot_count} spot and {request.on_demand_count} on-demand instances"
        with translate_errors(f"{action} from {len(request.pools)} pools (ec2:CreateFleet)"):
            answer = retry_launch(
                self._clients.get_without_retries().create_fleet, fleet_arguments(request), pause=self._pause
            )
        return read_fleet(answer, request)

    def find(self, cluster_id: str) -> list[str]:
        """Return the cluster's fleets by their tags: EC2 lists an instant fleet only by its id."""
        filters = {"key": [CLUSTER_TAG], "value": [cluster_id], "resource-type": ["fleet"]}
        with translate_errors("listing fleets (ec2:DescribeTags)"):
            tags = self._clients.pages(
                "ec2",
                "describe_tags",
                "Tags",
                Filters=[{"Name": name, "Values": values} for name, values in filters.items()],
            )
        return sorted(tag["ResourceId"] for tag in tags)

    def delete(self, fleet_ids: Sequence[str]) -> None:
        """Delete fleets with their instances; no error for one that is gone."""
        for start in range(0, len(fleet_ids), FLEETS_A_CALL):
            batch = list(fleet_ids[start : start + FLEETS_A_CALL])
            with translate_errors(f"deleting {', '.join(batch)} (ec2:DeleteFleets)"):
                self._clients.get("ec2").delete_fleets(FleetIds=batch, TerminateInstances=True)

    def delete_templates(self, cluster_id: str) -> None:
        """Delete the launch templates of a cluster."""
        with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
            templates = self._clients.pages(
                "ec2", "describe_launch_templates", "LaunchTemplates", Filters=cluster_filter(cluster_id)
            )
        for template in templates:
            name = template["LaunchTemplateName"]
            with translate_errors(
                f"deleting launch template {name} (ec2:DeleteLaunchTemplate)", ignore=NO_TEMPLATE
            ):
                self._clients.get("ec2").delete_launch_template(LaunchTemplateName=name)
