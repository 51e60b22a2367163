"""`dlcloud simulate`: replay spot policies over availability traces, before any money is spent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.deadlines.traces import load_windows, scale_counts
from dlcloud.app.recipe_files import read_recipe_text
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Info
from dlcloud.model.instance import Market
from dlcloud.model.surcharges import ZONE_TRAFFIC_USD_PER_GB
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.deadlines import simulation_charts, simulation_report
from dlcloud.report.files import report_file
from dlcloud.report.page import bundle, page, picture
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import template
from dlcloud.scheduling.deadline_costs import keep_base
from dlcloud.scheduling.policies.by_name import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S, REFUSAL_S, Policy, Scaling
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.defaults import SPOT_SHARE
from dlcloud.scheduling.simulation.formats import Meaning
from dlcloud.scheduling.simulation.generate import Rates, adversarial_windows, generate_window
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay, replay_all
from dlcloud.scheduling.simulation.summary import Row, bound_row, policy_row
from dlcloud.scheduling.simulation.trace import Window

PICTURES = (".svg", ".png", ".html")


def run(
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
        policies: Names of policies; by default all.
        plot: The file of a chart of one window; empty for none.
        window_name: The window that `plot` draws; by default the first.
        output: The format.
    """
    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")
    text, path = read_recipe_text(recipe)
    parsed = read_recipe(text, str(path or recipe))
    maximum, scaling = parsed.instances.maximum, Scaling(loss=scaling_loss)
    hourly_usd = _on_demand_usd(parsed) if on_demand_usd is None else on_demand_usd
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
        _draw(context, Path(plot), jobs[0], _find(windows, window_name), {shown: chosen[shown]})
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


def _on_demand_usd(recipe: Recipe) -> float:
    instance_type = recipe.instances.types[0]
    price = Catalog().on_demand_price(instance_type, recipe.region)
    if price is None:
        raise RecipeError(
            f"no {Market.ON_DEMAND} price of {instance_type} in {recipe.region} is known",
            "give --on-demand-usd",
        )
    return float(price.hourly_usd)
