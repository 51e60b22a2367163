"""The trials of an experiment in containers of AWS Batch, whose results come back through a bucket."""

from collections.abc import Sequence
from typing import Any

from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import InstanceType
from dlcloud.recipe.batch import IMAGE, RETRIES, requirements_of
from dlcloud.recipe.batch_array import MOST_ATTEMPTS
from dlcloud.recipe.recipe import Recipe


def refuse_no_batch(recipe: Recipe) -> None:
    """Refuse what AWS Batch cannot run as trials.

    Raises:
        RecipeError: Its trials are not known beforehand, or it has no bucket, or secrets, or data.
    """
    experiment, hint = recipe.experiment, f"dlcloud up {recipe.name}"
    if experiment is None:
        raise RecipeError("--on batch is for a recipe with an experiment", hint)
    if experiment.search is not None:
        raise RecipeError(f"{recipe.name} searches: each trial depends on those before it", hint)
    if recipe.results is None:
        raise RecipeError(
            "--on batch needs a bucket for the results", "results: s3://BUCKET/PREFIX in the recipe"
        )
    if recipe.workload.secrets:
        raise RecipeError("containers of AWS Batch get no secrets from dlcloud", hint)
    if recipe.data:
        raise RecipeError(
            "data: is not brought to containers of AWS Batch", "let the command read it from S3"
        )
    if recipe.keep.instances:
        raise RecipeError("AWS Batch ends its instances itself: none is kept", hint)


def trials_definition(recipe: Recipe, types: Sequence[InstanceType], program: str) -> dict[str, Any]:
    """Return the input of RegisterJobDefinition, without its name and the role.

    Args:
        recipe: With an experiment.
        types: Hardware of its instance types; a container asks for a share of the smallest.
        program: The text of the program that runs one trial.
    """
    share = recipe.experiment.per_instance if recipe.experiment is not None else 1
    return {
        "type": "container",
        "platformCapabilities": ["EC2"],
        "containerProperties": {
            "image": recipe.setup.image or IMAGE,
            "command": ["python3", "-c", program],
            "resourceRequirements": requirements_of(types, share),
        },
        # A trial that fails by itself counts as one; only a lost instance is Batch's to repeat.
        "retryStrategy": {"attempts": MOST_ATTEMPTS, "evaluateOnExit": RETRIES},
        "timeout": {"attemptDurationSeconds": max(60, round(recipe.budget.max_hours * 3600))},
    }


def describe_batch(recipe: Recipe) -> list[str]:
    """Return what a plan states of AWS Batch."""
    market = "SPOT" if "spot" in recipe.instances.market else "EC2 (on-demand)"
    return [
        f"by AWS Batch: one compute environment ({market}), one queue and one array job, removed at the end;",
        "Batch may launch one instance more than the count; trials begin only within max_hours",
        f"results return through {recipe.results}",
        f"containers of {recipe.setup.image or IMAGE}",
        *(["spot only: AWS Batch does not go on to on-demand"] if "then" in recipe.instances.market else []),
    ]
