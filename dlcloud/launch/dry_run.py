"""Ask EC2 whether it would launch what a recipe names: dry runs of the calls that `up` would make."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dlcloud.model.cluster import CLUSTER_TAG, MANAGED_TAG
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, QuotaError
from dlcloud.model.instance import Image, InstanceType, Market
from dlcloud.planning.launch_request import LaunchRequest, MachineSpec
from dlcloud.planning.networks import (
    FoundNetwork,
    PlannedNetwork,
    Subnet,
    best_zones,
    default_network,
    plan_network,
    usable_subnets,
)
from dlcloud.planning.placement import fabric_interfaces
from dlcloud.recipe.recipe import Recipe
from dlcloud.system.parallel import fan_out

if TYPE_CHECKING:
    from dlcloud.cloud.account.limits import Ec2Account

TAGS = {MANAGED_TAG: "true", CLUSTER_TAG: "dry-run"}
NOT_OF_THE_LAUNCH = {"security-group", "subnet", "vpc"}
"""Resources that a dry run takes from the default VPC; the launch has the cluster's own group."""

OF_AN_IMAGE = {"RunInstances", "CreateLaunchTemplate"}
"""The actions whose requests name the image."""
NO_IMAGE = Image(image_id="", name="", root_device="")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChecks:
    """EC2's refusals of the dry runs, by the API action; those of RunInstances by market.

    `types` is how many instance types the recipe names, of which the first was asked for.
    """

    types: int
    refused: Mapping[str, CloudError]
    launches: Mapping[Market, CloudError | None]

    @property
    def errors(self) -> list[CloudError]:
        """Return every refusal."""
        return [*self.refused.values(), *(error for error in self.launches.values() if error is not None)]

    @property
    def refusal(self) -> CloudError | None:
        """Return the refusal that the launch is certain to meet, too.

        A market that is refused leaves the others, the first type leaves the others, and a denial of the
        default group or subnet says nothing about the cluster's own. Neither do refusals of a pool.
        """
        group = self.refused.get("CreateSecurityGroup")
        if group is not None and _is_certain(group):
            return group
        launches = [error for error in self.launches.values() if error is not None]
        if self.types > 1 or len(launches) < len(self.launches):
            return None
        return next((error for error in launches if _is_certain(error, NOT_OF_THE_LAUNCH)), None)


def check_launch(
    recipe: Recipe,
    account: "Ec2Account",
    image: Callable[[], Image],
    *,
    network: Callable[[], FoundNetwork | None] = lambda: None,
    subnets: Callable[[], Mapping[str, Subnet] | None] = lambda: None,
    hardware: Callable[[], Mapping[str, InstanceType]] = dict,
    last: Image | None = None,
    fresh: bool = False,
) -> LaunchChecks:
    """Make the dry runs of a launch in parallel: at most five calls, none for what was allowed an hour ago.

    Each is the request that the launch would make of the recipe's first type, in each market, but for what
    exists only then: the cluster's own groups, and user data.

    Args:
        recipe: What is to be launched.
        account: Asks EC2.
        image: Returns the image once it is known; the requests that name none do not wait for it.
        network: Returns what the recipe's network is, likewise; None for the default VPC.
        subnets: Returns the subnets of the default VPC, likewise; None if they are unknown.
        hardware: Returns the types, likewise; only those of a recipe with EFA wait for it.
        last: What the image was when it was last looked up: the dry runs do not wait for it, and are
            repeated if it is another one now.
        fresh: Ask for what was allowed an hour ago, too.
    """
    instances = recipe.instances
    first = instances.markets[0]
    keys = [*(("RunInstances", market) for market in instances.markets), ("CreateSecurityGroup", first)]
    if len(instances.types) > 1:
        keys += [("CreateLaunchTemplate", first), ("CreateFleet", first)]

    def refusal(action: str, market: Market, image: Image) -> CloudError | None:
        try:
            place, zone = _place(recipe, network(), subnets)
            known = hardware() if instances.efa else {}
            is_public = place.has_public_address
            interfaces, _ = fabric_interfaces(instances, instances.types, known, is_public=is_public)
            request = LaunchRequest(
                machine=MachineSpec.for_recipe(instances, image, network=place, interfaces=interfaces),
                instance_type=instances.types[0],
                zone=zone,
                market=market,
                min_count=1,
                max_count=instances.maximum,
                security_group_id="",
                user_data="#cloud-config\n",
                client_token="",
                tags={**recipe.tags, **TAGS},
            )
            account.dry_run(action, request, fresh=fresh)
        except CloudError as error:
            return error
        return None

    def ask(action: str, market: Market) -> CloudError | None:
        if action not in OF_AN_IMAGE:
            return refusal(action, market, NO_IMAGE)
        early = refusal(action, market, last) if last is not None else None
        try:
            present = image()
        except CloudError as error:
            return error
        return early if present == last else refusal(action, market, present)

    outcomes = fan_out(lambda call: call(), [partial(ask, *key) for key in keys])
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    errors = {key: outcome.value for key, outcome in zip(keys, outcomes, strict=True)}
    return LaunchChecks(
        types=len(instances.types),
        refused={
            action: error for (action, _), error in errors.items() if error and action != "RunInstances"
        },
        launches={market: error for (action, market), error in errors.items() if action == "RunInstances"},
    )


def _is_certain(error: CloudError, unlike: Collection[str] = ()) -> bool:
    """True for a refusal of the request itself, unless it is about a type of resource in `unlike`."""
    if isinstance(error, CredentialsError):
        return error.denial is not None and error.denial.resource_type not in unlike
    return error.is_final and not isinstance(error, CapacityError | QuotaError)


def _place(
    recipe: Recipe,
    resolved: FoundNetwork | None,
    default_subnets: Callable[[], Mapping[str, Subnet] | None],
) -> tuple[PlannedNetwork, str]:
    """Return the network of the launch, and a zone of it; an empty one leaves the choice to EC2."""
    named = recipe.instances.zones
    if recipe.network is not None and resolved is not None:
        place = plan_network(recipe.network, resolved, usable_subnets(recipe.network, resolved, named))
        return place, next(iter(place.subnets))
    try:
        subnets = default_subnets()
    except CloudError:  # the plan notes that they are unknown
        subnets = None
    zones = best_zones(named or [*(subnets or {})], subnets)
    return default_network(zones, subnets), named[0] if len(named) == 1 else ""
