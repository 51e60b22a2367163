"""Resolve the machine image that a recipe names."""

from dataclasses import asdict, replace
from typing import Any

from dlcloud.cloud.api.answers import Cache, KeptAnswers
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.model.clock import Clock
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import ARM64, X86_64, Image
from dlcloud.model.own_images import AVAILABLE, IMAGE_TAG, image_name

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
UBUNTU_ROOT_DEVICE = "/dev/sda1"
AUTO = "auto"
NAME_IMAGE = "name an ami-… in instances.image"


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
            return _newest_deep_learning(clients, architecture if architecture in UBUNTU else X86_64)
        raise CloudError(f"image: Ubuntu 24.04 was not found in {clients.region} ({names[0]})", NAME_IMAGE)

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


def _newest_deep_learning(clients: Clients, architecture: str) -> Image:
    with translate_errors("looking up the Deep Learning AMI (ec2:DescribeImages)"):
        images = clients.get("ec2").describe_images(
            Owners=[DEEP_LEARNING_OWNER],
            Filters=[{"Name": "name", "Values": [DEEP_LEARNING_NAME[architecture]]}],
        )["Images"]
    if not images:
        raise CloudError(
            f"image: no Deep Learning AMI for {architecture} was found in {clients.region}", NAME_IMAGE
        )
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
    )
