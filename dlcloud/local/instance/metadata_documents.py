"""The documents of the metadata service that follow from moto's instance.

Source: EC2 user guide, "Instance metadata categories".
"""

from collections.abc import Iterator
from typing import Any


def metadata_documents(instance: Any, public_key: str | None) -> dict[str, str]:  # noqa: ANN401 - moto's object
    """Return the documents below `latest/meta-data`, by path, as the instance is now.

    Args:
        instance: moto's instance.
        public_key: The public key of its key pair, in OpenSSH's form; None without one.
    """
    card = instance.nics[0]
    values = {
        "ami-id": instance.image_id,
        "ami-launch-index": instance.ami_launch_index,
        "ami-manifest-path": "(unknown)",
        "block-device-mapping/ami": instance.root_device_name,
        "block-device-mapping/root": instance.root_device_name,
        "events/maintenance/history": "[]",
        "events/maintenance/scheduled": "[]",
        "hostname": instance.private_dns_name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": instance.private_ip,
        "mac": card.mac_address,
        "placement/availability-zone": instance.availability_zone,
        "placement/availability-zone-id": instance.placement.availability_zone_id,
        "placement/region": instance.region_name,
        "profile": "default-hvm",
        "public-hostname": instance.public_dns_name,
        "public-ipv4": instance.public_ip,
        "reservation-id": instance.reservation_id,
        "security-groups": _lines(group.name for group in instance.security_groups),
        "services/domain": "amazonaws.com.cn" if instance.region_name.startswith("cn-") else "amazonaws.com",
        "services/partition": "aws-cn" if instance.region_name.startswith("cn-") else "aws",
        "system": "nitro",
    }
    if public_key is not None:
        values |= {"public-keys": f"0={instance.key_name}", "public-keys/0/openssh-key": public_key}
    for one in instance.nics.values():
        prefix = f"network/interfaces/macs/{one.mac_address}"
        values |= {f"{prefix}/{name}": value for name, value in _interface(instance, one).items()}
    if instance.metadata_options.instance_metadata_tags == "enabled":
        values |= {f"tags/instance/{tag['key']}": tag["value"] for tag in instance.get_tags()}
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _interface(instance: Any, card: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's objects
    groups = sorted(card.group_set, key=lambda group: str(group.name))
    vpc = instance.ec2_backend.get_vpc(card.subnet.vpc_id)
    addresses = {
        "public-hostname": instance.public_dns_name,
        "public-ipv4s": card.public_ip,
        f"ipv4-associations/{card.public_ip}": card.private_ip_address,
    }
    return {
        "device-number": card.device_index,
        "interface-id": card.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": card.private_ip_address,
        "mac": card.mac_address,
        "owner-id": card.owner_id,
        "security-group-ids": _lines(group.id for group in groups),
        "security-groups": _lines(group.name for group in groups),
        "subnet-id": card.subnet.id,
        "subnet-ipv4-cidr-block": card.subnet.cidr_block,
        "vpc-id": card.subnet.vpc_id,
        "vpc-ipv4-cidr-block": vpc.cidr_block,
        "vpc-ipv4-cidr-blocks": vpc.cidr_block,
        **(addresses if card.public_ip else {}),
    }


def _lines(texts: Iterator[str]) -> str:
    return "\n".join(texts)
