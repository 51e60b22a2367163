"""`dlcloud simulate`: replay spot policies over availability traces, before any money is spent."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import collect_options, output_option, verbose_option
from dlcloud.cli.simulation import SETTING, SOURCE, Setting, Source, add_options, build_jobs, build_windows
from dlcloud.model.errors import RecipeError
from dlcloud.scheduling.policies.catalog import POLICIES
from dlcloud.scheduling.policies.situation import Policy

if TYPE_CHECKING:
    from dlcloud.cli.context import Context
    from dlcloud.recipe.recipe import Recipe
    from dlcloud.scheduling.simulation.replay import Job
    from dlcloud.scheduling.simulation.summary import Row
    from dlcloud.scheduling.simulation.trace import Window

PICTURES = (".svg", ".png", ".html")


@click.command("simulate")
@click.argument("recipe")
@add_options(SOURCE)
@add_options(SETTING)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    help="Only this one; may be repeated; default: all.",
)
@click.option("--plot", default="", help="Draw one window to this file: .svg, .png or .html.")
@click.option("--window", "window_name", default="", help="Which window --plot draws; default: the first.")
@output_option
@verbose_option
@collect_options("source", Source, tuple(Source.__dataclass_fields__))
@collect_options("setting", Setting, tuple(Setting.__dataclass_fields__))
def command(
    *,
    recipe: str,
    source: Source,
    setting: Setting,
    policies: tuple[str, ...],
    plot: str,
    window_name: str,
    output: str,
    verbose: bool,
) -> None:
    """Replay spot policies over availability traces: cost, hours, interruptions, missed deadlines.

    The policies are those that choose the instances of a recipe with a deadline; beside them stands the least
    that each window could have cost, had its future been known. Nothing is launched.

    \b
    dlcloud simulate recipe.yaml --traces DIR --work 48 --deadline 52 --deadline 70
    dlcloud simulate recipe.yaml --generate 1 --work 48 --deadline 52 --plot window.svg
    dlcloud simulate recipe.yaml --adversary --refuse-first 3600 --work 48 --deadline 52
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.cli.context import Context
    from dlcloud.report.simulation import simulation_report
    from dlcloud.report.table import Format, render
    from dlcloud.scheduling.deadline_costs import keep_base

    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")
    with Context("simulate", verbose=verbose) as context:
        parsed = _read_recipe(recipe)
        jobs = build_jobs(parsed, setting)
        windows = build_windows(source, jobs)
        base = parsed.instances.on_demand_base
        chosen = {name: keep_base(POLICIES[name], base) for name in policies or POLICIES}
        report = simulation_report([(job, _rows(job, windows, chosen)) for job in jobs])
        if plot:
            shown = policies[0] if policies else "elastic"
            _draw(context, Path(plot), jobs[0], _find(windows, window_name), {shown: chosen[shown]})
        click.echo(render(report, Format(output)))


def _read_recipe(name: str) -> "Recipe":
    from dlcloud.recipe.recipe import read_recipe
    from dlcloud.resources.texts import recipe_text

    text, path = recipe_text(name)
    return read_recipe(text, str(path or name))


def _rows(job: "Job", windows: Sequence["Window"], policies: Mapping[str, Policy]) -> list["Row"]:
    from dlcloud.scheduling.simulation.bound import least_cost_usd
    from dlcloud.scheduling.simulation.replay import replay_all
    from dlcloud.scheduling.simulation.summary import bound_row, policy_row

    bounds = [least_cost_usd(job, window) for window in windows]
    rows = [
        policy_row(name, job, replay_all(job, windows, policy), bounds) for name, policy in policies.items()
    ]
    return [*rows, bound_row(job, bounds)]


def _find(windows: Sequence["Window"], name: str) -> "Window":
    for window in windows:
        if name in ("", window.name):
            return window
    raise RecipeError(f"--window {name}: no such window", f"for example {windows[0].name}")


def _draw(
    context: "Context", path: Path, job: "Job", window: "Window", policies: Mapping[str, Policy]
) -> None:
    from dlcloud.model.events import Notice
    from dlcloud.report.files import report_file
    from dlcloud.report.page import bundle, page, picture
    from dlcloud.report.simulation import simulation_report
    from dlcloud.report.simulation_charts import simulation_charts
    from dlcloud.resources.texts import template
    from dlcloud.scheduling.simulation.replay import replay

    ((name, policy),) = policies.items()
    outcome = replay(job, window, policy, keep_moments=True)
    charts = simulation_charts(job, outcome, policy=name, window=window.name)
    if path.suffix.lower() == ".html":
        report = simulation_report([(job, _rows(job, [window], policies))])
        script = bundle(context.paths.make_folder(context.paths.cache))
        content = page(
            template("report.html"), script, report, charts, title="dlcloud simulate", subtitle=window.name
        ).encode()
    else:
        content = picture(charts, path.suffix.lower().lstrip("."))
    with report_file(path) as draft:
        draft.write_bytes(content)
    context.emit(Notice(message=f"written: {path}"))
