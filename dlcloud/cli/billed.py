"""`dlcloud cost-report --billed`: ask Cost Explorer, and say in a word why it does not answer."""

from collections.abc import Sequence
from dataclasses import replace

from dlcloud.cli.context import Context
from dlcloud.core.cost import BilledCost, reconcile
from dlcloud.core.errors import CloudError
from dlcloud.core.result_row import ResultRow
from dlcloud.report.billed import billed_records, billed_section
from dlcloud.report.table import Report

ONLY_REHEARSED = "all of these were rehearsed on the local EC2, which bills nothing: AWS was not asked"
ELSEWHERE = "these were measured from other homes: their owners' accounts were billed, AWS was not asked"


def with_bills(context: Context, report: Report, lines: Sequence[ResultRow]) -> Report:
    """Return the report with what AWS billed for the clusters of its lines."""
    wanted = {line.run.cluster_id for line in lines}
    known = [cluster for cluster in context.clusters.all() if cluster.cluster_id in wanted]
    own = [cluster for cluster in known if cluster.cloud != "local"]
    now = context.clock.now()
    billed: dict[str, BilledCost] = {}
    unanswered = ""
    if own:
        first = min(cluster.created_at for cluster in own)
        try:
            billed = context.billing().by_cluster([each.cluster_id for each in own], since=first, now=now)
        except CloudError as error:
            # Only this column is missing; everything else of the report is as good as before.
            unanswered = f"AWS's side is not known: {error.message}"
            unanswered += f"; {error.hint}" if error.hint else ""
    elif lines:
        unanswered = ONLY_REHEARSED if all(line.rehearsal for line in lines) else ELSEWHERE
    members = {cluster.cluster_id: context.clusters.members(cluster.cluster_id) for cluster in own}
    beside = reconcile(own, members, billed, now)
    return replace(
        report,
        sections=[*report.sections, billed_section(beside, unanswered)] if lines else report.sections,
        extra={**report.extra, "billed": billed_records(beside, unanswered)},
    )
