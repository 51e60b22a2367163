"""An elastic training as tables: steps, world sizes, events, and the cost of each instance."""

from collections.abc import Sequence
from decimal import Decimal

from dlcloud.model.instance import Market
from dlcloud.model.money import money, rounded
from dlcloud.report.durations import duration
from dlcloud.report.table import Cell, Report, Section
from dlcloud.results.training import InstanceCost, Training, market_usd
from dlcloud.scheduling.outlook import Outlook, describe_probability, describe_seconds

CALM_S = 0.0005
"""A shorter pause is none."""


def training_report(
    training: Training,
    *,
    cluster: str,
    rehearsal: bool,
    command: str = "training",
    decisions: Sequence[Outlook] = (),
) -> Report:
    """Return a training as tables.

    Args:
        training: Its summary.
        cluster: The cluster's name.
        rehearsal: It ran on this machine, at the prices of other ones.
        command: The command that prints it.
        decisions: Those for its deadline, if it has one.
    """
    return Report(
        command=command,
        records=[_record(training)],
        sections=[
            _sizes(training, cluster, rehearsal=rehearsal),
            _events(training),
            *([_decisions(decisions)] if decisions else []),
            _costs(training),
        ],
        empty="",
        extra={
            "cluster": cluster,
            "rehearsal": rehearsal,
            "world_sizes": [
                {key: getattr(period, key) for key in ("at_s", "world_size", "steps", "pause_s")}
                for period in training.periods
            ],
            "events": [
                {key: getattr(event, key) for key in ("at_s", "event", "cause", "worker")}
                for event in training.events
            ],
            "instances": [_cost_record(cost) for cost in training.costs],
            **({"decisions": [outlook.to_values() for outlook in decisions]} if decisions else {}),
        },
    )


def _record(training: Training) -> dict[str, Cell]:
    baseline, saved = training.baseline, training.saved_fraction
    return {
        "run": training.run,
        "steps": training.steps,
        "samples": training.samples,
        "seconds": round(training.seconds, 3),
        "start_seconds": round(training.start_s, 3),
        "mean_world_size": round(training.mean_world_size, 3),
        "steps_redone": training.steps_redone,
        "redone_usd": _usd(training.redone_usd),
        "last_loss": training.last_loss,
        "usd": _usd(training.usd),
        "spot_usd": _usd(market_usd(training, Market.SPOT)),
        "on_demand_usd": _usd(market_usd(training, Market.ON_DEMAND)),
        "fixed_instances": baseline.instances if baseline else None,
        "fixed_seconds": round(baseline.seconds, 1) if baseline else None,
        "fixed_usd": _usd(baseline.usd) if baseline else None,
        "saved": None if saved is None else round(float(saved), 4),
        "traffic_gb_at_most": round(training.traffic_gb, 3),
        "traffic_usd_at_most": _usd(training.traffic_usd),
    }


def _sizes(training: Training, cluster: str, *, rehearsal: bool) -> Section:
    notes = [
        f"{training.mean_world_size:.2f} workers on average; {_redone(training)}",
        f"start: {duration(training.start_s)} from the launch to the first step, which is no pause",
        "pause: the time to the first step of a line, less a usual step; a stall begins a line",
    ]
    if rehearsal:
        notes.append("rehearsal: the workers ran on this machine")
    work = f"{training.steps} steps, {training.samples} samples in {training.seconds:.1f} s"
    return Section(
        heading=f"{cluster}: {work}",
        titles=("at s", "workers", "steps", "pause s"),
        rows=[
            (f"{period.at_s:.1f}", str(period.world_size), str(period.steps), _pause(period.pause_s))
            for period in training.periods
        ],
        notes=notes,
        numeric=frozenset({0, 1, 2, 3}),
    )


def _redone(training: Training) -> str:
    text = f"{training.steps_redone} step(s) redone"
    if not training.redone_usd:
        return text
    return f"{text}, which cost {money(training.redone_usd)} USD"


def _events(training: Training) -> Section:
    return Section(
        heading="what happened",
        titles=("at s", "worker", "event", "cause"),
        rows=[(f"{event.at_s:.1f}", event.worker, event.event, event.cause) for event in training.events],
        numeric=frozenset({0}),
    )


def _decisions(decisions: Sequence[Outlook]) -> Section:
    last = decisions[-1]
    return Section(
        heading=f"decisions for the deadline, {last.deadline:%Y-%m-%d %H:%M:%S} UTC",
        titles=("time left", "worker-hours left", "probability", "change", "reason"),
        rows=[
            (
                describe_seconds(outlook.time_left_s),
                f"{outlook.work_left_s / 3600:.2f}",
                describe_probability(outlook.probability),
                _change(outlook),
                outlook.reason,
            )
            for outlook in decisions
        ],
        notes=["probability: that the deadline holds, an estimate (docs/elastic.md)"],
        numeric=frozenset({1}),
    )


def _change(outlook: Outlook) -> str:
    launches = [f"+{count} {pools}" for pools, count in outlook.launch.items()]
    return "; ".join([*launches, *(f"-{name}" for name in outlook.drain)])


def _costs(training: Training) -> Section:
    rows = []
    for cost in training.costs:
        record = {**_cost_record(cost), "usd": None if cost.usd is None else money(cost.usd)}
        rows.append(tuple("" if value is None else str(value) for value in record.values()))
    heading = "what each instance cost; a price is not known"
    if training.usd is not None:
        heading = f"{money(training.usd)} USD in all, volumes and addresses included"
    return Section(
        heading=heading,
        titles=("instance", "type", "market", "seconds", "USD/h", "USD"),
        rows=rows,
        notes=[_beside_baseline(training), *_traffic(training)],
        numeric=frozenset({3, 4, 5}),
    )


def _cost_record(cost: InstanceCost) -> dict[str, Cell]:
    instance, hourly_usd = cost.member.instance, cost.member.hourly_usd
    return {
        "instance": instance.instance_id,
        "type": instance.instance_type,
        "market": instance.market.value,
        "seconds": cost.seconds,
        "hourly_usd": None if hourly_usd is None else str(hourly_usd),
        "usd": _usd(cost.usd),
    }


def _beside_baseline(training: Training) -> str:
    baseline, saved = training.baseline, training.saved_fraction
    if not training.trained_s:
        return "one step compares nothing: no saving beside a fixed run is claimed"
    if baseline is None or saved is None:
        return "the cost of a fixed run is unknown: a price or a speed is missing"
    word = "saved" if saved >= 0 else "more"
    return (
        f"the same steps on {baseline.instances} on-demand instances, without a change: about"
        f" {money(baseline.usd)} USD in {baseline.seconds:.0f} s; {abs(saved) * 100:.0f} % {word}"
        + (", which EC2's minimum of a minute an instance decides" if training.is_minimum_billed else "")
    )


def _traffic(training: Training) -> list[str]:
    if not training.traffic_gb:
        return []
    amount = f"{training.traffic_gb:.3g} GB, {money(training.traffic_usd)} USD"
    return [f"traffic between zones, at most, not in the total: {amount}"]


def _pause(pause_s: float | None) -> str:
    if pause_s is None:
        return ""
    return "0" if pause_s < CALM_S else f"{pause_s:.3f}"


def _usd(value: Decimal | None) -> str | None:
    return None if value is None else str(rounded(value))
