"""`instances.reservations`: capacity that the account has reserved, and takes before it pays for more."""

import re
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from dlcloud.recipe.part import Part, Texts

OPEN, NONE = "open", "none"
_NAME = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})|tag:[^=]{1,128}=.{0,256}|open|none")


class Reservations(Part):
    """Capacity Reservations and Capacity Blocks whose idle instances are taken first."""

    use: Texts = Field(
        description="cr-…, tag:KEY=VALUE, or open: every reservation that takes instances which do not name "
        "it. none: run in no reservation, although EC2 would let the instances into open ones.",
    )
    keep_free: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="So many reserved instances stay idle for other users of the reservations; an elastic "
        "training gives instances back while fewer are idle.",
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.use:
            raise ValueError("names no reservation")
        for name in self.use:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is neither cr-… nor tag:KEY=VALUE, open or none")
        if NONE in self.use and (len(self.use) > 1 or self.keep_free):
            raise ValueError("none stands alone: with it no reservation is used")
        if len(set(self.use)) < len(self.use):
            raise ValueError("a reservation is named twice")
        return self

    @property
    def ids(self) -> list[str]:
        """The reservations that are named by their ids."""
        return [name for name in self.use if name.startswith("cr-")]

    @property
    def is_used(self) -> bool:
        """True unless it is `none`."""
        return self.use != [NONE]


def _as_mapping(value: object) -> object:
    """Return names alone as what they are short for."""
    return {"use": value} if isinstance(value, str | list) else value


AnyReservations = Annotated[
    Reservations, BeforeValidator(_as_mapping, json_schema_input_type=Reservations | list[str] | str)
]
RESERVATIONS: Any = Field(
    default=None,
    description="Idle instances of these Capacity Reservations and Capacity Blocks come before every market, "
    "at a marginal price of 0: open, none, cr-…, tag:KEY=VALUE, or a list; {use: …, keep_free: 1} keeps some "
    "for others. By default EC2 lets on-demand instances into open ones, at the on-demand price here.",
)
