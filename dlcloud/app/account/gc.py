"""`dlcloud gc`: find, price and remove what is left of clusters that no command manages."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.app.termination import removing_leftovers
from dlcloud.launch.down import gc
from dlcloud.model.account import Ownership
from dlcloud.model.cluster import (
    CONTROLLER_TAG,
    DEFAULT_REGION,
    REGIONS_AT_ONCE,
    ClusterState,
    Leftover,
    cluster_name,
    stale_reason,
)
from dlcloud.model.ebs_prices import HOURS_PER_MONTH, snapshot_usd
from dlcloud.model.errors import BudgetError, CloudError, CredentialsError, DlcloudError, PartialError
from dlcloud.model.events import Info, Warned, stage
from dlcloud.model.money import hourly_price, money, price_of
from dlcloud.report.account import PricedLeftover, UnfinishedCluster, leftovers_report, price_leftover
from dlcloud.report.table import Format, render
from dlcloud.system.files import FileLock
from dlcloud.system.parallel import fan_out


def run(
    context: Context,
    *,
    clusters: Sequence[str] = (),
    regions: Sequence[str] = (),
    cloud: str | None = None,
    all_owners: bool = False,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Find by tag what no cluster of this dlcloud home accounts for, price it, and remove it.

    Args:
        context: The collaborators.
        clusters: Ids of clusters; by default everything that was left over.
        regions: By default every region of the account.
        cloud: `aws` or `local`; by default AWS, and the local EC2 if it runs.
        all_owners: Include what other people, and other dlcloud homes, launched.
        dry_run: Only show it.
        yes: Do not ask.
        output: The format of the list.
    """
    if cloud == "local" and context.local_site.find() is None:
        context.emit(Info(message="the local EC2 is not running: it has nothing"))
        say(render(leftovers_report([], unfinished=[], now=context.clock.now()), Format(output)))
        return
    collectors = [
        Collector(
            context=context,
            cloud=place,
            regions=tuple(regions),
            clusters=frozenset(clusters),
            all_owners=all_owners,
        )
        for place in ([cloud] if cloud else places_to_look(context))
    ]
    collect(collectors, is_chosen=cloud is not None, dry_run=dry_run, yes=yes, output=output)


def places_to_look(context: Context) -> list[str]:
    """Return the clouds that can have anything: AWS, and the local EC2 if it runs."""
    return ["aws", *(["local"] if context.local_site.find() is not None else [])]


def collect(
    collectors: "Sequence[Collector]", *, is_chosen: bool, dry_run: bool, yes: bool, output: str
) -> None:
    """Show what is left over in all clouds and, unless `dry_run`, remove it.

    Args:
        collectors: One for each cloud.
        is_chosen: The user named the cloud: then one without credentials is an error.
        dry_run: Remove nothing.
        yes: Remove without asking.
        output: The format.

    Raises:
        CloudError: No region could be listed.
        PartialError: Some regions could not be listed though they are allowed, or things are still there.
    """
    context = collectors[0].context
    results: list[Found] = []
    for collector in collectors:
        try:
            results.append(collector.find())
        except CredentialsError as error:
            if is_chosen or not collector.may_be_passed_over:
                error.hint = f"{error.hint}; dlcloud gc --cloud local looks at the local EC2"
                raise
            context.emit(Info(message=f"not looked at: {error.message}"))
    priced = [line for one in results for line in one.collector.price(one.leftovers)]
    unfinished = [cluster for one in results for cluster in one.unfinished]
    report = leftovers_report(priced, unfinished=unfinished, now=context.clock.now())
    say(render(report, Format(output)))
    failed = [error for one in results for error in one.failed]
    if priced and not dry_run:
        _confirm(yes=yes)
        leftovers = [line.leftover for line in priced]
        price = hourly_price(line.hourly_usd for line in priced)
        with removing_leftovers(leftovers, context.emit, price=price, command="dlcloud gc"):
            failed += [error for one in results for error in one.collector.remove(one.leftovers)]
    if failed:
        message = "\n".join(error.message for error in failed)
        raise PartialError(message, "dlcloud gc", result_shown=True)


def _confirm(*, yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise BudgetError(
            "this removes things for good, and stdin is not a terminal", "pass --yes to confirm"
        )
    if not yes:
        confirm("Remove all of it?")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one cloud has: left over, or of unfinished clusters of this home; and regions that failed."""

    collector: "Collector"
    leftovers: Sequence[Leftover]
    unfinished: Sequence[UnfinishedCluster]
    failed: Sequence[DlcloudError]


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Looks for what is left over in one cloud, and removes it, with the options of the command."""

    context: Context
    cloud: str
    regions: tuple[str, ...]
    clusters: frozenset[str]
    all_owners: bool = False

    @property
    def may_be_passed_over(self) -> bool:
        """True for AWS in a home that has only rehearsed."""
        launched = {cluster.cloud for cluster in self.context.clusters.all()}
        return self.cloud == "aws" and launched == {"local"}

    def find(self) -> Found:
        """List all regions in parallel; what the store knows to be up is not left over.

        Raises:
            CloudError: No region could be listed.
        """
        context = self.context
        regions = list(self.regions) or self._all_regions()
        place = "" if self.cloud == "aws" else " of the local EC2"
        with stage(context.emit, context.clock, f"looking in {len(regions)} region(s){place}"):
            outcomes = fan_out(
                lambda region: context.clouds.cloud(self.cloud, region).leftovers.find(),
                regions,
                width=REGIONS_AT_ONCE,
            )
        errors = {o.item: o.error for o in outcomes if o.error is not None}
        if len(errors) == len(regions):
            raise errors[regions[0]]
        failed = self._without_denied(errors)
        leftovers = [item for outcome in outcomes for item in outcome.value or ()]
        managed_ids = {cluster.cluster_id for cluster in context.clusters.active()}
        detached_ids = self._detached_ids(leftovers)
        unfinished = self._find_unfinished(leftovers, detached_ids)
        managed_ids |= detached_ids
        leftovers = self._without_current_images(leftovers)
        kept = [
            item
            for item in leftovers
            if item.cluster_id not in managed_ids and (not self.clusters or item.cluster_id in self.clusters)
        ]
        kept = self._without_others(kept)
        return Found(collector=self, leftovers=kept, unfinished=unfinished, failed=failed)

    def _without_others(self, leftovers: Sequence[Leftover]) -> list[Leftover]:
        """Leave out what other owners made, and other homes of this one, as far as it is not named."""
        ours = {cluster.cluster_id for cluster in self.context.clusters.all()}
        kept = [item for item in leftovers if item.cluster_id in ours]
        foreign = [item for item in leftovers if item.cluster_id not in ours]
        for cluster_id in sorted({item.cluster_id for item in foreign}):
            items = [item for item in foreign if item.cluster_id == cluster_id]
            mine = self.context.owner(self.cloud, items[0].region, None)
            theirs = next((item.owner for item in items if item.owner.digest), items[0].owner)
            relation = mine.relation(theirs)
            is_named = cluster_id in self.clusters and relation is not Ownership.OTHER_OWNER
            is_ours = relation is Ownership.THIS_HOME or is_named or self.all_owners
            kept += items if is_ours else []
            if relation is not Ownership.THIS_HOME:
                message = (
                    f"{cluster_id} ({len(items)} thing(s), {items[0].region}): of {mine.describe(theirs)}"
                )
                hint = f"dlcloud gc {cluster_id}" if relation is Ownership.OTHER_HOME else "--all-owners"
                message += "" if is_ours else f"; left alone, unless {hint}"
                self.context.emit(Info(message=message))
        return kept

    def _find_unfinished(
        self, leftovers: Sequence[Leftover], detached_ids: Collection[str]
    ) -> list[UnfinishedCluster]:
        """Return the clusters of this home that no command manages any more, and that were not kept up."""
        context = self.context
        unfinished = []
        for cluster in context.clusters.active():
            is_managed = FileLock(context.paths.cluster_lock(cluster.cluster_id)).is_held()
            if is_managed or cluster.state is ClusterState.READY or cluster.cluster_id in detached_ids:
                continue
            items = [item for item in leftovers if item.cluster_id == cluster.cluster_id]
            if items:
                unfinished.append(UnfinishedCluster(name=cluster.name, resources=self.price(items)))
        return unfinished

    def _all_regions(self) -> list[str]:
        """Return every region of the account; of the local EC2 those of this home, if it has launched any."""
        context = self.context
        if self.cloud == "aws":
            return context.clouds.cloud("aws", context.first_region).caller.regions()
        if clusters := context.clusters.all():  # to ask about another region costs the local EC2 a second
            regions = {cluster.region for cluster in clusters if cluster.cloud == "local"}
            return sorted({DEFAULT_REGION, *regions})
        return context.clouds.cloud("local", DEFAULT_REGION).caller.regions()

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
            self.context.emit(Info(message=message, instance_id=instance.instance_id))
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
                    self.context.emit(Info(message=f"{image.image_id} ({image.name}) is stale: {reason}"))
                    stale.append(item)
                else:
                    usd = money(snapshot_usd(item.size_gib) * HOURS_PER_MONTH)
                    message = (
                        f"{image.image_id} ({image.name}, {region}) is kept, for at most {usd} USD a month"
                    )
                    self.context.emit(Info(message=f"{message}: dlcloud gc {item.cluster_id} deletes it"))
        return stale

    def price(self, leftovers: Sequence[Leftover]) -> list[PricedLeftover]:
        """Return leftovers with the price of an hour of each."""
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
            prices = self.context.clouds.cloud(self.cloud, region).prices.find(types, markets)
        except CloudError as error:
            self.context.emit(Warned(message=f"prices are unknown: {error.message}"))
            return {}
        return {i.instance_id: price.hourly_usd for i in instances if (price := price_of(i, prices))}

    def remove(self, leftovers: Sequence[Leftover]) -> list[DlcloudError]:
        """Remove leftovers, region by region; return the errors of those that are still there."""
        context = self.context
        failed: list[DlcloudError] = []
        for region, group in _by_region(leftovers):
            try:
                cloud = context.clouds.cloud(self.cloud, region)
                gc(group, cloud=cloud, clock=context.clock, emit=context.emit)
            except DlcloudError as error:
                failed.append(error)
        if leftovers and not failed:
            context.emit(Info(message=f"{len(leftovers)} thing(s) removed"))
        return failed


def _by_region(leftovers: Sequence[Leftover]) -> list[tuple[str, list[Leftover]]]:
    ordered = sorted(leftovers, key=lambda item: item.region)
    return [(region, list(group)) for region, group in groupby(ordered, lambda item: item.region)]
