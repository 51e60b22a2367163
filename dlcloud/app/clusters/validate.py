"""`dlcloud validate`: the faults of a recipe that can be seen without credentials or network."""

from dlcloud.app.choice import with_bundled_types
from dlcloud.app.clusters.experiment import experiment_of
from dlcloud.app.clusters.workload import read_workload
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.recipe.overrides import Overrides
from dlcloud.report.table import Cell, Format, Report, Section, render


def run(context: Context, *, recipe: str, overrides: Overrides, output: str) -> None:
    """Check a recipe's keys, the files that it names, its script and its experiment.

    Raises:
        RecipeError: It is not, with every fault and its line.
    """
    workload = read_workload(context, recipe, overrides, pin=False)
    with_bundled_types(workload.recipe)
    workload.check()
    workload.check_deadline()
    experiment = experiment_of(context, workload, fresh=False, retry_failed=False)
    name = workload.recipe.name
    record: dict[str, Cell] = {"recipe": name, "file": workload.file.path, "valid": True}
    row = (name, "valid", f"{experiment.experiment.count} trials" if experiment is not None else "")
    section = Section(heading="", titles=("recipe", "", ""), rows=[row])
    say(render(Report(command="validate", records=[record], sections=[section], empty=""), Format(output)))
