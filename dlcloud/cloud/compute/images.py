"""Machine images: the one that a recipe names, and those that `dlcloud image` makes.

`Images.resolve` answers for each plan what `instances.image` means; `Ec2OwnImages` makes, lists and deletes
images with dlcloud's tag, whose snapshots are billed until they are deleted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.answers import Cache, KeptAnswers
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import LATE_PAUSES_S, error_code, retry_codes, translate_errors
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.cloud.compute.requests import tag_specification
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import AVAILABLE, CLUSTER_TAG, IMAGE_TAG, Leftover, OwnImage, image_name
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import ARM64, X86_64, Image

_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
UBUNTU = {X86_64: _UBUNTU.format("amd64"), ARM64: _UBUNTU.format("arm64")}
"""Ubuntu 24.04 by architecture.

Source: Ubuntu on AWS documentation, "Find Ubuntu images with SSM", read 2026-09.
"""
_DEEP_LEARNING = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver{}-ubuntu-24.04/latest/ami-id"
DEEP_LEARNING = {
    architecture: tuple(_DEEP_LEARNING.format(architecture, gpu) for gpu in ("-gpu", ""))
    for architecture in (X86_64, ARM64)
}
"""The Deep Learning AMI with NVIDIA's open driver by architecture; the ARM64 one drives g5g.

Source: AWS Deep Learning AMI release notes, read 2026-09 (ARM64: those of 2026-09-18); documentation and
naming rule disagree on `-gpu`.
"""
DEEP_LEARNING_OWNER = "898082745236"
DEEP_LEARNING_NAME = {
    X86_64: "Deep Learning Base*GPU AMI (Ubuntu 24.04)*",
    ARM64: "Deep Learning ARM64 Base*GPU AMI (Ubuntu 24.04)*",
}
UBUNTU_OWNERS = {"aws": "099720109477", "aws-cn": "837727238323", "aws-us-gov": "513442679011"}
UBUNTU_NAME = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{}-server-*"
"""Of regions without Canonical's parameter. Source: Ubuntu on AWS documentation, "Find images by the CLI"."""
UBUNTU_ROOT_DEVICE = "/dev/sda1"
AUTO = "auto"
NAME_IMAGE = "name an ami-… in instances.image"
OURS = [{"Name": "tag-key", "Values": [IMAGE_TAG]}]
NO_IMAGE = {"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"}
IN_USE = {"InvalidSnapshot.InUse"}
"""Also for a moment after the image of a snapshot is deregistered."""


class Images:
    """The machine images of one region.

    Args:
        clients: The region's clients.
        cache: Keeps descriptions of images for a day, which never change; None asks EC2 each time.
        clock: Dates descriptions.
    """

    def __init__(self, *, clients: Clients, cache: Cache | None, clock: Clock) -> None:
        self._clients = clients
        self._kept = KeptAnswers(clients=clients, cache=cache, clock=clock)

    def resolve(self, image: str, *, gpu: bool, architecture: str = X86_64) -> Image:
        """Return the image that `ami-…`, an SSM path or `auto` names.

        `auto` is Ubuntu, or the Deep Learning AMI for an NVIDIA GPU. An architecture that has neither, as a
        Mac's, gets that of x86_64: the plan refuses what does not match.

        Raises:
            CloudError: There is no such image in the region.
        """
        clients = self._clients
        if image.startswith("ami-"):
            return _describe(clients, image)
        if image.startswith(image_name("")):
            return _newest_own(clients, image)
        names = _parameters(image, gpu=gpu, architecture=architecture)
        image_id, name = _parameter(clients, names)
        if image_id:
            described = self._describe_once(image_id)
            answer = described if image == name else replace(described, name=name)
            self._kept.put(f"image of {names[0]}", asdict(answer))
            return answer
        if image == names[0]:
            raise CloudError(f"image: there is no SSM parameter {image} in {clients.region}", NAME_IMAGE)
        if gpu:
            chosen = architecture if architecture in UBUNTU else X86_64
            return _newest(
                clients, DEEP_LEARNING_OWNER, DEEP_LEARNING_NAME[chosen], f"Deep Learning AMI for {chosen}"
            )
        return _newest(
            clients,
            UBUNTU_OWNERS.get(partition_of(clients.region).name, UBUNTU_OWNERS["aws"]),
            UBUNTU_NAME.format("arm64" if architecture == ARM64 else "amd64"),
            f"Ubuntu 24.04 ({names[0]})",
        )

    def last(self, image: str, *, gpu: bool, architecture: str = X86_64) -> Image | None:
        """Return what SSM named within the last day, without a request; see `resolve`."""
        kept = self._kept.get(f"image of {_parameters(image, gpu=gpu, architecture=architecture)[0]}")
        return None if kept is None else Image(**kept)

    def _describe_once(self, image_id: str) -> Image:
        """Return the description of an image that SSM names: from the cache, or of EC2."""
        kept = self._kept.get(f"image {image_id}")
        if kept is not None:
            return Image(**kept)
        image = _describe(self._clients, image_id)
        self._kept.put(f"image {image_id}", asdict(image))
        return image


def _parameters(image: str, *, gpu: bool, architecture: str) -> tuple[str, ...]:
    """Return the SSM parameters of an image, the first that exists counts: itself unless it is `auto`."""
    if image != AUTO:
        return (image,)
    architecture = architecture if architecture in UBUNTU else X86_64
    return DEEP_LEARNING[architecture] if gpu else (UBUNTU[architecture],)


def _parameter(clients: Clients, names: tuple[str, ...]) -> tuple[str, str]:
    """Return the value and the name of the first parameter that exists, or two empty texts."""
    with translate_errors("looking up the machine image (ssm:GetParameters)"):
        answer = clients.get("ssm").get_parameters(Names=list(names))
    values = {parameter["Name"]: parameter["Value"] for parameter in answer["Parameters"]}
    return next(((values[name], name) for name in names if name in values), ("", ""))


def _describe(clients: Clients, image_id: str) -> Image:
    with translate_errors(f"looking up image {image_id} (ec2:DescribeImages)"):
        images = clients.get("ec2").describe_images(ImageIds=[image_id])["Images"]
    if not images:
        raise CloudError(
            f"image {image_id} does not exist in {clients.region}, or is not shared with this account"
        )
    return _image(images[0])


def _newest_own(clients: Clients, name: str) -> Image:
    """Return the newest image that `dlcloud image` made under a name; of no other account."""
    filters = [{"Name": f"tag:{IMAGE_TAG}", "Values": [name]}, {"Name": "state", "Values": [AVAILABLE]}]
    with translate_errors(f"looking up image {name} (ec2:DescribeImages)"):
        images = clients.get("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
    if not images:
        recipe = name.removeprefix(image_name(""))
        raise CloudError(
            f"image {name} does not exist in {clients.region}",
            f"dlcloud image RECIPE, of the recipe {recipe}",
        )
    return _image(max(images, key=lambda image: str(image["CreationDate"])))


def _newest(clients: Clients, owner: str, name: str, subject: str) -> Image:
    """Return the newest public image of an owner, for a region without its parameter."""
    with translate_errors(f"looking up the {subject} (ec2:DescribeImages)"):
        images = clients.get("ec2").describe_images(
            Owners=[owner], Filters=[{"Name": "name", "Values": [name]}]
        )["Images"]
    if not images:
        raise CloudError(f"image: no {subject} was found in {clients.region}", NAME_IMAGE)
    return _image(max(images, key=lambda image: str(image["CreationDate"])))


def _image(answer: dict[str, Any]) -> Image:
    root_device = answer.get("RootDeviceName", UBUNTU_ROOT_DEVICE)
    volumes = {
        mapping.get("DeviceName"): mapping.get("Ebs") or {}
        for mapping in answer.get("BlockDeviceMappings") or ()
    }
    return Image(
        image_id=answer["ImageId"],
        name=answer.get("Name", ""),
        root_device=root_device,
        snapshot_gib=int(volumes.get(root_device, {}).get("VolumeSize") or 0),
        architecture=answer.get("Architecture", ""),
        snapshot_ids=[volume["SnapshotId"] for volume in volumes.values() if volume.get("SnapshotId")],
        encrypted=any(bool(volume.get("Encrypted")) for volume in volumes.values()),
    )


class Ec2OwnImages:
    """The account's own images in one region that carry dlcloud's tag; `pause` waits some seconds."""

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
