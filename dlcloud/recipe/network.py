"""`network`: which VPC, subnets and groups instances are launched into, and how they are reached."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dlcloud.model.remote import Access
from dlcloud.recipe.values import Form, Part, Texts

_TAG = r"tag:[^=]{1,128}=.{0,256}"
Vpc = Annotated[str, Form(rf"(vpc-[0-9a-f]+|{_TAG})?", "vpc-… or tag:KEY=VALUE")]


class Bastion(Part):
    """Your own host, through which SSH reaches the instances."""

    host: str = Field(min_length=1, description="Name or address.")
    port: int = Field(default=22, ge=1, le=65535, description="Port of its SSH server.")
    user: str = Field(default="ubuntu", description="The login user there.")
    key: str = Field(default="~/.ssh/id_ed25519", description="The file of your private key for it.")
    known_hosts: str = Field(
        default="~/.ssh/known_hosts", description="The file with its host key; another key is refused."
    )


class Network(Part):
    """The network of the instances; by default the default VPC, with public addresses."""

    vpc: Vpc = Field(
        default="", description="vpc-…, or tag:KEY=VALUE of one; by default that of the subnets."
    )
    subnets: Texts = Field(
        default_factory=list,
        description="subnet-…, or tag:KEY=VALUE of some; by default all subnets of the VPC.",
    )
    security_groups: Texts = Field(
        default_factory=list, description="sg-…, or tag:KEY=VALUE: your own groups in addition to dlcloud's."
    )
    public_ip: bool | None = Field(
        default=None, description="Instances have a public address; by default as access needs it."
    )
    access: Access = Field(
        default=Access.PUBLIC,
        description="Way by which SSH reaches instances: a public address, an EC2 Instance Connect "
        "Endpoint, Session Manager, or a bastion.",
    )
    bastion: Bastion | None = Field(default=None, description="The bastion of `access: bastion`.")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if (self.bastion is not None) != (self.access is Access.BASTION):
            raise ValueError("bastion and access: bastion belong together")
        if self.access is Access.PUBLIC and self.public_ip is False:
            ways = ", ".join(way for way in Access if way is not Access.PUBLIC)
            raise ValueError(f"without public_ip, access is one of {ways}")
        for names, prefix in ((self.subnets, "subnet-"), (self.security_groups, "sg-")):
            for name in names:
                if not name.startswith(prefix) and not (name.startswith("tag:") and "=" in name):
                    raise ValueError(f"{name!r} is neither {prefix}… nor tag:KEY=VALUE")
        return self

    @property
    def is_private(self) -> bool:
        """True if SSH goes to private addresses."""
        return self.access is not Access.PUBLIC

    @property
    def is_chosen(self) -> bool:
        """True if it names a VPC or subnets; else instances are in the default VPC."""
        return bool(self.vpc or self.subnets)


def read_network(text: str) -> Network:
    """Return the network that a cluster was stored with, as JSON; the default one if it is empty."""
    return Network.model_validate_json(text) if text else Network()
