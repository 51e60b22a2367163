"""The incidents of a rehearsal, as a recipe names them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dlcloud.recipe.part import Part


class Incident(Part):
    """One event of a rehearsal: an interruption, the loss of an instance, or a change of capacity."""

    after: float = Field(ge=0, le=86400, description="Seconds after the first step.")
    interrupt: int | None = Field(
        default=None,
        ge=0,
        description="The n-th instance that is not the coordinator receives an interruption notice.",
    )
    grace: float = Field(default=120, gt=0, le=600, description="Seconds from that notice to the end.")
    kill: Literal["coordinator"] | Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="The n-th instance, or the coordinator, ends at once, without a notice."
    )
    capacity: int | None = Field(
        default=None,
        ge=0,
        description="The most instances of each of the recipe's types that may run at once.",
    )

    @model_validator(mode="after")
    def _one_incident(self) -> Self:
        if sum(value is not None for value in (self.interrupt, self.kill, self.capacity)) != 1:
            raise ValueError("name one of interrupt, kill, capacity")
        return self
