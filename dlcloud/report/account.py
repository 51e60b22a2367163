"""The state of an account as tables: the checks of `doctor`, and what `gc` found left over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dlcloud.analysis.selftest import Finding, SelftestVerdict
from dlcloud.model.cluster import Leftover, OwnImage, stale_reason
from dlcloud.model.ebs_prices import HOURS_PER_MONTH, snapshot_usd, volume_usd
from dlcloud.model.money import money, total_usd
from dlcloud.report.table import Cell, Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: `good` is None for one that could not be made."""

    name: str
    good: bool | None
    detail: str
    region: str = ""
    """Of a recipe with several."""

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "REFUSED", None: "unknown"}[self.good]


def describe_place(cloud: str, region: str) -> str:
    """Return which cloud is asked, for the first line of what it answered."""
    place = "AWS" if cloud == "aws" else "the local EC2, a rehearsal on this machine, not AWS"
    return f"{place}, {region}"


def findings_report(
    checks: Sequence[Check],
    *,
    target: str,
    place: str,
    statements: Sequence[Mapping[str, object]] = (),
    remedy: str = "",
    next_command: str = "",
) -> Report:
    """Return a row for each check.

    `statements` are those that the caller's policy lacks; `remedy` says what to do first where it would not
    start, `next_command` starts it.
    """
    has_regions = any(check.region for check in checks)
    return Report(
        command="doctor",
        records=[
            {
                **({"region": check.region} if has_regions else {}),
                "check": check.name,
                "verdict": check.verdict,
                "detail": check.detail,
            }
            for check in checks
        ],
        sections=[
            Section(
                heading=f"{place}: would {target} start?",
                titles=(*(["region"] if has_regions else []), "check", "verdict", "detail"),
                rows=[
                    (*([check.region] if has_regions else []), check.name, check.verdict, check.detail)
                    for check in checks
                ],
                notes=[f"{target} would start; next: {next_command}"] if next_command else (),
            )
        ],
        empty="",
        extra={
            "place": place,
            "missing_statements": list(statements),
            "remedy": remedy,
            "next": next_command,
        },
    )


def selftest_report(findings: Sequence[Finding], *, errors: Sequence[str], place: str) -> Report:
    failed = [finding for finding in findings if finding.verdict is SelftestVerdict.FAILED]
    verdict = f"all of it works on {place}"
    if failed:
        first = errors[0] if errors else f"row {failed[0].number}: {failed[0].evidence}"
        verdict = f"{len(failed)} of {len(findings)} rows FAILED on {place}; look first at {first}"
    return Report(
        command="selftest",
        records=[
            {
                "number": finding.number,
                "claim": finding.claim,
                "verdict": str(finding.verdict),
                "evidence": finding.evidence,
            }
            for finding in findings
        ],
        sections=[
            Section(
                heading=f"self-test of {place}",
                titles=("#", "claim", "verdict", "evidence"),
                rows=[(f.number, f.claim, str(f.verdict), f.evidence) for f in findings],
                notes=[*errors, verdict],
            )
        ],
        empty="",
        extra={"place": place, "errors": list(errors)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLeftover:
    """A leftover and the price of an hour of it; None at an unknown price."""

    leftover: Leftover
    hourly_usd: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedCluster:
    """A cluster whose launcher is gone before its end, with what of it can cost money."""

    name: str
    resources: Sequence[PricedLeftover]

    @property
    def instances(self) -> int:
        return sum(one.leftover.kind == "instance" for one in self.resources)

    @property
    def hourly_usd(self) -> Decimal | None:
        """The price of an hour; None where that of a part is not known."""
        return total_usd(one.hourly_usd for one in self.resources)


def price_leftover(leftover: Leftover, instance_usd: Decimal | None) -> PricedLeftover:
    """Return a leftover with its price: `instance_usd` for an instance, else that of its storage."""
    if leftover.kind == "instance":
        return PricedLeftover(leftover=leftover, hourly_usd=instance_usd)
    if leftover.kind in {"image", "snapshot"}:
        return PricedLeftover(leftover=leftover, hourly_usd=snapshot_usd(leftover.size_gib))
    return PricedLeftover(leftover=leftover, hourly_usd=volume_usd(leftover.size_gib, region=leftover.region))


def leftovers_report(
    priced: Sequence[PricedLeftover], *, unfinished: Sequence[UnfinishedCluster] = (), now: datetime
) -> Report:
    """Return a row for each, the most expensive first, and the sum; then the clusters that are unfinished."""
    ordered = sorted(priced, key=lambda one: (-(one.hourly_usd or Decimal(0)), one.leftover.resource_id))
    total = sum((one.hourly_usd or Decimal(0) for one in priced), Decimal(0))
    unknown = any(one.hourly_usd is None for one in priced)
    note = f"{money(total)} USD/h{' and what has no known price' if unknown else ''}"
    section = Section(
        heading="",
        titles=("cluster", "region", "what", "id", "type", "since", "USD/h"),
        rows=[_row(one, now) for one in ordered],
        notes=[note, "a cluster of another machine or person is among these if its store is not this one"],
        numeric=frozenset({6}),
        optional=(4,),
    )
    return Report(
        command="gc",
        records=[_record(one) for one in ordered],
        sections=[*([section] if priced else []), *([_unfinished_section(unfinished)] if unfinished else [])],
        empty="nothing is left over",
        extra={"hourly_usd": total, "unfinished": [_unfinished_record(cluster) for cluster in unfinished]},
    )


def _unfinished_section(unfinished: Sequence[UnfinishedCluster]) -> Section:
    return Section(
        heading="unfinished: the launcher of these clusters is gone",
        titles=("cluster", "instances", "USD/h", "command that ends it"),
        rows=[
            (
                cluster.name,
                str(cluster.instances),
                "unknown" if cluster.hourly_usd is None else money(cluster.hourly_usd),
                f"dlcloud down {cluster.name}",
            )
            for cluster in unfinished
        ],
        notes=["the same `up` continues with them; gc leaves them alone"],
        numeric=frozenset({1, 2}),
    )


def _unfinished_record(cluster: UnfinishedCluster) -> dict[str, Cell]:
    return {
        "cluster": cluster.name,
        "instances": cluster.instances,
        "hourly_usd": cluster.hourly_usd,
        "command": f"dlcloud down {cluster.name}",
    }


def _row(priced: PricedLeftover, now: datetime) -> tuple[str, ...]:
    leftover, instance = priced.leftover, priced.leftover.instance
    begun_at = instance.launched_at if instance else leftover.image.created_at if leftover.image else None
    since = str(now - begun_at).partition(".")[0] if begun_at else ""
    size = f"{leftover.size_gib} GiB" if leftover.size_gib else ""
    kind = instance.instance_type if instance else size
    usd = "unknown" if priced.hourly_usd is None else money(priced.hourly_usd) if priced.hourly_usd else ""
    return (leftover.cluster_id, leftover.region, leftover.kind, leftover.resource_id, kind, since, usd)


def _record(priced: PricedLeftover) -> dict[str, Cell]:
    leftover, instance = priced.leftover, priced.leftover.instance
    return {
        "cluster_id": leftover.cluster_id,
        "name": leftover.name,
        "region": leftover.region,
        "kind": leftover.kind,
        "id": leftover.resource_id,
        "instance_type": instance.instance_type if instance else None,
        "market": str(instance.market) if instance else None,
        "zone": instance.zone if instance else None,
        "launched_at": instance.launched_at if instance else None,
        "size_gib": leftover.size_gib or None,
        "hourly_usd": priced.hourly_usd,
    }


def images_report(images: Sequence[OwnImage], *, region: str, now: datetime) -> Report:
    """Return a row for each image, with the most that it costs a month."""
    records: list[dict[str, Cell]] = [
        {
            "image_id": image.image_id,
            "name": image.name,
            "region": region,
            "state": stale_reason(image, images, now) or image.state,
            "created_at": image.created_at,
            "size_gib": image.size_gib,
            "monthly_usd": snapshot_usd(image.size_gib) * HOURS_PER_MONTH,
            "cluster_id": image.cluster_id,
        }
        for image in images
    ]
    section = Section(
        heading="",
        titles=("image", "name", "state", "created", "GiB", "USD/month", "cluster"),
        rows=[
            (
                image.image_id,
                image.name,
                str(record["state"]),
                f"{image.created_at:%Y-%m-%d %H:%M}",
                str(image.size_gib),
                money(snapshot_usd(image.size_gib) * HOURS_PER_MONTH),
                image.cluster_id,
            )
            for image, record in zip(images, records, strict=True)
        ],
        notes=["USD/month at most: empty blocks are not billed", "dlcloud gc CLUSTER deletes an image"],
        numeric=frozenset({4, 5}),
    )
    return Report(
        command="image", records=records, sections=[section] if images else [], empty=f"no images in {region}"
    )
