"""`dlcloud deadlines`: what deadlines are expected to cost, before anything is launched."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.deadlines.traces import load_windows, scale_counts
from dlcloud.app.recipe_files import read_recipe_file
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.elastic.deadline_scaler import ASSUMED_BOOT_S
from dlcloud.elastic.registry import ASSUMED_CHANGEOVER_S
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.model.events import Info
from dlcloud.model.instance import FEWEST_SCORED_TYPES, Market
from dlcloud.recipe.deadline import read_duration
from dlcloud.recipe.recipe import Recipe
from dlcloud.report.deadlines import deadline_costs_chart, deadline_costs_report
from dlcloud.report.files import report_file
from dlcloud.report.page import bundle, page, picture
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import template
from dlcloud.scheduling.deadline_costs import (
    AVAILABILITY,
    BEST_SCORE,
    DeadlineCost,
    choose_pools,
    cost_of_deadlines,
    history_windows,
    keep_base,
)
from dlcloud.scheduling.policies.by_name import POLICIES
from dlcloud.scheduling.simulation.formats import Meaning
from dlcloud.scheduling.simulation.replay import SimulatedJob
from dlcloud.scheduling.simulation.trace import Window

LADDER = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Deadlines that are compared unless others are named: so many times the time of all workers on-demand."""
PICTURES = (".svg", ".png", ".html")
HOUR_S = 3600.0


def run(
    context: Context,
    *,
    recipe: str,
    deadlines: Sequence[float] = (),
    worker_hours: float | None = None,
    traces: str = "",
    values: str | None = None,
    pooled: bool = False,
    capacity: int | None = None,
    availability: float | None = None,
    history: str = "14d",
    number: int = 40,
    plot: str = "",
    output: str,
) -> None:
    """Print what several deadlines of a recipe are expected to cost, with all pools and with each alone.

    Args:
        context: The collaborators.
        recipe: A file, or the name of a bundled recipe.
        deadlines: Hours from the start; by default the recipe's, and a ladder.
        worker_hours: The work, as hours of one worker; by default that of the recipe.
        traces: The folder of availability traces; by default the account's price history is replayed.
        values: What 1 means in traces that do not say it: `obtainable` or `preempted`.
        pooled: Each folder of traces is a pool.
        capacity: The instances that one instance of a trace represents.
        availability: With the price history, the share of the time in which each pool has capacity.
        history: The length of the price history.
        number: The number of windows that are cut out of the history.
        plot: The file of a chart; empty for none.
        output: The format.
    """
    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")
    parsed = read_recipe_file(recipe).recipe
    instances = parsed.instances
    job = _job(parsed, worker_hours, _on_demand_usd(context, parsed, with_account=not traces))
    hours = _hours(parsed, deadlines, job)
    if traces:
        windows, notes = (
            load_windows(Path(traces), pooled=pooled, meaning=Meaning(values) if values else None),
            [f"availability and prices: {traces}"],
        )
        most = max(count for window in windows for pool in window.pools for count in pool.counts)
        windows = scale_counts(windows, capacity or (instances.maximum if most <= 1 else 1))
    else:
        windows, notes = _from_history(
            context, parsed, history=history, number=number, availability=availability, hours=max(hours)
        )
    policy = keep_base(POLICIES["elastic"], instances.on_demand_base)
    costs = cost_of_deadlines(job, hours, choose_pools(windows), policy)
    heading = (
        f"{job.work_s / HOUR_S:g} worker-hours on up to {job.maximum} workers, "
        f"{instances.on_demand_base} always on-demand"
    )
    notes += [
        f"all on-demand: {job.on_demand_cost_usd:.2f} USD in {_least_h(job):.1f} h; without disks",
        f"boots of {job.boot_s:g} s, pauses of {job.changeover_s:g} s; linear speed, types equally fast",
    ]
    report = deadline_costs_report(costs, heading=heading, notes=notes)
    if plot:
        _draw(context, Path(plot), costs, parsed.name)
    say(render(report, Format(output)))


def _on_demand_usd(context: Context, recipe: Recipe, *, with_account: bool) -> float:
    """Return the cheapest type's price: from the account, or else from the bundled table."""
    types = recipe.instances.types
    if with_account:
        listed = context.clouds.cloud(recipe.cloud, recipe.region).prices.find(types, [Market.ON_DEMAND])
    else:
        catalog = Catalog()
        listed = [price for name in types if (price := catalog.on_demand_price(name, recipe.region))]
    usd = [price.hourly_usd for price in listed if price.market is Market.ON_DEMAND]
    if not usd:
        raise RecipeError(f"no on-demand price of {', '.join(types)} in {recipe.region} is known")
    return float(min(usd))


def _job(recipe: Recipe, hours: float | None, on_demand_usd: float) -> SimulatedJob:
    if hours is None and recipe.deadline is not None:
        hours = recipe.deadline.work.worker_hours
    if hours is None:
        raise RecipeError(
            "how much work is it?", "--worker-hours, or deadline.work with per_hour in the recipe"
        )
    return SimulatedJob(
        work_s=hours * HOUR_S,
        allowed_s=0.0,
        on_demand_usd=on_demand_usd,
        spot_usd=on_demand_usd,
        maximum=recipe.instances.maximum,
        boot_s=ASSUMED_BOOT_S,
        changeover_s=ASSUMED_CHANGEOVER_S,
    )


def _least_h(job: SimulatedJob) -> float:
    """Return the hours that the work takes with all workers on-demand from the start."""
    return (job.work_s / job.scaling.speed(job.maximum) + job.boot_s + job.changeover_s) / HOUR_S


def _hours(recipe: Recipe, deadlines: Sequence[float], job: SimulatedJob) -> list[float]:
    """Return the deadlines in hours: those of the command, else the recipe's and a ladder.

    Raises:
        RecipeError: One is no duration, or too early for all on-demand.
    """
    least = _least_h(job)
    early = [hours for hours in deadlines if hours < least]
    if early:
        size = f"{job.maximum} workers on-demand take {least:.1f} h"
        raise RecipeError(
            f"--deadline {early[0]:g}h is too early: {size}", "give a later one, or a larger count.max"
        )
    hours = set(deadlines)
    if not hours:
        hours = {round(least * factor, 1) for factor in LADDER}
        length = None if recipe.deadline is None else recipe.deadline.length
        if length is not None and length.total_seconds() / HOUR_S >= least:
            hours.add(length.total_seconds() / HOUR_S)
    return sorted(hours)


def _duration(text: str, option: str) -> timedelta:

    length = read_duration(text)
    if length is None or not timedelta(0) < length <= timedelta(days=365):
        raise RecipeError(f"{option} {text}: not a duration", "write it as 52h, 3d or 2d 12h")
    return length


def _from_history(
    context: Context,
    recipe: Recipe,
    *,
    history: str,
    number: int,
    availability: float | None,
    hours: float,
) -> tuple[list[Window], list[str]]:
    """Return windows with the prices of the account's history, and what is assumed of their capacity."""
    cloud, now, instances = (
        context.clouds.cloud(recipe.cloud, recipe.region),
        context.clock.now(),
        recipe.instances,
    )
    prices = cloud.prices.spot_history(instances.types, now - _duration(history, "--history"))
    prices = [price for price in prices if not instances.zones or price.zone in instances.zones]
    if not prices:
        raise RecipeError(
            f"no spot price history of {', '.join(instances.types)} in {recipe.region}", "give --traces DIR"
        )
    zones = sorted({price.zone for price in prices})
    shares, source = _shares(context, recipe, availability, zones)
    windows = history_windows(
        prices,
        hours=hours,
        end=now,
        shares=shares,
        count=instances.maximum,
        number=number,
    )
    shown = ", ".join(f"{zone} {shares.get(zone, AVAILABILITY):.0%}" for zone in zones)
    notes = [
        f"prices: spot price history of {history}, {len(prices)} prices in {len(zones)} zones",
        f"capacity is assumed, {source}: {shown} of the time",
    ]
    return windows, notes


def _shares(
    context: Context, recipe: Recipe, availability: float | None, zones: Sequence[str]
) -> tuple[Mapping[str, float], str]:
    """Return the assumed share of the time with capacity by zone, and where it is from."""
    if availability is not None:
        return dict.fromkeys(zones, availability), "by --availability"
    types = recipe.instances.types
    if len(types) >= FEWEST_SCORED_TYPES:
        account = context.clouds.account(recipe.cloud, recipe.region)
        try:
            scores, subnets = account.spot_scores(types, recipe.instances.maximum), account.subnets()
        except CloudError:
            return {}, "as in the traces of Can't Be Late (no spot placement scores)"
        by_zone = {zone: subnets[zone].zone_id for zone in zones if zone in subnets}
        named = {zone: scores[name] / BEST_SCORE for zone, name in by_zone.items() if name in scores}
        return named, "by spot placement scores"
    return {}, "as in the traces of Can't Be Late; set --availability"


def _draw(context: Context, path: Path, costs: Sequence[DeadlineCost], name: str) -> None:

    chart = deadline_costs_chart(costs, caption=f"{name}: expected cost, with 10 to 90 % of the windows")
    if path.suffix.lower() == ".html":
        report = deadline_costs_report(costs, heading=name, notes=[])
        script = bundle(context.paths.make_folder(context.paths.cache))
        text = page(
            template("report.html"), script, report, [chart], title="costs of deadlines", subtitle=name
        )
        content = text.encode()
    else:
        content = picture([chart], path.suffix.lower().lstrip("."))
    with report_file(path) as draft:
        draft.write_bytes(content)
    context.emit(Info(message=f"written: {path}"))
