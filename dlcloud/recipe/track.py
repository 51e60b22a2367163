"""`track`: the servers that results are sent to while they arrive."""

from typing import Annotated

from pydantic import Field

from dlcloud.recipe.part import Form, Part

ServerUrl = Annotated[
    str, Form(r"https?://[^\s/@]+(/[^\s@]*)?", "an address that begins with http:// or https://")
]


class Track(Part):
    """Servers that runs are recorded on."""

    mlflow: ServerUrl = Field(description="An MLflow server; its credentials are in MLflow's own variables.")
    experiment: str = Field(
        default="", max_length=200, description="The experiment on the server; by default the recipe's name."
    )
