"""`track`: the servers that results are sent to while they arrive."""

from typing import Annotated

from pydantic import Field, StringConstraints

from dlcloud.recipe.part import Part

ServerUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")]


class Track(Part):
    """Servers that runs are recorded on."""

    mlflow: ServerUrl = Field(description="An MLflow server; its credentials are in MLflow's own variables.")
    experiment: str = Field(
        default="", max_length=200, description="The experiment on the server; by default the recipe's name."
    )
