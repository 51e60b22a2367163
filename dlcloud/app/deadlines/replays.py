"""What `dlcloud simulate` replays: the jobs and windows that its options mean."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.app.deadlines.traces import load_windows, scale_counts
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.model.surcharges import ZONE_TRAFFIC_USD_PER_GB
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.policies.situation import HOUR_S, REFUSAL_S, Scaling
from dlcloud.scheduling.simulation.defaults import SPOT_SHARE
from dlcloud.scheduling.simulation.formats import Meaning
from dlcloud.scheduling.simulation.generate import Rates, adversarial_windows, generate_window
from dlcloud.scheduling.simulation.replay import SimulatedJob
from dlcloud.scheduling.simulation.trace import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The options that say which windows are replayed."""

    traces: str
    values: str | None
    pooled: bool
    capacity: int | None
    seed: int | None
    windows: int
    pools: int
    up_hours: float
    down_hours: float
    adversary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetting:
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


def build_jobs(recipe: Recipe, setting: SimulationSetting) -> list[SimulatedJob]:
    """Return one job per deadline and changeover."""
    maximum = recipe.instances.maximum
    on_demand_usd = _on_demand_usd(recipe, setting)
    scaling = Scaling(loss=setting.scaling_loss)
    job = SimulatedJob(
        work_s=_work_h(recipe, setting) * scaling.speed(maximum) * HOUR_S,
        allowed_s=0.0,
        on_demand_usd=on_demand_usd,
        spot_usd=setting.spot_usd if setting.spot_usd is not None else SPOT_SHARE * on_demand_usd,
        minimum=recipe.instances.minimum,
        maximum=maximum,
        boot_s=setting.boot,
        scaling=scaling,
        traffic_usd=setting.traffic_gb * float(ZONE_TRAFFIC_USD_PER_GB),
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


def _possible(job: SimulatedJob) -> SimulatedJob:
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


def _work_h(recipe: Recipe, setting: SimulationSetting) -> float:
    """Return the hours that the work takes on all workers."""
    if setting.work is not None:
        return setting.work
    hours = recipe.deadline.work.worker_hours if recipe.deadline else None
    if hours is None:
        raise RecipeError(
            "how much work is it?", "--work HOURS, or deadline.work with per_hour in the recipe"
        )
    return hours / Scaling(loss=setting.scaling_loss).speed(recipe.instances.maximum)


def _deadlines_h(recipe: Recipe, setting: SimulationSetting) -> Sequence[float]:
    if setting.deadlines:
        return setting.deadlines
    length = recipe.deadline.length if recipe.deadline else None
    if length is None:
        raise RecipeError(
            "what is the deadline?", "--deadline HOURS, or deadline.finish in the recipe, as 52h"
        )
    return [length.total_seconds() / HOUR_S]


def _on_demand_usd(recipe: Recipe, setting: SimulationSetting) -> float:

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


def build_windows(source: Source, jobs: Sequence[SimulatedJob]) -> list[Window]:

    if sum((bool(source.traces), source.seed is not None, source.adversary)) != 1:
        raise RecipeError("which traces?", "give one of --traces DIR, --generate SEED, --adversary")
    hours, size = max(job.allowed_s for job in jobs) / HOUR_S, jobs[0].maximum
    if source.adversary:
        return adversarial_windows(hours=hours, count=source.capacity or size)
    if source.seed is not None:
        rates = Rates(up_h=source.up_hours, down_h=source.down_hours, count=source.capacity or size)
        seeds = range(source.seed, source.seed + source.windows)
        return [generate_window(seed, hours=hours, pools=source.pools, rates=rates) for seed in seeds]
    meaning = Meaning(source.values) if source.values else None
    windows = load_windows(Path(source.traces), pooled=source.pooled, meaning=meaning)
    most = max(count for window in windows for pool in window.pools for count in pool.counts)
    return scale_counts(windows, source.capacity or (size if most <= 1 else 1))
