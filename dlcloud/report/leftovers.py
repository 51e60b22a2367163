"""What is left of clusters that nobody is in charge of, with what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dlcloud.core.cluster import Leftover
from dlcloud.core.cost import money, volume_usd
from dlcloud.report.table import Cell, Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A leftover and what an hour of it costs; None where no price is known."""

    leftover: Leftover
    hourly_usd: Decimal | None


def priced(leftover: Leftover, instance_usd: Decimal | None) -> Priced:
    """Return a leftover with its price: `instance_usd` for an instance, gp3's for a volume, else nothing."""
    if leftover.kind == "instance":
        return Priced(leftover=leftover, hourly_usd=instance_usd)
    return Priced(leftover=leftover, hourly_usd=volume_usd(leftover.size_gib))


def leftovers_report(lines: Sequence[Priced], *, now: datetime) -> Report:
    """Return a row for each, the dearest first, and the sum."""
    ordered = sorted(lines, key=lambda line: (-(line.hourly_usd or Decimal(0)), line.leftover.resource_id))
    total = sum((line.hourly_usd or Decimal(0) for line in lines), Decimal(0))
    unknown = any(line.hourly_usd is None for line in lines)
    note = f"{money(total)} USD/h{' and what has no known price' if unknown else ''}"
    section = Section(
        heading="",
        titles=("cluster", "region", "what", "id", "type", "since", "USD/h"),
        rows=[_row(line, now) for line in ordered],
        notes=[note, "a cluster of another machine or person is among these if its store is not this one"],
        numeric=frozenset({6}),
    )
    return Report(
        command="gc",
        records=[_record(line) for line in ordered],
        sections=[section] if lines else [],
        empty="nothing is left over",
        extra={"hourly_usd": total},
    )


def _row(line: Priced, now: datetime) -> tuple[str, ...]:
    each = line.leftover
    since = str(now - each.instance.launched_at).partition(".")[0] if each.instance else ""
    kind = each.instance.instance_type if each.instance else f"{each.size_gib} GiB" if each.size_gib else ""
    usd = "unknown" if line.hourly_usd is None else money(line.hourly_usd) if line.hourly_usd else ""
    return (each.cluster_id, each.region, each.kind, each.resource_id, kind, since, usd)


def _record(line: Priced) -> dict[str, Cell]:
    each = line.leftover
    return {
        "cluster_id": each.cluster_id,
        "name": each.name,
        "region": each.region,
        "kind": each.kind,
        "id": each.resource_id,
        "instance_type": each.instance.instance_type if each.instance else None,
        "market": str(each.instance.market) if each.instance else None,
        "zone": each.instance.zone if each.instance else None,
        "launched_at": each.instance.launched_at if each.instance else None,
        "size_gib": each.size_gib or None,
        "hourly_usd": line.hourly_usd,
    }
