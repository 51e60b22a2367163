"""Refuse a launch that EC2 would refuse, and complete the block devices of one that it would take.

RunInstances and CreateFleet call the same checks, before anything is created: the image with the type, user
data, the network interfaces, the profile, spot options and the Free plan. Each raises EC2's code; of texts
marked [from memory] the words may differ.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from dlcloud.local.capacity.pools import NOT_ELIGIBLE
from dlcloud.local.instance.machine_images import snapshot_gib
from dlcloud.model.instance import is_burstable

# Before it is encoded. Source: EC2 user guide, "Run commands when you launch an EC2 instance".
_USER_DATA_BYTES = 16384
_DEFAULT_PARTITION = "aws"
_INSTANCE_ID = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")
_IMAGE_ID = re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})")


def refuse(code: str, message: str) -> EC2ClientError:
    return EC2ClientError(code, message)


def check_instance_ids(instance_ids: Iterable[str]) -> None:
    """Refuse what cannot be an instance's id.

    Raises:
        EC2ClientError: InvalidInstanceID.Malformed. Source: EC2 API reference, "Error codes".
    """
    for instance_id in instance_ids:
        if not _INSTANCE_ID.fullmatch(instance_id):
            raise refuse("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')


def check_launch(backend: Any, request: Mapping[str, Any], instance_type: str) -> Any:  # noqa: ANN401 - moto's objects
    """Refuse a launch for its image, its user data, its type or its EFA; return its image.

    Args:
        backend: moto's EC2 of a region.
        request: CreditSpecification, ImageId, NetworkInterfaces and UserData of the launch.
        instance_type: The type to launch.

    Raises:
        EC2ClientError: With EC2's code.
    """
    if request.get("CreditSpecification") and not is_burstable(instance_type):
        # Source: terraform-provider-aws, issues 5067 and 5081, which have code and text.
        raise refuse(
            "InstanceCreditSpecification.NotSupported",
            f"The {instance_type} instance type does not support T2 Unlimited.",
        )
    _check_user_data(request.get("UserData"))
    _check_interfaces(request.get("NetworkInterfaces") or (), instance_type)
    image_id = request.get("ImageId")
    if not image_id:
        raise refuse("MissingParameter", "The request must contain the parameter ImageId")
    if not _IMAGE_ID.fullmatch(image_id):
        raise refuse("InvalidAMIID.Malformed", f'Invalid id: "{image_id}"')
    (image,) = backend.describe_images(ami_ids=[image_id]) or [None]
    if image is None or image.state != "available":
        # Source: EC2 API reference, "Error codes": a deregistered image, or one that is pending.
        raise refuse("InvalidAMIID.Unavailable", f"The image ID '{image_id}' is not available.")
    supported = INSTANCE_TYPES.get(instance_type, {}).get("ProcessorInfo", {}).get("SupportedArchitectures")
    architecture = image.architecture or "x86_64"
    if supported and architecture not in supported:
        raise refuse(
            "InvalidParameterValue",
            f"The architecture '{','.join(supported)}' of the specified instance type does not match the "
            f"architecture '{architecture}' of the specified AMI. Specify an instance type and an AMI "
            "that have matching architectures, and try again. You can use 'describe-instance-types' or "
            "'describe-images' to discover the architecture of the instance type or AMI.",
        )
    return image


def check_free_tier(instance_type: str) -> None:
    """Refuse a type that an account of the Free plan may not launch.

    Raises:
        EC2ClientError: InvalidParameterCombination. Source: splunk/attack_range, issue 1302.
    """
    if not INSTANCE_TYPES.get(instance_type, {}).get("FreeTierEligible"):
        raise refuse("InvalidParameterCombination", NOT_ELIGIBLE)


def check_profile(account: str, profile: Mapping[str, str] | None) -> None:
    """Refuse an instance profile that does not exist.

    Raises:
        EC2ClientError: InvalidParameterValue.
    """
    if not profile:
        return
    arn, name = profile.get("Arn"), profile.get("Name")
    try:
        filter_iam_instance_profiles(account, _DEFAULT_PARTITION, arn, name)
    except NotFoundException as error:
        key, word = ("arn", "ARN") if arn else ("name", "name")
        message = (
            f"Value ({arn or name}) for parameter iamInstanceProfile.{key} is invalid. "
            f"Invalid IAM Instance Profile {word}"
        )
        raise refuse("InvalidParameterValue", message) from error


def check_spot_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a spot instance that EC2 refuses, or that the local EC2 does not carry out.

    Raises:
        EC2ClientError: With EC2's code.
    """
    if (options.get("InstanceInterruptionBehavior") or "terminate") != "terminate":
        raise refuse("UnsupportedOperation", "The local EC2 terminates interrupted Spot Instances.")
    if (options.get("SpotInstanceType") or "one-time") != "one-time":
        raise refuse("UnsupportedOperation", "The local EC2 has no persistent Spot requests.")
    try:
        is_positive = Decimal(str(options.get("MaxPrice") or 1)) > 0
    except InvalidOperation:
        is_positive = False
    if not is_positive:
        # [from memory]: EC2's code; its text is another.
        raise refuse("InvalidParameterValue", f"{options['MaxPrice']} is not a maximum price.")


def block_devices(image: Any, requested: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:  # noqa: ANN401 - moto's object
    """Return the volumes of a launch: the image's root, as the request changes it, and the request's own.

    Instance store volumes ("ephemeral0") are left out, as on types that have none. A volume made at the
    launch ends with its instance unless the request keeps it.
    Source: EC2 user guide, "Preserve data when an instance is terminated".

    Raises:
        EC2ClientError: A volume has no size, or is smaller than the image's snapshot.
    """
    root = root_device(image)
    devices: dict[str, dict[str, Any]] = {root["DeviceName"]: dict(root["Ebs"])}
    for mapping in requested:
        name = mapping.get("DeviceName")
        if not name:
            raise refuse("MissingParameter", "The request must contain the parameter deviceName")
        if "NoDevice" in mapping:
            devices.pop(name, None)
        elif not mapping.get("VirtualName"):
            devices[name] = _with_defaults(devices.get(name, {}), mapping.get("Ebs") or {})
    return [{"DeviceName": name, "Ebs": device} for name, device in devices.items()]


def root_device(image: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's object
    """Return the root volume of an image as a block device mapping."""
    return {
        "DeviceName": image.root_device_name,
        "Ebs": {
            "DeleteOnTermination": True,
            "Encrypted": image.ebs_snapshot.encrypted,
            "SnapshotId": image.ebs_snapshot.id,
            # Of an image that was made here, `root_gib`.
            "VolumeSize": getattr(image, "root_gib", None) or snapshot_gib(image.id),
            "VolumeType": "gp3",
        },
    }


def _with_defaults(device: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in requested.items() if value is not None}
    merged = {"DeleteOnTermination": True, "Encrypted": False, "VolumeType": "gp3", **device, **given}
    if not merged.get("VolumeSize") and not merged.get("SnapshotId"):
        raise refuse("MissingParameter", "The request must contain the parameter size or snapshotId")
    size, least = merged.get("VolumeSize"), device.get("VolumeSize")
    if size and least and int(size) < int(least):
        # [from memory]: EC2's code and text.
        message = (
            f"Volume of size {size}GB is smaller than snapshot '{device['SnapshotId']}', "
            f"expect size >= {least}GB"
        )
        raise refuse("InvalidBlockDeviceMapping", message)
    return merged


def _check_interfaces(interfaces: Sequence[Mapping[str, Any]], instance_type: str) -> None:
    """Refuse network interfaces that the type's network cards do not take, and addresses with several.

    Source: EC2 user guide, "Elastic Fabric Adapter for AI/ML and HPC workloads" and "Network cards"; EC2 API
    reference, EfaInfo and NetworkCardInfo; aws-parallelcluster, issue 7143 and pull request 6930;
    karpenter-provider-aws, pull request 5666.
    """
    info = INSTANCE_TYPES.get(instance_type, {}).get("NetworkInfo", {})
    count = sum(str(interface.get("InterfaceType") or "").startswith("efa") for interface in interfaces)
    if count and not info.get("EfaSupported"):
        # [from memory]: EC2's code; its text is another.
        raise refuse("InvalidParameterCombination", f"EFA interfaces are not supported on {instance_type}.")
    most = info.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1)
    if count > most:
        # [from memory]: EC2's code; its text is another.
        raise refuse("AttachmentLimitExceeded", f"{instance_type} has at most {most} EFA interface(s).")
    if len(interfaces) > 1 and any(_is_true(one.get("AssociatePublicIpAddress")) for one in interfaces):
        message = "A public IP address is assigned to an instance with one network interface only."
        raise refuse("InvalidParameterCombination", message)
    cards = {card["NetworkCardIndex"]: card for card in info.get("NetworkCards", ())}
    for interface in interfaces if cards else ():
        _check_card(interface, cards, instance_type)


def _check_card(interface: Mapping[str, Any], cards: Mapping[int, Any], instance_type: str) -> None:
    """Refuse an interface that its network card does not take. The codes and texts are [from memory]."""
    index, device = int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0)
    kind = str(interface.get("InterfaceType") or "interface")
    card = cards.get(index)
    place = f"network card {index} of {instance_type}"
    if card is None:
        raise refuse("InvalidParameterValue", f"There is no {place}.")
    if kind not in card.get("InterfaceTypes", (kind,)) or (kind == "efa-only" and index == device == 0):
        raise refuse("InvalidParameterCombination", f"The {place} takes no {kind} at device index {device}.")
    if device >= card["MaximumNetworkInterfaces"]:
        message = f"Device index {device} exceeds the number of interfaces of {place}."
        raise refuse("AttachmentLimitExceeded", message)


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _check_user_data(text: object) -> None:
    """Check user data in base64: a text, or moto's type of a launch template's."""
    if not text:
        return
    try:
        content = base64.b64decode(str(text), validate=True)
    except binascii.Error as error:
        # [from memory]: EC2's text.
        message = "Invalid BASE64 encoding of user data."
        raise refuse("InvalidParameterValue", message) from error
    if len(content) > _USER_DATA_BYTES:
        raise refuse("InvalidParameterValue", f"User data is limited to {_USER_DATA_BYTES} bytes")
