"""An elastic run as tables: what it came to, its sizes over time, what happened, what each instance cost."""

from decimal import Decimal

from dlcloud.core.cost import money, rounded
from dlcloud.core.instance import Market
from dlcloud.core.training import Training, market_usd
from dlcloud.report.table import Cell, Report, Section

CALM_S = 0.0005


def training_report(
    training: Training, *, cluster: str, rehearsal: bool, command: str = "training"
) -> Report:
    """Return what a run came to.

    Args:
        training: The run.
        cluster: The cluster's name.
        rehearsal: Whether it ran on this machine, at the prices of other ones.
        command: Which command prints it.
    """
    return Report(
        command=command,
        records=[_record(training)],
        sections=[_sizes(training, cluster, rehearsal=rehearsal), _events(training), _costs(training)],
        empty="",
        extra={
            "cluster": cluster,
            "rehearsal": rehearsal,
            "world_sizes": [
                {
                    "at_s": each.at_s,
                    "world_size": each.world_size,
                    "steps": each.steps,
                    "pause_s": each.pause_s,
                }
                for each in training.periods
            ],
            "events": [
                {"at_s": each.at_s, "event": each.event, "cause": each.cause, "worker": each.worker}
                for each in training.events
            ],
            "instances": [_cost_record(training, place) for place in range(len(training.costs))],
        },
    )


def _record(training: Training) -> dict[str, Cell]:
    fixed = training.baseline
    return {
        "run": training.run,
        "steps": training.steps,
        "samples": training.samples,
        "seconds": round(training.seconds, 3),
        "mean_world_size": round(training.mean_world_size, 3),
        "steps_redone": training.steps_redone,
        "last_loss": training.last_loss,
        "usd": _usd(training.usd),
        "spot_usd": _usd(market_usd(training, Market.SPOT)),
        "on_demand_usd": _usd(market_usd(training, Market.ON_DEMAND)),
        "fixed_instances": None if fixed is None else fixed.instances,
        "fixed_seconds": None if fixed is None else round(fixed.seconds, 1),
        "fixed_usd": None if fixed is None else _usd(fixed.usd),
        "saved": None if training.saved_fraction is None else round(float(training.saved_fraction), 4),
    }


def _sizes(training: Training, cluster: str, *, rehearsal: bool) -> Section:
    rows = [
        (f"{each.at_s:.1f}", str(each.world_size), str(each.steps), _pause(each.pause_s))
        for each in training.periods
    ]
    told = f"{training.steps} steps, {training.samples} samples in {training.seconds:.1f} s"
    notes = [
        f"{training.mean_world_size:.2f} workers on average; {training.steps_redone} step(s) redone",
        "pause: the first step at that size, less a usual one",
    ]
    if rehearsal:
        notes.append("rehearsal: the workers ran on this machine")
    return Section(
        heading=f"{cluster}: {told}",
        titles=("at s", "workers", "steps", "pause s"),
        rows=rows,
        notes=notes,
        numeric=frozenset({0, 1, 2, 3}),
    )


def _events(training: Training) -> Section:
    rows = [(f"{each.at_s:.1f}", each.worker, each.event, each.cause) for each in training.events]
    return Section(
        heading="what happened",
        titles=("at s", "worker", "event", "cause"),
        rows=rows,
        numeric=frozenset({0}),
    )


def _costs(training: Training) -> Section:
    rows = []
    for place, share in enumerate(training.costs):
        record = {**_cost_record(training, place), "usd": None if share.usd is None else money(share.usd)}
        rows.append(tuple("" if value is None else str(value) for value in record.values()))
    return Section(
        heading=_heading(training),
        titles=("instance", "type", "market", "seconds", "USD/h", "USD"),
        rows=rows,
        notes=_notes(training),
        numeric=frozenset({3, 4, 5}),
    )


def _cost_record(training: Training, place: int) -> dict[str, Cell]:
    share = training.costs[place]
    instance = share.member.instance
    return {
        "instance": instance.instance_id,
        "type": instance.instance_type,
        "market": instance.market.value,
        "seconds": share.seconds,
        "hourly_usd": None if share.member.hourly_usd is None else str(share.member.hourly_usd),
        "usd": _usd(share.usd),
    }


def _heading(training: Training) -> str:
    if training.usd is None:
        return "what each instance cost; a price is not known"
    return f"{money(training.usd)} USD in all, volumes included"


def _notes(training: Training) -> list[str]:
    fixed, saved = training.baseline, training.saved_fraction
    if fixed is None or saved is None:
        return ["what a fixed run would have cost cannot be told: a price or a speed is missing"]
    told = f"the same steps on {fixed.instances} on-demand instances, without a change: about"
    word = "saved" if saved >= 0 else "more"
    return [f"{told} {money(fixed.usd)} USD in {fixed.seconds:.0f} s; {abs(saved) * 100:.0f} % {word}"]


def _pause(pause_s: float | None) -> str:
    if pause_s is None:
        return ""
    return "0" if pause_s < CALM_S else f"{pause_s:.3f}"


def _usd(value: Decimal | None) -> str | None:
    return None if value is None else str(rounded(value))
