"""What `dlcloud simulate` replays: its options, and the jobs and windows that they mean."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import Command, Number
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.situation import HOUR_S, REFUSAL_S, Scaling

if TYPE_CHECKING:
    from dlcloud.recipe.recipe import Recipe
    from dlcloud.scheduling.simulation.replay import Job
    from dlcloud.scheduling.simulation.trace import Window

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
    refusal: float | None
    refuse_first: float
    on_demand_usd: float | None
    spot_usd: float | None
    scaling_loss: float
    traffic_gb: float


SOURCE = (
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
        type=Number(0.01, 1000),
        default=1.2,
        show_default=True,
        help="Of --generate: mean spell with capacity; exponentially distributed.",
    ),
    click.option(
        "--down-hours",
        type=Number(0.01, 1000),
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
SETTING = (
    click.option(
        "--work",
        type=Number(0.01, 10000),
        default=None,
        help="Hours on all workers; default: the recipe's.",
    ),
    click.option(
        "--deadline",
        "deadlines",
        multiple=True,
        type=Number(0.01, 10000),
        help="Hours from the start; may be repeated; default: the recipe's.",
    ),
    click.option(
        "--changeover",
        "changeovers",
        multiple=True,
        type=Number(0, 86400),
        default=(CHANGEOVER_S,),
        show_default=True,
        help="Seconds without progress at a change of workers; may be repeated.",
    ),
    click.option(
        "--boot",
        type=Number(0, 86400),
        default=0.0,
        show_default=True,
        help="Seconds that a new instance is billed before its worker joins; the others train on.",
    ),
    click.option(
        "--refusal",
        type=Number(0, 86400),
        default=None,
        help="Policies keep so many seconds for a refusal of on-demand instances; default: an hour, at most "
        "a tenth of the time.",
    ),
    click.option(
        "--refuse-first",
        type=Number(0, 86400),
        default=0.0,
        show_default=True,
        help="The first on-demand request after the start is refused for so many seconds.",
    ),
    click.option("--on-demand-usd", type=Number(0.0001, 10000), default=None, help="Of an instance-hour."),
    click.option(
        "--spot-usd",
        type=Number(0, 10000),
        default=None,
        help=f"Where traces have no prices; default: {SPOT_SHARE} of on-demand.",
    ),
    click.option(
        "--scaling-loss",
        type=Number(0, 1),
        default=0.0,
        show_default=True,
        help="Share of its speed that each further worker costs all; 0: linear.",
    ),
    click.option(
        "--traffic-gb",
        type=Number(0, 1e6),
        default=0.0,
        show_default=True,
        help=f"GB that a worker in another zone exchanges an hour, at {TRAFFIC_USD_PER_GB} USD.",
    ),
)


def add_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def build_jobs(recipe: "Recipe", setting: Setting) -> list["Job"]:
    """Return one job per deadline and changeover."""
    from dlcloud.scheduling.simulation.replay import Job

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
    )
    return [
        _possible(
            replace(
                job,
                allowed_s=hours * HOUR_S,
                changeover_s=changeover_s,
                refusal_s=min(REFUSAL_S, hours * HOUR_S / 10) if setting.refusal is None else setting.refusal,
            )
        )
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


def build_windows(source: Source, jobs: Sequence["Job"]) -> list["Window"]:
    from dlcloud.cli.traces import load_windows, scale_counts
    from dlcloud.scheduling.simulation.generate import Rates, adversarial_windows, generate_window

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
