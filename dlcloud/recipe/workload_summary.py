"""What a recipe runs, in words."""

from dlcloud.recipe.recipe import Recipe


def describe_workload(recipe: Recipe) -> str:
    """Return what runs, with the number of runs of a command: each is a whole one, and may be long."""
    workload = recipe.workload
    if workload.benchmark or workload.elastic is not None:
        return workload.benchmark or f"the command of {recipe.name}"
    if recipe.experiment is not None:
        return f"{recipe.experiment.count} trials of the command of {recipe.name}"
    settings, repeats = max(1, len(workload.settings)), workload.repeats
    of_each = f" of each of {settings} settings" if settings > 1 else ""
    if repeats == 1:
        return f"runs {_program(recipe)} once" if settings == 1 else f"runs {_program(recipe)} once{of_each}"
    if workload.throughput or workload.json_field or workload.reported:
        # What it reports first in each run is its warm-up.
        return f"runs {_program(recipe)} {repeats * settings} times: {repeats} measurements{of_each}"
    runs = (repeats + 1) * settings
    return f"runs {_program(recipe)} {runs} times: {repeats} measurements and a warm-up{of_each}"


def _program(recipe: Recipe) -> str:
    """Return the script that a command runs, such as train.py; the command of the recipe if it names none."""
    words = (recipe.workload.command or "").split()
    named = [word for word in words if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return named[0].rpartition("/")[2] if named else f"the command of {recipe.name}"
