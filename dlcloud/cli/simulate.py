"""`dlcloud simulate`: replay spot policies over availability traces, before any money is spent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import Command, collect_options, output_option, verbose_option
from dlcloud.core.errors import RecipeError
from dlcloud.core.instance import Market
from dlcloud.core.policies.catalog import POLICIES
from dlcloud.core.policies.situation import HOUR_S, REFUSAL_S, Scaling

if TYPE_CHECKING:
    from dlcloud.cli.context import Context
    from dlcloud.core.recipe import Recipe
    from dlcloud.core.simulation.replay import Job
    from dlcloud.core.simulation.summary import Row
    from dlcloud.core.simulation.trace import Window

SPOT_SHARE = 0.318
"""A spot price over the on-demand price, where neither trace nor option has one.

Source: 0.9731 over 3.06 USD for a V100, Wu et al., "Can't Be Late", NSDI 2024.
"""
CHANGEOVER_S = 1.8
"""Seconds without progress at a change of workers.

Source: about what tests/performance/elastic.py measured for a drain and a join, with room.
"""
TRAFFIC_USD_PER_GB = 0.02
"""Source: EC2 on-demand pricing, "Data transfer within the same AWS Region": 0.01 USD/GB each way."""
PICTURES = (".svg", ".png", ".html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The options that say which windows are replayed."""

    traces: str
    pooled: bool
    capacity: int | None
    seed: int | None
    windows: int
    pools: int
    up_hours: float
    down_hours: float
    adversary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The options that say what is replayed in each window; lists multiply."""

    work: float | None
    deadlines: tuple[float, ...]
    changeovers: tuple[float, ...]
    boot: float
    refusal: float
    refuse_first: float
    on_demand_usd: float | None
    spot_usd: float | None
    scaling_loss: float
    traffic_gb: float


_SOURCE = (
    click.option("--traces", default="", help="Folder of traces, or one of them; each file is one window."),
    click.option("--pooled", is_flag=True, help="Each folder is a pool; files of one name are one window."),
    click.option(
        "--capacity",
        type=click.IntRange(1, 10000),
        default=None,
        help="Instances that one of a trace stands for; default: all that the recipe may have if traces only "
        "say yes or no, else 1.",
    ),
    click.option("--generate", "seed", type=int, default=None, help="Make up traces, from this seed on."),
    click.option(
        "--windows",
        type=click.IntRange(1, 100000),
        default=100,
        show_default=True,
        help="Of --generate: windows, each from its own seed.",
    ),
    click.option("--pools", type=click.IntRange(1, 100), default=1, show_default=True, help="Of --generate."),
    click.option(
        "--up-hours",
        type=click.FloatRange(0.01, 1000),
        default=1.2,
        show_default=True,
        help="Of --generate: mean spell with capacity; exponentially distributed.",
    ),
    click.option(
        "--down-hours",
        type=click.FloatRange(0.01, 1000),
        default=1.5,
        show_default=True,
        help="Of --generate: mean spell without.",
    ),
    click.option(
        "--adversary",
        is_flag=True,
        help="Replay the worst: no spot, spot that vanishes after each hour, spot that flaps at each tick.",
    ),
)
_SETTING = (
    click.option(
        "--work",
        type=click.FloatRange(0.01, 1e6),
        default=None,
        help="Hours on all workers; default: the recipe's.",
    ),
    click.option(
        "--deadline",
        "deadlines",
        multiple=True,
        type=click.FloatRange(0.01, 1e6),
        help="Hours from the start; may be repeated; default: the recipe's.",
    ),
    click.option(
        "--changeover",
        "changeovers",
        multiple=True,
        type=click.FloatRange(0, 86400),
        default=(CHANGEOVER_S,),
        show_default=True,
        help="Seconds without progress at a change of workers; may be repeated.",
    ),
    click.option(
        "--boot",
        type=click.FloatRange(0, 86400),
        default=0.0,
        show_default=True,
        help="Seconds that a new instance is billed before its worker joins; the others train on.",
    ),
    click.option(
        "--refusal",
        type=click.FloatRange(0, 86400),
        default=REFUSAL_S,
        show_default=True,
        help="Policies keep so many seconds for a refusal of on-demand instances.",
    ),
    click.option(
        "--refuse-first",
        type=click.FloatRange(0, 86400),
        default=0.0,
        show_default=True,
        help="The first on-demand request after the start is refused for so many seconds.",
    ),
    click.option(
        "--on-demand-usd", type=click.FloatRange(0.0001, 10000), default=None, help="Of an instance-hour."
    ),
    click.option(
        "--spot-usd",
        type=click.FloatRange(0, 10000),
        default=None,
        help=f"Where traces have no prices; default: {SPOT_SHARE} of on-demand.",
    ),
    click.option(
        "--scaling-loss",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        help="Share of its speed that each further worker costs all; 0: linear.",
    ),
    click.option(
        "--traffic-gb",
        type=click.FloatRange(0, 1e6),
        default=0.0,
        show_default=True,
        help=f"GB that a worker in another zone exchanges an hour, at {TRAFFIC_USD_PER_GB} USD.",
    ),
)


def _add(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command("simulate")
@click.argument("recipe")
@_add(_SOURCE)
@_add(_SETTING)
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

    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")
    with Context("simulate", verbose=verbose) as context:
        jobs = _jobs(_read_recipe(recipe), setting)
        windows = _windows(source, jobs)
        chosen = policies or tuple(POLICIES)
        report = simulation_report([(job, _rows(job, windows, chosen)) for job in jobs])
        if plot:
            shown = chosen[0] if policies else "elastic"
            _draw(context, Path(plot), jobs[0], _find(windows, window_name), shown)
        click.echo(render(report, Format(output)))


def _read_recipe(name: str) -> "Recipe":
    from dlcloud.core.recipe import read_recipe
    from dlcloud.resources.texts import recipe_text

    text, path = recipe_text(name)
    return read_recipe(text, str(path or name))


def _jobs(recipe: "Recipe", setting: Setting) -> list["Job"]:
    """Return one job per deadline and changeover."""
    from dlcloud.core.simulation.replay import Job

    maximum = recipe.instances.maximum
    on_demand_usd = _on_demand_usd(recipe, setting)
    scaling = Scaling(loss=setting.scaling_loss)
    job = Job(
        work_s=_work_h(recipe, setting) * scaling.speed(maximum) * HOUR_S,
        allowed_s=0.0,
        on_demand_usd=on_demand_usd,
        spot_usd=setting.spot_usd if setting.spot_usd is not None else SPOT_SHARE * on_demand_usd,
        minimum=recipe.instances.minimum,
        maximum=maximum,
        boot_s=setting.boot,
        scaling=scaling,
        traffic_usd=setting.traffic_gb * TRAFFIC_USD_PER_GB,
        refuse_first_s=setting.refuse_first,
        refusal_s=setting.refusal,
    )
    return [
        _possible(replace(job, allowed_s=hours * HOUR_S, changeover_s=changeover_s))
        for hours in _deadlines_h(recipe, setting)
        for changeover_s in setting.changeovers
    ]


def _possible(job: "Job") -> "Job":
    """Return the job.

    Raises:
        RecipeError: Not even all workers on-demand from the start would be in time.
    """
    least_s = job.work_s / job.scaling.speed(job.maximum) + job.changeover_s + job.boot_s
    if least_s > job.allowed_s:
        raise RecipeError(
            f"a deadline of {job.allowed_s / HOUR_S:g} h is too early: all {job.maximum} worker(s) on-demand "
            f"take {least_s / HOUR_S:.2f} h",
            "give a later --deadline, or less --work",
        )
    return job


def _work_h(recipe: "Recipe", setting: Setting) -> float:
    """Return the hours that the work takes on all workers."""
    if setting.work is not None:
        return setting.work
    hours = recipe.deadline.work.worker_hours if recipe.deadline else None
    if hours is None:
        raise RecipeError(
            "how much work is it?", "--work HOURS, or deadline.work with per_hour in the recipe"
        )
    return hours / Scaling(loss=setting.scaling_loss).speed(recipe.instances.maximum)


def _deadlines_h(recipe: "Recipe", setting: Setting) -> Sequence[float]:
    if setting.deadlines:
        return setting.deadlines
    length = recipe.deadline.length if recipe.deadline else None
    if length is None:
        raise RecipeError(
            "what is the deadline?", "--deadline HOURS, or deadline.finish in the recipe, as 52h"
        )
    return [length.total_seconds() / HOUR_S]


def _on_demand_usd(recipe: "Recipe", setting: Setting) -> float:
    from dlcloud.cloud.catalog import Catalog

    if setting.on_demand_usd is not None:
        return setting.on_demand_usd
    instance_type = recipe.instances.types[0]
    price = Catalog().on_demand_price(instance_type, recipe.region)
    if price is None:
        raise RecipeError(
            f"no {Market.ON_DEMAND} price of {instance_type} in {recipe.region} is known",
            "give --on-demand-usd",
        )
    return float(price.hourly_usd)


def _windows(source: Source, jobs: Sequence["Job"]) -> list["Window"]:
    from dlcloud.cli.traces import load_windows, scale_counts
    from dlcloud.core.simulation.generate import Rates, adversarial_windows, generate_window

    if sum((bool(source.traces), source.seed is not None, source.adversary)) != 1:
        raise RecipeError("which traces?", "give one of --traces DIR, --generate SEED, --adversary")
    hours, size = max(job.allowed_s for job in jobs) / HOUR_S, jobs[0].maximum
    if source.adversary:
        return adversarial_windows(hours=hours, count=source.capacity or size)
    if source.seed is not None:
        rates = Rates(up_h=source.up_hours, down_h=source.down_hours, count=source.capacity or size)
        seeds = range(source.seed, source.seed + source.windows)
        return [generate_window(seed, hours=hours, pools=source.pools, rates=rates) for seed in seeds]
    windows = load_windows(Path(source.traces), pooled=source.pooled)
    most = max(count for window in windows for pool in window.pools for count in pool.counts)
    return scale_counts(windows, source.capacity or (size if most <= 1 else 1))


def _rows(job: "Job", windows: Sequence["Window"], policies: Sequence[str]) -> list["Row"]:
    from dlcloud.core.simulation.bound import least_cost_usd
    from dlcloud.core.simulation.replay import replay_all
    from dlcloud.core.simulation.summary import bound_row, policy_row

    bounds = [least_cost_usd(job, window) for window in windows]
    rows = [policy_row(name, job, replay_all(job, windows, POLICIES[name]), bounds) for name in policies]
    return [*rows, bound_row(job, bounds)]


def _find(windows: Sequence["Window"], name: str) -> "Window":
    for window in windows:
        if name in ("", window.name):
            return window
    raise RecipeError(f"--window {name}: no such window", f"for example {windows[0].name}")


def _draw(context: "Context", path: Path, job: "Job", window: "Window", policy: str) -> None:
    from dlcloud.core.events import Notice
    from dlcloud.core.simulation.replay import replay
    from dlcloud.report.files import report_file
    from dlcloud.report.page import bundle, page, picture
    from dlcloud.report.simulation import simulation_report
    from dlcloud.report.simulation_charts import simulation_charts
    from dlcloud.resources.texts import template

    outcome = replay(job, window, POLICIES[policy], keep_moments=True)
    charts = simulation_charts(job, outcome, policy=policy, window=window.name)
    if path.suffix.lower() == ".html":
        report = simulation_report([(job, _rows(job, [window], list(POLICIES)))])
        script = bundle(context.paths.make_folder(context.paths.cache))
        content = page(
            template("report.html"), script, report, charts, title="dlcloud simulate", subtitle=window.name
        ).encode()
    else:
        content = picture(charts, path.suffix.lower().lstrip("."))
    with report_file(path) as draft:
        draft.write_bytes(content)
    context.emit(Notice(message=f"written: {path}"))
