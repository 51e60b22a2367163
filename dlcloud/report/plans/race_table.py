"""A race as a table: each candidate with its cost, and why it was stopped."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dlcloud.model.money import money
from dlcloud.prediction.race_result import RaceCandidate, RaceResult
from dlcloud.prediction.racing import Verdict
from dlcloud.report.table import Section

_HEADINGS = {
    Verdict.DECIDED: "the cheapest: ",
    Verdict.TIED: "a tie: ",
    Verdict.UNDECIDED: "not decided: ",
    Verdict.GOES_ON: "the race was not ended: ",
}


def race_section(result: RaceResult, *, rehearsal: bool) -> Section:
    """Return the table of a race, the cheapest first; its heading is the answer."""
    remark = " (rehearsal: no figure of these types)" if rehearsal else ""
    text = f"{result.kept[0]}" if result.verdict is Verdict.DECIDED else result.reason
    notes = [f"{name} left the race: {reason}" for name, reason in result.left.items()]
    notes.append("USD/M: per million items on this market; its interval holds at every look of the race")
    return Section(
        heading=f"race{remark}: {_HEADINGS[result.verdict]}{text}",
        titles=("candidate", "samples", result.unit, "USD/M", "interval", "outcome"),
        rows=[_row(lane, result) for lane in _ordered(result)],
        notes=notes,
        numeric=frozenset({1, 2, 3}),
        leads=3,
    )


def race_record(result: RaceResult) -> Mapping[str, Any]:
    """Return the same for programs."""
    return {
        "verdict": result.verdict.value,
        "reason": result.reason,
        "kept": list(result.kept),
        "left": dict(result.left),
        "candidates": [_record(lane, result) for lane in _ordered(result)],
    }


def _ordered(result: RaceResult) -> list[RaceCandidate]:
    kept = {label: place for place, label in enumerate(result.kept)}
    return sorted(result.lanes, key=lambda lane: (kept.get(lane.label, len(kept)), _middle(lane)))


def _middle(lane: RaceCandidate) -> float:
    return lane.hourly_usd / lane.throughput if lane.throughput else float("inf")


def _outcome(lane: RaceCandidate, result: RaceResult) -> str:
    if lane.stopped is not None:
        return f"stopped: {lane.stopped}"
    if lane.label not in result.kept:
        return "not measured"
    words = {Verdict.DECIDED: "the cheapest", Verdict.TIED: "tied"}
    return words.get(result.verdict, "can be the cheapest")


def _row(lane: RaceCandidate, result: RaceResult) -> tuple[str, ...]:
    rate = lane.throughput
    if rate is None:
        return (lane.label, "0", "", "", "", _outcome(lane, result))
    low, middle, high = lane.usd_per_million(result.error)
    interval = "" if low is None or high is None else f"{_money(low)} to {_money(high)}"
    count = str(len(lane.throughputs))
    return (lane.label, count, f"{rate:.4g}", _money(middle), interval, _outcome(lane, result))


def _money(usd: float) -> str:
    return money(Decimal(repr(usd)))


def _record(lane: RaceCandidate, result: RaceResult) -> dict[str, Any]:
    low, middle, high = lane.usd_per_million(result.error) if lane.throughputs else (None, None, None)
    return {
        "instance_type": lane.instance_type,
        "setting": lane.setting or None,
        "samples": len(lane.throughputs),
        "unit": result.unit,
        "throughput": lane.throughput,
        "usd_per_million": middle,
        "usd_per_million_low": low,
        "usd_per_million_high": high,
        "outcome": _outcome(lane, result),
    }
