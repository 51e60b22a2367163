"""The machine images that the local EC2 offers, and the SSM parameters that name them."""

from dataclasses import dataclass

_CREATED = "2026-09-01T00:00:00.000Z"
_CANONICAL = "099720109477"
_AMAZON = "137112412989"
# Source: Debian's wiki, Cloud/AmazonEC2Image, read 2026-11.
_DEBIAN = "136693071363"
# Deep Learning AMIs. Source: AWS Deep Learning AMI documentation, read 2026-09.
_DEEP_LEARNING = "898082745236"
_BASE = "Deep Learning Base OSS Nvidia Driver GPU AMI"
_DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver"
_DLAMI_ARM64 = "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver"
# The root snapshot of the Base OSS GPU images, as EC2 names it when it refuses a smaller volume.
_DLAMI_GIB = 75
# Source: published stacks for trn1 and inf2, which give the root volume more than the snapshot's 100 GB.
_NEURON_GIB = 100
_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current"
_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel"


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image, under the same id in every region; `parameters` are the SSM parameters that name it."""

    image_id: str
    name: str
    owner: str
    parameters: tuple[str, ...]
    root_device: str = "/dev/sda1"
    snapshot_gib: int = 8
    architecture: str = "x86_64"

    @property
    def user(self) -> str:
        if self.name.startswith("debian"):
            return "admin"
        is_amazon_linux = self.name.startswith("al2023") or "Amazon Linux" in self.name
        return "ec2-user" if is_amazon_linux else "ubuntu"

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
            "architecture": self.architecture,
            "virtualization_type": "hvm",
            "hypervisor": "xen",
            "image_type": "machine",
            "root_device_type": "ebs",
            "root_device_name": self.root_device,
            "sriov": "simple",
            "creation_date": _CREATED,
        }


IMAGES = (
    LocalImage(
        "ami-0d1c10cd000002404",
        "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260901",
        _CANONICAL,
        (f"{_UBUNTU}/amd64/hvm/ebs-gp3/ami-id", f"{_UBUNTU}/amd64/hvm/ebs-gp2/ami-id"),
    ),
    LocalImage(
        "ami-0d1c10cd000012404",
        "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-arm64-server-20260901",
        _CANONICAL,
        (f"{_UBUNTU}/arm64/hvm/ebs-gp3/ami-id",),
        architecture="arm64",
    ),
    LocalImage(
        "ami-0d1c10cd000002023",
        "al2023-ami-2023.8.20260901.0-kernel-6.1-x86_64",
        _AMAZON,
        (f"{_AMAZON_LINUX}-default-x86_64", f"{_AMAZON_LINUX}-6.1-x86_64"),
        "/dev/xvda",
    ),
    LocalImage(
        "ami-0d1c10cd000001204",
        "debian-12-amd64-20260901-2200",
        _DEBIAN,
        ("/aws/service/debian/release/12/latest/amd64",),
        "/dev/xvda",
    ),
    # The documentation and the naming rule disagree on this parameter: both exist.
    LocalImage(
        "ami-0d1c10cd000002201",
        f"{_BASE} (Ubuntu 22.04) 20260901",
        _DEEP_LEARNING,
        (f"{_DLAMI}-gpu-ubuntu-22.04/latest/ami-id", f"{_DLAMI}-ubuntu-22.04/latest/ami-id"),
        snapshot_gib=_DLAMI_GIB,
    ),
    LocalImage(
        "ami-0d1c10cd000002401",
        f"{_BASE} (Ubuntu 24.04) 20260901",
        _DEEP_LEARNING,
        (f"{_DLAMI}-gpu-ubuntu-24.04/latest/ami-id",),
        snapshot_gib=_DLAMI_GIB,
    ),
    LocalImage(
        "ami-0d1c10cd000012401",
        "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260901",
        _DEEP_LEARNING,
        (f"{_DLAMI_ARM64}-gpu-ubuntu-24.04/latest/ami-id",),
        snapshot_gib=_DLAMI_GIB,
        architecture="arm64",
    ),
    LocalImage(
        "ami-0d1c10cd000002402",
        "Deep Learning AMI Neuron (Ubuntu 24.04) 20260901",
        _DEEP_LEARNING,
        ("/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id",),
        snapshot_gib=_NEURON_GIB,
    ),
    LocalImage(
        "ami-0d1c10cd000002301",
        f"{_BASE} (Amazon Linux 2023) 20260901",
        _DEEP_LEARNING,
        (f"{_DLAMI}-gpu-amazon-linux-2023/latest/ami-id",),
        "/dev/xvda",
        _DLAMI_GIB,
    ),
)


def default_user(image_id: str) -> str:
    """Return the user to whom an image's first boot gives the keys; that of Ubuntu's images if unknown."""
    return next((image.user for image in IMAGES if image.image_id == image_id), "ubuntu")


def snapshot_gib(image_id: str) -> int:
    """Return the size of an image's root snapshot; 8 GiB for one that was registered here."""
    return next((image.snapshot_gib for image in IMAGES if image.image_id == image_id), 8)


def parameters() -> dict[str, str]:
    """Return the image id by the name of each SSM parameter."""
    return {name: image.image_id for image in IMAGES for name in image.parameters}
