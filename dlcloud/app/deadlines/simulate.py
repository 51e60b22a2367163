"""`dlcloud simulate`: replay spot policies over availability traces, before any money is spent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.deadlines.replays import SimulationSetting, Source, build_jobs, build_windows
from dlcloud.app.recipe_files import read_recipe_text
from dlcloud.app.terminal.screen import say
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Info
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.deadlines import simulation_charts, simulation_report
from dlcloud.report.files import report_file
from dlcloud.report.page import bundle, page, picture
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import template
from dlcloud.scheduling.deadline_costs import keep_base
from dlcloud.scheduling.policies.by_name import POLICIES
from dlcloud.scheduling.policies.situation import Policy
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay, replay_all
from dlcloud.scheduling.simulation.summary import Row, bound_row, policy_row
from dlcloud.scheduling.simulation.trace import Window

PICTURES = (".svg", ".png", ".html")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What `dlcloud simulate` was asked for."""

    recipe: str
    source: Source
    setting: SimulationSetting
    policies: tuple[str, ...]
    plot: str
    window_name: str
    output: str


def run(context: Context, options: SimulateOptions) -> None:
    """Replay spot policies over availability traces: cost, hours, interruptions, missed deadlines."""
    if options.plot and Path(options.plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {options.plot}: which format?", f"end it in {' or '.join(PICTURES)}")
    parsed = _read_recipe(options.recipe)
    jobs = build_jobs(parsed, options.setting)
    windows = build_windows(options.source, jobs)
    base = parsed.instances.on_demand_base
    chosen = {name: keep_base(POLICIES[name], base) for name in options.policies or POLICIES}
    report = simulation_report([(job, _rows(job, windows, chosen)) for job in jobs])
    if options.plot:
        shown = options.policies[0] if options.policies else "elastic"
        _draw(
            context, Path(options.plot), jobs[0], _find(windows, options.window_name), {shown: chosen[shown]}
        )
    say(render(report, Format(options.output)))


def _read_recipe(name: str) -> Recipe:

    text, path = read_recipe_text(name)
    return read_recipe(text, str(path or name))


def _rows(job: SimulatedJob, windows: Sequence[Window], policies: Mapping[str, Policy]) -> list[Row]:

    bounds = [least_cost_usd(job, window) for window in windows]
    rows = [
        policy_row(name, job, replay_all(job, windows, policy), bounds) for name, policy in policies.items()
    ]
    return [*rows, bound_row(job, bounds)]


def _find(windows: Sequence[Window], name: str) -> Window:
    for window in windows:
        if name in ("", window.name):
            return window
    raise RecipeError(f"--window {name}: no such window", f"for example {windows[0].name}")


def _draw(
    context: Context, path: Path, job: SimulatedJob, window: Window, policies: Mapping[str, Policy]
) -> None:

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
    context.emit(Info(message=f"written: {path}"))
