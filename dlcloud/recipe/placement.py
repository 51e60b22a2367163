"""`instances.placement_group` and `instances.efa`: instances near each other, with a fast network."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

PlacementGroupName = Annotated[
    str, StringConstraints(pattern=r"^([\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?)?$")
]
"""Source: EC2 API reference, CreatePlacementGroup: up to 255 ASCII characters."""
PLACEMENT_GROUP: Any = Field(
    default="",
    description="cluster: the instances are near each other in one zone, in a placement group that dlcloud "
    "makes and deletes; or the NAME of one of your own.",
)
EFA: Any = Field(
    default=False,
    description="Instances have an Elastic Fabric Adapter; refused before the launch for types without one.",
)
