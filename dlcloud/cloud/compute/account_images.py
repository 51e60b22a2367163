"""Make, list and delete images of the account's own: those that carry dlcloud's tag."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import LATE_PAUSES_S, error_code, retry_codes, translate_errors
from dlcloud.cloud.compute.requests import tag_specification
from dlcloud.model.cluster import CLUSTER_TAG, Leftover
from dlcloud.model.own_images import IMAGE_TAG, OwnImage

OURS = [{"Name": "tag-key", "Values": [IMAGE_TAG]}]
NO_IMAGE = {"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"}
IN_USE = {"InvalidSnapshot.InUse"}
"""Also for a moment after the image of a snapshot is deregistered."""


class Ec2OwnImages:
    """The account's own images in one region that carry dlcloud's tag; `pause` waits so many seconds."""

    def __init__(self, *, clients: Clients, pause: Callable[[float], None]) -> None:
        self._clients = clients
        self._pause = pause

    def create(self, instance_id: str, name: str, tags: Mapping[str, str]) -> str:
        """Create an image of an instance, which EC2 reboots for it, or find the one of that name.

        Source: EC2 API reference, CreateImage.
        """
        with translate_errors(f"creating an image of {instance_id} (ec2:CreateImage)"):
            try:
                answer = self._clients.get("ec2").create_image(
                    InstanceId=instance_id,
                    Name=name,
                    TagSpecifications=[tag_specification(kind, tags) for kind in ("image", "snapshot")],
                )
            except ClientError as error:
                if error_code(error) != "InvalidAMIName.Duplicate":
                    raise
                filters = [*OURS, {"Name": "name", "Values": [name]}]
                earlier = self._clients.get("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
                if not earlier:
                    raise
                return str(earlier[0]["ImageId"])
        return str(answer["ImageId"])

    def find(self, cluster_id: str = "") -> list[OwnImage]:
        """Return the images that a cluster made; all of dlcloud's without `cluster_id`."""
        of_cluster = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster_id]}] if cluster_id else []
        with translate_errors("listing images (ec2:DescribeImages)"):
            images = self._clients.pages(
                "ec2", "describe_images", "Images", Owners=["self"], Filters=[*OURS, *of_cluster]
            )
        return sorted(map(_read, images), key=lambda image: (image.created_at, image.image_id))

    def delete(self, image_ids: Sequence[str]) -> None:
        """Deregister images, then delete their snapshots; no error for one that is gone."""
        images = {image.image_id: image for image in self.find()} if image_ids else {}
        for image_id in image_ids:
            with translate_errors(f"deregistering {image_id} (ec2:DeregisterImage)", ignore=NO_IMAGE):
                self._clients.get("ec2").deregister_image(ImageId=image_id)
            if image_id in images:
                self.delete_snapshots(images[image_id].snapshot_ids)

    def delete_snapshots(self, snapshot_ids: Sequence[str]) -> None:
        """Delete snapshots, of images that are gone; no error for one that is gone itself."""
        for snapshot_id in snapshot_ids:
            with translate_errors(
                f"deleting {snapshot_id} (ec2:DeleteSnapshot)", ignore={"InvalidSnapshot.NotFound"}
            ):
                call = self._clients.get("ec2").delete_snapshot
                retry_codes(
                    call, {"SnapshotId": snapshot_id}, IN_USE, pauses_s=LATE_PAUSES_S, pause=self._pause
                )

    def leftovers(self, kinds: Iterable[str]) -> Iterable[Leftover]:
        """Yield dlcloud's images, and the snapshots of deleted images; `kinds` are those that have tags."""
        tagged_kinds = {"image", "snapshot"}.intersection(kinds)
        images = self.find() if tagged_kinds else []
        for image in images:
            yield Leftover(
                kind="image",
                resource_id=image.image_id,
                cluster_id=image.cluster_id,
                name=image.name,
                region=self._clients.region,
                size_gib=image.size_gib,
                image=image,
            )
        used = {snapshot_id for image in images for snapshot_id in image.snapshot_ids}
        for snapshot in self._snapshots() if "snapshot" in tagged_kinds else ():
            if snapshot["SnapshotId"] not in used:
                tags = _tags(snapshot)
                yield Leftover(
                    kind="snapshot",
                    resource_id=snapshot["SnapshotId"],
                    cluster_id=tags.get(CLUSTER_TAG, ""),
                    name=tags[IMAGE_TAG],
                    region=self._clients.region,
                    size_gib=int(snapshot["VolumeSize"]),
                )

    def _snapshots(self) -> list[dict[str, Any]]:
        with translate_errors("listing snapshots (ec2:DescribeSnapshots)"):
            return self._clients.pages(
                "ec2", "describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=OURS
            )


def _read(answer: Mapping[str, Any]) -> OwnImage:
    volumes = [mapping["Ebs"] for mapping in answer.get("BlockDeviceMappings") or () if mapping.get("Ebs")]
    tags = _tags(answer)
    launched = answer.get("LastLaunchedTime")
    return OwnImage(
        image_id=answer["ImageId"],
        name=tags[IMAGE_TAG],
        state=answer["State"],
        architecture=answer.get("Architecture", ""),
        cluster_id=tags.get(CLUSTER_TAG, ""),
        created_at=datetime.fromisoformat(answer["CreationDate"]),
        size_gib=sum(int(volume.get("VolumeSize") or 0) for volume in volumes),
        snapshot_ids=tuple(volume["SnapshotId"] for volume in volumes if volume.get("SnapshotId")),
        launched_at=datetime.fromisoformat(launched) if launched else None,
    )


def _tags(answer: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in answer.get("Tags") or ()}
