"""Predictions as tables: each figure is marked as predicted or measured, in every format."""

from collections.abc import Sequence
from decimal import Decimal

from dlcloud.model.instance import Market
from dlcloud.model.money import money
from dlcloud.prediction.offers import PredictedJob, PredictedOffer
from dlcloud.report.table import Cell, Report, Section

FEW_MEASURED = 3
ATTRIBUTION = "table of types derived from measurements (c) Spare Cores, CC BY-SA 4.0"


def prediction_report(
    jobs: Sequence[PredictedJob], *, region: str, market: Market, most: int, as_of: str
) -> Report:
    """Return the predictions, of each job the `most` cheapest types; records have all types."""
    return Report(
        command="predict",
        records=[_record(job, offer) for job in jobs for offer in job.offers],
        sections=[_section(job, region, market, most, as_of) for job in jobs],
        empty="nothing is measured; dlcloud bench measures",
        extra={
            "region": region,
            "table_as_of": as_of,
            "attribution": ATTRIBUTION,
            "not_predicted": [
                {"benchmark": job.workload, "case": job.case, "setting": job.setting, "reason": job.refused}
                for job in jobs
                if job.refused
            ],
        },
    )


def _section(job: PredictedJob, region: str, market: Market, most: int, as_of: str) -> Section:
    heading = f"{job.workload}, {job.case}, {job.setting}".replace(", ,", ",")
    if job.refused:
        return Section(heading=heading, titles=(), rows=(), notes=[f"not predicted: {job.refused}"])
    return Section(
        heading=heading,
        titles=("type", "source", job.unit, "90 %", f"USD/M {market}", "90 %"),
        rows=[_row(offer, market) for offer in job.offers[:most]],
        notes=_notes(job, region, most, as_of),
        numeric=frozenset({2, 4}),
    )


def _notes(job: PredictedJob, region: str, most: int, as_of: str) -> list[str]:
    measured = [offer.estimate.instance_type for offer in job.offers if offer.estimate.measured]
    notes = [f"predicted from {len(measured)} measured type(s); {region}; {ATTRIBUTION}, until {as_of}"]
    if len(job.offers) > most:
        notes.append(f"the {most} cheapest of {len(job.offers)} types; --all, or --output csv, has all")
    if len(measured) < FEW_MEASURED:
        notes.append(f"{FEW_MEASURED} measured types of different size and processor tell much more")
    if any(not offer.listed for offer in job.offers[:most]):
        notes.append("predicted~: the type itself is estimated from its specifications")
    return notes


def _source(offer: PredictedOffer) -> str:
    return "measured" if offer.estimate.measured else "predicted" if offer.listed else "predicted~"


def _row(offer: PredictedOffer, market: Market) -> tuple[str, ...]:
    one, figures = offer.estimate, offer.usd_per_million(market)
    return (
        one.instance_type,
        _source(offer),
        f"{one.throughput:.3g}",
        f"{one.low:.3g}–{one.high:.3g}",
        "" if figures is None else money(figures[1]),
        "" if figures is None else f"{money(figures[0])}–{money(figures[2])}",
    )


def _record(job: PredictedJob, offer: PredictedOffer) -> dict[str, Cell]:
    one = offer.estimate
    record: dict[str, Cell] = {
        "benchmark": job.workload,
        "case": job.case,
        "setting": job.setting,
        "instance_type": one.instance_type,
        "source": "measured" if one.measured else "predicted",
        "type_estimated_from_specifications": not offer.listed,
        "unit": job.unit,
        "throughput": one.throughput,
        "throughput_low": one.low,
        "throughput_high": one.high,
    }
    for market in Market:
        figures: Sequence[Decimal | None] = offer.usd_per_million(market) or (None, None, None)
        word = market.value.replace("-", "_")
        for bound, figure in zip(("low", "", "high"), figures, strict=True):
            record[f"{word}_usd_per_million{'_' if bound else ''}{bound}"] = figure
    return record
