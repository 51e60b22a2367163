"""The trials of an experiment as an array job of AWS Batch: child N runs trial N + 1.

Source: AWS Batch User Guide, "Array jobs": AWS_BATCH_JOB_ARRAY_INDEX counts from 0; an array has 2 to 10,000
children.
"""

import json
import shlex
from collections.abc import Mapping

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.experiment import VALUES_FILE, Experiment, trial_variables, trial_words
from dlcloud.recipe.recipe import Recipe

SMALLEST = 2
MOST_ATTEMPTS = 10
"""Source: AWS Batch API reference, RetryStrategy."""
LONGEST_SCRIPT = 20_000
"""Characters of all trials' values: a task definition of ECS, which Batch makes, has at most 64 KiB.

Source: Amazon ECS service quotas, "Task definition size limit".
"""


def refuse_no_array(recipe: Recipe) -> None:
    """Refuse an experiment that Batch cannot run as an array.

    Raises:
        RecipeError: A search, a single trial, or more values than a job definition has room for.
    """
    experiment, hint = recipe.experiment, f"dlcloud up {recipe.name}"
    if experiment is None:
        return
    if experiment.search is not None:
        raise RecipeError(f"{recipe.name} searches: each trial depends on those before it", hint)
    if experiment.count < SMALLEST:
        raise RecipeError(f"{recipe.name} has one trial; an array job has at least {SMALLEST}", hint)
    if len(choose_trial(experiment)) > LONGEST_SCRIPT:
        message = f"the values of {experiment.count} trials have no room in a job definition"
        raise RecipeError(message, f"split the experiment, or {hint}")


def choose_trial(experiment: Experiment) -> str:
    """Return the lines of a script that set variables, arguments and the file of a child's trial."""
    cases = [
        _case(index, values, has_arguments=experiment.arguments)
        for index, values in enumerate(experiment.trials())
    ]
    return "\n".join(
        [
            'case "${AWS_BATCH_JOB_ARRAY_INDEX:?is set by an array job}" in',
            *cases,
            '*) echo "no trial $AWS_BATCH_JOB_ARRAY_INDEX" >&2; exit 64;;',
            "esac",
            "",
        ]
    )


def _case(index: int, values: Mapping[str, str], *, has_arguments: bool) -> str:
    """Return what one child does; names of variables are such by the recipe's rules."""
    variables = trial_variables(values, index + 1)
    exports = shlex.join(["export", *(f"{name}={value}" for name, value in variables.items())])
    words = shlex.join(["set", "--", *(trial_words(values) if has_arguments else [])])
    document = shlex.quote(json.dumps(dict(values), sort_keys=True))
    return f"{index}) {exports}; {words}; printf %s {document} > {VALUES_FILE};;"
