"""The walk of `dlcloud gc`: look in every region, price, show, ask, remove."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

import click

from dlcloud.cli.context import Context
from dlcloud.core.cluster import CONTROLLER_TAG, NAME_TAG, Leftover
from dlcloud.core.errors import BudgetError, CloudError, DlcloudError, PartialError
from dlcloud.core.events import Notice, Warned, stage
from dlcloud.launch.sweep import gc
from dlcloud.report.leftovers import Priced, leftovers_report, priced
from dlcloud.report.table import Format, render
from dlcloud.system.parallel import fan_out

DEFAULT_REGION = "us-east-1"
REGIONS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Sweeper:
    """One `dlcloud gc`.

    Args:
        context: The collaborators.
        cloud: Where to look.
        regions: In which regions; all if empty.
        clusters: Only what belongs to these; everything that nobody is in charge of if empty.
    """

    context: Context
    cloud: str
    regions: tuple[str, ...]
    clusters: frozenset[str]

    def go(self, *, dry_run: bool, yes: bool, output: str) -> None:
        """Show what is left over and, where that is wanted, remove it.

        Raises:
            CloudError: Nothing could be looked at, or removed.
            PartialError: Some regions could not be looked at, or some things are still there.
        """
        found, unseen = self._find()
        lines = self._price(found)
        click.echo(render(leftovers_report(lines, now=self.context.clock.now()), Format(output)))
        failed = [] if dry_run or not found else self._remove(found, yes=yes)
        if unseen or failed:
            partial = PartialError("\n".join(error.message for error in [*unseen, *failed]), "dlcloud gc")
            partial.result_shown = True
            raise partial

    def _find(self) -> tuple[list[Leftover], list[DlcloudError]]:
        """Look in all regions at once; what the store knows to be up is not left over."""
        context = self.context
        regions = list(self.regions) or context.cloud(self.cloud, DEFAULT_REGION).regions()
        with stage(context.emit, context.clock, f"looking in {len(regions)} region(s)"):
            outcomes = fan_out(
                lambda region: context.cloud(self.cloud, region).leftovers(), regions, width=REGIONS_AT_ONCE
            )
        unseen = [outcome.error for outcome in outcomes if isinstance(outcome.error, DlcloudError)]
        if len(unseen) == len(regions):
            raise unseen[0]
        found = [each for outcome in outcomes for each in outcome.value or ()]
        own = {cluster.cluster_id for cluster in context.clusters.active()} | self._controlled(found)
        found = [each for each in found if each.cluster_id not in own]
        return [each for each in found if not self.clusters or each.cluster_id in self.clusters], unseen

    def _controlled(self, found: Sequence[Leftover]) -> set[str]:
        """Return the clusters that an instance of their own controls, which lives; not one that is named."""
        told = {
            each.cluster_id: each.instance
            for each in found
            if each.instance and CONTROLLER_TAG in each.instance.tags and each.cluster_id not in self.clusters
        }
        for cluster_id, instance in told.items():
            name = instance.tags.get(NAME_TAG, "").removeprefix("dlcloud ")
            message = f"{name or cluster_id} ({cluster_id}) is left alone: its own instance controls it"
            self.context.emit(Notice(message=message, instance_id=instance.instance_id))
        return set(told)

    def _price(self, found: Sequence[Leftover]) -> list[Priced]:
        lines: list[Priced] = []
        for region, group in groupby(sorted(found, key=lambda each: each.region), lambda each: each.region):
            here = list(group)
            prices = self._prices(region, here)
            lines += [priced(each, prices.get(each.resource_id)) for each in here]
        return lines

    def _prices(self, region: str, leftovers: Sequence[Leftover]) -> dict[str, Decimal]:
        instances = [each.instance for each in leftovers if each.instance]
        if not instances:
            return {}
        types = sorted({each.instance_type for each in instances})
        markets = sorted({each.market for each in instances})
        try:
            known = self.context.cloud(self.cloud, region).prices(types, markets)
        except CloudError as error:
            self.context.emit(Warned(message=f"prices are unknown: {error.message}"))
            return {}
        by_pool = {(p.instance_type, p.market, p.zone): p.hourly_usd for p in known}
        told = {
            each.instance_id: by_pool.get((each.instance_type, each.market, each.zone))
            or by_pool.get((each.instance_type, each.market, ""))
            for each in instances
        }
        return {name: usd for name, usd in told.items() if usd is not None}

    def _remove(self, found: Sequence[Leftover], *, yes: bool) -> list[DlcloudError]:
        context = self.context
        if not yes and not sys.stdin.isatty():
            raise BudgetError("this removes things for good, and nobody can be asked", "say --yes")
        if not yes:
            click.confirm("Remove all of it?", abort=True, err=True)
        failed: list[DlcloudError] = []
        for region, group in groupby(sorted(found, key=lambda each: each.region), lambda each: each.region):
            try:
                gc(
                    list(group),
                    cloud=context.cloud(self.cloud, region),
                    clock=context.clock,
                    emit=context.emit,
                )
            except DlcloudError as error:
                failed.append(error)
        if not failed:
            context.emit(Notice(message=f"{len(found)} thing(s) removed"))
        return failed
