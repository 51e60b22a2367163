"""`dlcloud deadlines` and `dlcloud simulate`: deadlines and spot policies, before any money is spent.

`compare_deadlines` replays the policy that a controller asks, for several deadlines, over availability traces
or over the account's spot price history; a price history does not show capacity, so that is assumed, and the
report says how. `simulate` replays any policies over traces, generated windows or the worst case, and
compares each with the least that the window could have cost. Neither launches anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from dlcloud.app.choice import with_bundled_types, with_chosen_types
from dlcloud.app.context import Context
from dlcloud.app.recipe_files import read_recipe_file, read_recipe_text
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.elastic.deadline_scaler import ASSUMED_BOOT_S
from dlcloud.elastic.registry import ASSUMED_CHANGEOVER_S
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.model.events import Info
from dlcloud.model.instance import FEWEST_SCORED_TYPES, Market
from dlcloud.model.money import REGION_TRAFFIC_USD_PER_GB, ZONE_TRAFFIC_USD_PER_GB
from dlcloud.recipe.deadline import read_duration
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.deadlines import (
    deadline_costs_chart,
    deadline_costs_report,
    simulation_charts,
    simulation_report,
)
from dlcloud.report.files import report_file
from dlcloud.report.page import bundle, page, picture
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import template
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S, REFUSAL_S, Policy, Scaling, move_of_state
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.generate import (
    AVAILABILITY,
    Rates,
    adversarial_windows,
    generate_window,
    history_windows,
)
from dlcloud.scheduling.simulation.replay import SPOT_SHARE, SimulatedJob, replay, replay_all
from dlcloud.scheduling.simulation.summary import (
    DeadlineCost,
    Row,
    bound_row,
    choose_pools,
    cost_of_deadlines,
    keep_base,
    policy_row,
)
from dlcloud.scheduling.simulation.traces import ENDINGS, Meaning, PoolTrace, Window, read_trace

LADDER = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Deadlines that are compared unless others are named: this many times the time of all workers on-demand."""
PICTURES = (".svg", ".png", ".html")
BEST_SCORE = 10
"""The best spot placement score."""


def compare_deadlines(
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
    parsed = with_chosen_types(context, read_recipe_file(recipe))[0].recipe
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
        _draw_costs(context, Path(plot), costs, parsed.name)
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
            scores = account.spot_scores(types, recipe.instances.maximum)[recipe.region]
            subnets = account.subnets()
        except CloudError:
            return {}, "as in the traces of Can't Be Late (no spot placement scores)"
        by_zone = {zone: subnets[zone].zone_id for zone in zones if zone in subnets}
        named = {zone: scores[name] / BEST_SCORE for zone, name in by_zone.items() if name in scores}
        return named, "by spot placement scores"
    return {}, "as in the traces of Can't Be Late; set --availability"


def _draw_costs(context: Context, path: Path, costs: Sequence[DeadlineCost], name: str) -> None:

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


def simulate(
    context: Context,
    *,
    recipe: str,
    traces: str = "",
    values: str | None = None,
    pooled: bool = False,
    capacity: int | None = None,
    seed: int | None = None,
    number: int = 100,
    pools: int = 1,
    up_hours: float,
    down_hours: float,
    adversary: bool = False,
    work: float | None = None,
    deadlines: Sequence[float] = (),
    changeovers: Sequence[float],
    boot: float,
    refusal: float | None = None,
    refuse_first: float = 0.0,
    on_demand_usd: float | None = None,
    spot_usd: float | None = None,
    scaling_loss: float = 0.0,
    traffic_gb: float = 0.0,
    state_gb: float = 0.0,
    policies: Sequence[str] = (),
    plot: str = "",
    window_name: str = "",
    output: str,
) -> None:
    """Replay spot policies over availability traces: cost, hours, interruptions, missed deadlines.

    Each policy is replayed in each window, for each deadline and each changeover.

    Args:
        context: The collaborators.
        recipe: A file, or the name of a bundled recipe.
        traces: The folder of traces, or one trace; this, `seed` or `adversary` says what is replayed.
        values: What 1 means in traces that do not say it: `obtainable` or `preempted`.
        pooled: Each folder of traces is a pool.
        capacity: The instances that one instance of a trace represents.
        seed: Generate windows, from this seed on.
        number: The number of windows that are generated.
        pools: The number of pools of each generated window.
        up_hours: The mean time with capacity in a generated window.
        down_hours: The mean time without capacity in a generated window.
        adversary: Replay the worst: no spot, spot that vanishes each hour, spot that flaps.
        work: Hours of the work on all workers; by default those of the recipe.
        deadlines: Hours from the start; by default the recipe's.
        changeovers: Seconds without progress at a change of workers.
        boot: Seconds that a new instance is billed before its worker joins.
        refusal: Seconds that policies reserve for refusals of on-demand instances.
        refuse_first: Seconds for which the first on-demand request after the start is refused.
        on_demand_usd: The price of an instance-hour; by default that of the bundled table.
        spot_usd: The spot price where traces have none.
        scaling_loss: The share of its speed that each further worker costs all.
        traffic_gb: GB that a worker in another zone exchanges in an hour.
        state_gb: GB of a checkpoint, which moves where traces are of zones of several Regions.
        policies: Names of policies; by default all.
        plot: The file of a chart of one window; empty for none.
        window_name: The window that `plot` draws; by default the first.
        output: The format.
    """
    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")
    text, path = read_recipe_text(recipe)
    parsed = with_bundled_types(read_recipe(text, str(path or recipe)))
    maximum, scaling = parsed.instances.maximum, Scaling(loss=scaling_loss)
    hourly_usd = _listed_usd(parsed) if on_demand_usd is None else on_demand_usd
    job = SimulatedJob(
        work_s=(_work_h(parsed, scaling) if work is None else work) * scaling.speed(maximum) * HOUR_S,
        allowed_s=0.0,
        on_demand_usd=hourly_usd,
        spot_usd=SPOT_SHARE * hourly_usd if spot_usd is None else spot_usd,
        minimum=parsed.instances.minimum,
        maximum=maximum,
        boot_s=boot,
        scaling=scaling,
        traffic_usd=traffic_gb * float(ZONE_TRAFFIC_USD_PER_GB),
        refuse_first_s=refuse_first,
        move=move_of_state(state_gb, usd_per_gb=float(REGION_TRAFFIC_USD_PER_GB)),
    )
    jobs = [
        replace(
            job,
            allowed_s=hours * HOUR_S,
            changeover_s=changeover_s,
            refusal_s=min(REFUSAL_S, hours * HOUR_S / 10) if refusal is None else refusal,
        )
        for hours in deadlines or [_deadline_h(parsed)]
        for changeover_s in changeovers
    ]
    for one in jobs:
        _refuse_impossible(one)

    if sum((bool(traces), seed is not None, adversary)) != 1:
        raise RecipeError("which traces?", "give one of --traces DIR, --generate SEED, --adversary")
    longest_h = max(one.allowed_s for one in jobs) / HOUR_S
    if adversary:
        windows = adversarial_windows(hours=longest_h, count=capacity or maximum)
    elif seed is not None:
        rates = Rates(up_h=up_hours, down_h=down_hours, count=capacity or maximum)
        windows = [
            generate_window(one, hours=longest_h, pools=pools, rates=rates)
            for one in range(seed, seed + number)
        ]
    else:
        windows = load_windows(Path(traces), pooled=pooled, meaning=Meaning(values) if values else None)
        most = max(count for window in windows for pool in window.pools for count in pool.counts)
        windows = scale_counts(windows, capacity or (maximum if most <= 1 else 1))

    base = parsed.instances.on_demand_base
    chosen = {name: keep_base(POLICIES[name], base) for name in policies or POLICIES}
    report = simulation_report([(one, _rows(one, windows, chosen)) for one in jobs])
    if plot:
        shown = policies[0] if policies else "elastic"
        _draw_window(context, Path(plot), jobs[0], _find(windows, window_name), {shown: chosen[shown]})
    say(render(report, Format(output)))


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


def _draw_window(
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


def _refuse_impossible(job: SimulatedJob) -> None:
    """Refuse a deadline that not even all workers on-demand from the start would meet."""
    least_s = job.work_s / job.scaling.speed(job.maximum) + job.changeover_s + job.boot_s
    if least_s > job.allowed_s:
        raise RecipeError(
            f"a deadline of {job.allowed_s / HOUR_S:g} h is too early: all {job.maximum} worker(s) on-demand "
            f"take {least_s / HOUR_S:.2f} h",
            "give a later --deadline, or less --work",
        )


def _work_h(recipe: Recipe, scaling: Scaling) -> float:
    """Return the hours that the recipe's work takes on all workers."""
    hours = recipe.deadline.work.worker_hours if recipe.deadline else None
    if hours is None:
        hint = "--work HOURS, or deadline.work with per_hour in the recipe"
        raise RecipeError("how much work is it?", hint)
    return hours / scaling.speed(recipe.instances.maximum)


def _deadline_h(recipe: Recipe) -> float:
    length = recipe.deadline.length if recipe.deadline else None
    if length is None:
        hint = "--deadline HOURS, or deadline.finish in the recipe, as 52h"
        raise RecipeError("what is the deadline?", hint)
    return length.total_seconds() / HOUR_S


def _listed_usd(recipe: Recipe) -> float:
    instance_type = recipe.instances.types[0]
    price = Catalog().on_demand_price(instance_type, recipe.region)
    if price is None:
        raise RecipeError(
            f"no {Market.ON_DEMAND} price of {instance_type} in {recipe.region} is known",
            "give --on-demand-usd",
        )
    return float(price.hourly_usd)


LARGEST_BYTES = 64 * 1024 * 1024
"""A longer file is no trace of one pool."""


def load_windows(folder: Path, *, pooled: bool = False, meaning: Meaning | None = None) -> list[Window]:
    """Return the windows in a folder: a file is one, or, pooled, the files of one name in its folders.

    Args:
        folder: It, and the folders in it, have the files; those of other endings are passed over.
        pooled: Each folder is a pool, and its files are windows of the same times as their namesakes.
        meaning: What the values of JSON files mean that do not say it.

    Raises:
        RecipeError: There is no trace, or one has a fault, which is named with its line.
    """
    files = _trace_files(folder)
    if not pooled:
        return [
            Window(name=_name(file, folder), pools=(_read(file, file.parent.name, meaning),))
            for file in files
        ]
    by_name: dict[str, list[PoolTrace]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(_read(file, file.parent.name, meaning))
    return [Window(name=name, pools=tuple(by_name[name])) for name in sorted(by_name, key=_in_number_order)]


def _trace_files(folder: Path) -> Sequence[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder", "name a folder with traces, or --generate SEED")
    files = [path for path in folder.rglob("*") if path.suffix[1:].lower() in ENDINGS and path.is_file()]
    if not files:
        raise RecipeError(f"{folder}: no trace in it", f"traces end in {', '.join(ENDINGS)}")
    return sorted(files, key=lambda path: (str(path.parent), *_in_number_order(path.name)))


def _in_number_order(name: str) -> tuple[int, str]:
    stem = name.partition(".")[0]
    return (int(stem) if stem.isascii() and stem.isdecimal() else 0, name)


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file != folder else file.name


def _read(file: Path, pool: str, meaning: Meaning | None) -> PoolTrace:
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise RecipeError(f"{file}: larger than {LARGEST_BYTES // 1024**2} MiB: not a trace")
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{file}: not a trace: no UTF-8 text", "docs/deadlines.md lists the formats"
        ) from error
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read: {error.strerror}") from error
    return read_trace(text, str(file), pool=pool, meaning=meaning)


def scale_counts(windows: Iterable[Window], capacity: int) -> list[Window]:
    """Return windows in which each instance of a trace stands for `capacity` instances."""
    return [
        Window(name=window.name, pools=tuple(pool.scaled(capacity) for pool in window.pools))
        for window in windows
    ]
