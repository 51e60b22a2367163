"""The machine images that the local EC2 offers, and the SSM parameters that name them."""

from dataclasses import dataclass

_CREATED = "2026-09-01T00:00:00.000Z"
_CANONICAL = "099720109477"
_AMAZON = "137112412989"
# Deep Learning AMIs. Source: AWS Deep Learning AMI documentation, read 2026-09.
_DEEP_LEARNING = "898082745236"
_DLAMI = "/aws/service/deeplearning/ami/x86_64"
_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image, under the same id in every region."""

    image_id: str
    name: str
    owner: str
    parameters: tuple[str, ...]
    root_device: str = "/dev/sda1"

    def as_moto(self) -> dict[str, object]:
        """Return the image as an entry of MOTO_AMIS_PATH."""
        return {
            "ami_id": self.image_id,
            "name": self.name,
            "description": f"{self.name} (local cloud: runs as processes of this machine)",
            "owner_id": self.owner,
            "image_location": f"amazon/{self.name}",
            "public": True,
            "state": "available",
            "architecture": "x86_64",
            "virtualization_type": "hvm",
            "hypervisor": "xen",
            "image_type": "machine",
            "root_device_type": "ebs",
            "root_device_name": self.root_device,
            "sriov": "simple",
            "creation_date": _CREATED,
        }


def _deep_learning(suffix: str, title: str, *names: str, root_device: str = "/dev/sda1") -> Image:
    parameters = tuple(f"{_DLAMI}/{name}/latest/ami-id" for name in names)
    return Image(
        image_id=f"ami-0d1c10cd00000{suffix}",
        name=f"{title} 20260901",
        owner=_DEEP_LEARNING,
        parameters=parameters,
        root_device=root_device,
    )


IMAGES = (
    Image(
        image_id="ami-0d1c10cd000002404",
        name="ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260901",
        owner=_CANONICAL,
        parameters=(f"{_UBUNTU}/ebs-gp3/ami-id", f"{_UBUNTU}/ebs-gp2/ami-id"),
    ),
    Image(
        image_id="ami-0d1c10cd000002023",
        name="al2023-ami-2023.8.20260901.0-kernel-6.1-x86_64",
        owner=_AMAZON,
        parameters=(
            "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
            "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64",
        ),
        root_device="/dev/xvda",
    ),
    # The documentation and the naming rule disagree on this parameter: both exist.
    _deep_learning(
        "2201",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)",
        "base-oss-nvidia-driver-gpu-ubuntu-22.04",
        "base-oss-nvidia-driver-ubuntu-22.04",
    ),
    _deep_learning(
        "2401",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)",
        "base-oss-nvidia-driver-gpu-ubuntu-24.04",
    ),
    _deep_learning(
        "2301",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023)",
        "base-oss-nvidia-driver-gpu-amazon-linux-2023",
        root_device="/dev/xvda",
    ),
)


def parameters() -> dict[str, str]:
    """Return the image id by the name of each SSM parameter."""
    return {name: image.image_id for image in IMAGES for name in image.parameters}
