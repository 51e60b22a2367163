"""`dlcloud gc`: find, price and remove what is left of clusters that no command manages."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import output_option, verbose_option
from dlcloud.core.cluster import CONTROLLER_TAG, DEFAULT_REGION, REGIONS_AT_ONCE, Leftover, cluster_name
from dlcloud.core.cost import money, price_of, snapshot_usd
from dlcloud.core.errors import BudgetError, CloudError, CredentialsError, DlcloudError, PartialError
from dlcloud.core.events import Notice, Warned, stage
from dlcloud.core.own_images import stale_reason
from dlcloud.core.surcharges import HOURS_PER_MONTH
from dlcloud.report.account import PricedLeftover, leftovers_report, price_leftover
from dlcloud.report.table import Format, render
from dlcloud.system.parallel import fan_out

if TYPE_CHECKING:
    from dlcloud.cli.context import Context


@click.command("gc")
@click.argument("clusters", nargs=-1)
@click.option("--region", "regions", multiple=True, help="Only there; default: every region of the account.")
@click.option(
    "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Where to look."
)
@click.option("--dry-run", is_flag=True, help="Show; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@output_option
@verbose_option
def command(
    *,
    clusters: tuple[str, ...],
    regions: tuple[str, ...],
    cloud: str,
    dry_run: bool,
    yes: bool,
    output: str,
    verbose: bool,
) -> None:
    """Find by tag what no cluster of this machine's store accounts for, price it, and remove it.

    It needs no store: after the laptop is lost, any machine with credentials does. A cluster that one of its
    own instances controls is left alone while that lives. With CLUSTERS (ids), only what belongs to them is
    removed, detached ones included. Regions that a policy denies are named and passed over. Images that
    `dlcloud image` made are removed, with their snapshots, once they are superseded by a newer one, or not
    launched for 30 days, or their cluster is named.
    """
    from dlcloud.cli.context import Context

    with Context("gc", verbose=verbose) as context:
        collector = Collector(context=context, cloud=cloud, regions=regions, clusters=frozenset(clusters))
        collector.run(dry_run=dry_run, yes=yes, output=output)


@dataclass(frozen=True, kw_only=True)
class Collector:
    """One `dlcloud gc`, with the options of the command."""

    context: "Context"
    cloud: str
    regions: tuple[str, ...]
    clusters: frozenset[str]

    def run(self, *, dry_run: bool, yes: bool, output: str) -> None:
        """Show what is left over and, unless `dry_run`, remove it.

        Raises:
            CloudError: No region could be listed.
            PartialError: Some regions could not be listed though they are allowed, or things are still there.
        """
        leftovers, failed = self._find()
        click.echo(
            render(leftovers_report(self._price(leftovers), now=self.context.clock.now()), Format(output))
        )
        if leftovers and not dry_run:
            failed += self._remove(leftovers, yes=yes)
        if failed:
            message = "\n".join(error.message for error in failed)
            raise PartialError(message, "dlcloud gc", result_shown=True)

    def _find(self) -> tuple[list[Leftover], list[DlcloudError]]:
        """List all regions at once; what the store knows to be up is not left over."""
        context = self.context
        regions = list(self.regions) or context.cloud(self.cloud, self._first_region).regions()
        with stage(context.emit, context.clock, f"looking in {len(regions)} region(s)"):
            outcomes = fan_out(
                lambda region: context.cloud(self.cloud, region).leftovers(), regions, width=REGIONS_AT_ONCE
            )
        errors = {o.item: o.error for o in outcomes if isinstance(o.error, DlcloudError)}
        if len(errors) == len(regions):
            raise errors[regions[0]]
        failed = self._without_denied(errors)
        leftovers = [item for outcome in outcomes for item in outcome.value or ()]
        managed_ids = {cluster.cluster_id for cluster in context.clusters.active()}
        managed_ids |= self._detached_ids(leftovers)
        leftovers = self._without_current_images(leftovers)
        return [
            item
            for item in leftovers
            if item.cluster_id not in managed_ids and (not self.clusters or item.cluster_id in self.clusters)
        ], failed

    @property
    def _first_region(self) -> str:
        return DEFAULT_REGION if self.cloud == "local" else self.context.first_region

    def _without_denied(self, errors: Mapping[str, DlcloudError]) -> list[DlcloudError]:
        """Return the errors of regions without the denials of those that no option names, which are shown.

        Where a policy denies a region of the account, gc can remove nothing, now or later, and a launch is
        denied there, too.
        """
        denied = [
            region
            for region, error in errors.items()
            if isinstance(error, CredentialsError) and error.is_final and region not in self.regions
        ]
        if denied:
            first = errors[denied[0]].message
            message = f"not looked at, as these credentials may not: {', '.join(denied)} ({first})"
            self.context.emit(Warned(message=message))
        return [error for region, error in errors.items() if region not in denied]

    def _detached_ids(self, leftovers: Sequence[Leftover]) -> set[str]:
        """Return the clusters that a living instance of their own controls, without those that are named."""
        controllers = {
            item.cluster_id: item.instance
            for item in leftovers
            if item.instance and CONTROLLER_TAG in item.instance.tags and item.cluster_id not in self.clusters
        }
        for cluster_id, instance in controllers.items():
            name = cluster_name(instance.tags) or cluster_id
            message = f"{name} ({cluster_id}) is left alone: its own instance controls it"
            self.context.emit(Notice(message=message, instance_id=instance.instance_id))
        return set(controllers)

    def _without_current_images(self, leftovers: Sequence[Leftover]) -> list[Leftover]:
        """Leave out the images that recipes may name, without those of clusters that are named."""
        stale: list[Leftover] = []
        for region, group in _by_region(leftovers):
            images = [item.image for item in group if item.image]
            for item in group:
                image = item.image
                if image is None or item.cluster_id in self.clusters:
                    stale.append(item)
                elif reason := stale_reason(image, images, self.context.clock.now()):
                    self.context.emit(Notice(message=f"{image.image_id} ({image.name}) is stale: {reason}"))
                    stale.append(item)
                else:
                    usd = money(snapshot_usd(item.size_gib) * HOURS_PER_MONTH)
                    message = (
                        f"{image.image_id} ({image.name}, {region}) is kept, for at most {usd} USD a month"
                    )
                    self.context.emit(Notice(message=f"{message}: dlcloud gc {item.cluster_id} deletes it"))
        return stale

    def _price(self, leftovers: Sequence[Leftover]) -> list[PricedLeftover]:
        lines: list[PricedLeftover] = []
        for region, group in _by_region(leftovers):
            prices = self._hourly_usd(region, group)
            lines += [price_leftover(item, prices.get(item.resource_id)) for item in group]
        return lines

    def _hourly_usd(self, region: str, leftovers: Sequence[Leftover]) -> dict[str, Decimal]:
        """Return what an hour of each instance costs, by its id, as far as it is known."""
        instances = [item.instance for item in leftovers if item.instance]
        if not instances:
            return {}
        types = sorted({instance.instance_type for instance in instances})
        markets = sorted({instance.market for instance in instances})
        try:
            prices = self.context.cloud(self.cloud, region).prices(types, markets)
        except CloudError as error:
            self.context.emit(Warned(message=f"prices are unknown: {error.message}"))
            return {}
        return {i.instance_id: price.hourly_usd for i in instances if (price := price_of(i, prices))}

    def _remove(self, leftovers: Sequence[Leftover], *, yes: bool) -> list[DlcloudError]:
        from dlcloud.launch.down import gc

        context = self.context
        if not yes and not sys.stdin.isatty():
            raise BudgetError(
                "this removes things for good, and stdin is not a terminal", "pass --yes to confirm"
            )
        if not yes:
            click.confirm("Remove all of it?", abort=True, err=True)
        failed: list[DlcloudError] = []
        for region, group in _by_region(leftovers):
            try:
                cloud = context.cloud(self.cloud, region)
                gc(group, cloud=cloud, clock=context.clock, emit=context.emit)
            except DlcloudError as error:
                failed.append(error)
        if not failed:
            context.emit(Notice(message=f"{len(leftovers)} thing(s) removed"))
        return failed


def _by_region(leftovers: Sequence[Leftover]) -> list[tuple[str, list[Leftover]]]:
    ordered = sorted(leftovers, key=lambda item: item.region)
    return [(region, list(group)) for region, group in groupby(ordered, lambda item: item.region)]
