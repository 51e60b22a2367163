"""What a recipe runs, in words."""

from dlcloud.recipe.recipe import Recipe


def describe_workload(recipe: Recipe) -> str:
    """Return what runs, with the number of runs of a command: each is a whole one, and may be long."""
    workload = recipe.workload
    if workload.benchmark or workload.elastic is not None:
        return workload.benchmark or f"the command of {recipe.name}"
    if recipe.experiment is not None:
        return f"{recipe.experiment.count} trials of the command of {recipe.name}"
    count = workload.repeats * max(1, len(workload.settings))
    of_settings = (
        f", {workload.repeats} of each of {len(workload.settings)} settings"
        if count > workload.repeats
        else ""
    )
    runs = "1 run" if count == 1 else f"{count} runs"
    warm_up = "no warm-up" if workload.repeats == 1 else "warm-up apart"
    return f"the command of {recipe.name}: {runs}{of_settings} (workload.repeats), {warm_up}"
