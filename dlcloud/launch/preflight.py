"""Ask everything that a plan needs to know, in parallel; nothing is created.

`run_preflight` asks EC2 for identity, types, image, prices, network, limits and, by dry runs, whether it
would take the launch (`check_launch`). One question that is refused stops no other; `Preflight.facts` raises
the refusal of a required one, and notes the others as unchecked.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import call
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.compute.images import AUTO, Images
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.offers.prices import Prices
from dlcloud.model.cluster import CLUSTER_TAG, MANAGED_TAG
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, QuotaError
from dlcloud.model.instance import FEWEST_SCORED_TYPES, X86_64, Image, InstanceType, Market, Price
from dlcloud.model.remote import Access
from dlcloud.planning.launch_request import LaunchRequest, MachineSpec
from dlcloud.planning.networks import (
    FoundNetwork,
    PlannedNetwork,
    Subnet,
    best_zones,
    default_network,
    plan_network,
    refuse_network,
    usable_subnets,
)
from dlcloud.planning.placement import fabric_interfaces
from dlcloud.planning.plan import PreflightFacts
from dlcloud.planning.quotas import CODES, Quota, quota_key, quotas
from dlcloud.recipe.recipe import Recipe
from dlcloud.system.parallel import fan_out

if TYPE_CHECKING:
    from dlcloud.cloud.account.limits import Ec2Account

REQUIRED = ("identity", "zones", "image", "prices", "network", "cidr")
"""The questions that a plan cannot be made without, in the order in which a refusal is raised."""

ACCOUNT_PLAN = "account plan"
"""The question for the account's plan of AWS."""

NOT_NOTED = {*REQUIRED, ACCOUNT_PLAN, "login"}
"""What a plan does not note as unchecked: policies of earlier versions do not allow the account's plan."""

Answer = TypeVar("Answer")
Questions = Mapping[str, Callable[[], Any]]
"""Ways to ask, by the names of the questions."""
log = logging.getLogger(__name__)
TAGS = {MANAGED_TAG: "true", CLUSTER_TAG: "dry-run"}
NOT_OF_THE_LAUNCH = {"security-group", "subnet", "vpc"}
"""Resources that a dry run takes from the default VPC; the launch has the cluster's own group."""

OF_AN_IMAGE = {"RunInstances", "CreateLaunchTemplate"}
"""The actions whose requests name the image."""

NO_IMAGE = Image(image_id="", name="", root_device="")


def run_preflight(
    recipe: Recipe,
    *,
    cloud: Ec2Cloud,
    account: Ec2Account | None = None,
    cidrs: Sequence[str] = (),
    dry_run: bool = True,
    thorough: bool = False,
    shared: Questions | None = None,
) -> "Preflight":
    """Ask every question in parallel; one that is refused stops no other.

    Args:
        recipe: The instances to be launched.
        cloud: Knows the caller's identity, the offer, the image and the prices.
        account: Knows limits, subnets and scores, which are noted as unknown where it refuses.
        cidrs: The networks that may reach the instances; the own address is asked for if there are none.
        thorough: List the account's reservations although the recipe uses none, and ask again what EC2
            allowed within the last hour.
        dry_run: Ask EC2 whether it would take the launch, too, where there is an account.
        shared: What several Regions ask together, by `share_questions`.
    """
    types = recipe.instances.types
    hardware = Once(lambda: cloud.types.hardware(types))
    image = Once(lambda: _find_image(recipe, cloud, hardware.value, may_be_kept=shared is not None))
    network = Once(lambda: _find_network(recipe, account))
    together = share_questions(recipe, cloud, account) if shared is None else shared
    questions: dict[str, Callable[[], Any]] = {
        "login": cloud.caller.session_ends_at,
        "zones": lambda: cloud.types.zones(types),
        "hardware": hardware.value,
        "image": image.value,
        "prices": lambda: cloud.prices.find(types, recipe.instances.markets),
        **together,
        "cidr": lambda: cidrs or _cidrs(recipe, together["cidr"], network.value),
    }
    if recipe.network is not None and account is not None:
        questions["network"] = network.value
    if recipe.instances.uses_reservations or thorough:
        questions["reservations"] = cloud.capacity.reservations
    if account is not None:
        subnets = Once(account.subnets)
        questions |= _account_questions(recipe, account, subnets.value)
    if account is not None and dry_run:
        questions["launch"] = lambda: check_launch(
            recipe,
            account,
            image.value,
            network=network.value,
            subnets=subnets.value,
            hardware=hardware.value,
            last=cloud.images.last(recipe.instances.image, **_expected_kind(recipe, cloud)),
            fresh=thorough,
        )
    asked = fan_out(call, list(questions.values()), failures=CloudError)
    outcomes = dict(zip(questions, asked, strict=True))
    errors = {name: outcome.error for name, outcome in outcomes.items() if outcome.error is not None}
    answers = {name: outcome.value for name, outcome in outcomes.items() if outcome.error is None}
    return Preflight(
        recipe=recipe,
        account=account,
        hardware=answers.get("hardware") or {},
        answers=answers,
        errors=errors,
        names_cidrs=bool(cidrs) or (recipe.network is not None and recipe.network.is_private),
    )


def share_questions(
    recipe: Recipe, cloud: Ec2Cloud, account: Ec2Account | None, regions: Sequence[str] = ()
) -> Questions:
    """Return the questions that have one answer for all Regions: only the first Region asks them.

    Args:
        recipe: The instances to be launched, in any of the Regions.
        cloud: EC2 in one of them.
        account: The account there; None asks nothing of it.
        regions: All of them; none: that of the account.
    """
    types, markets, count = recipe.instances.types, recipe.instances.markets, recipe.instances.maximum
    questions: dict[str, Callable[[], Any]] = {"identity": cloud.caller.identity, "cidr": cloud.caller.cidr}
    if account is not None:
        questions[ACCOUNT_PLAN] = account.account_plan
        if Market.SPOT in markets and len(types) >= FEWEST_SCORED_TYPES:
            questions["scores"] = lambda: account.spot_scores(types, count, regions)
    return {name: Once(ask).value for name, ask in questions.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The answers to a recipe's questions, and the errors of those that were refused, by question.

    `hardware` is that of the recipe's types, as far as it is known.
    """

    recipe: Recipe
    account: Ec2Account | None
    hardware: Mapping[str, InstanceType]
    answers: Mapping[str, Any]
    errors: Mapping[str, Exception]
    names_cidrs: bool = False
    """The networks that may reach the instances were named, not looked up."""

    @property
    def refusal(self) -> CloudError | None:
        """The error of the first required question that was refused, or that the launch would meet."""
        reservations = ["reservations"] if self.recipe.instances.uses_reservations else []
        errors = (self.errors.get(name) for name in (*REQUIRED, *reservations))
        first = next((error for error in errors if isinstance(error, CloudError)), None)
        first = first or self._network_refusal()
        return first or (self.launch.refusal if self.launch is not None else None)

    def _network_refusal(self) -> CloudError | None:
        """Return what the plan will say of the default network; EC2's dry runs refuse it in its own words."""
        if self.recipe.network is not None:
            return None
        try:
            refuse_network(self.recipe.region, self.answers.get("subnets"), named=self.recipe.instances.zones)
        except CloudError as error:
            return error
        return None

    @property
    def launch(self) -> "LaunchChecks | None":
        """The dry runs of the launch, where they were made."""
        checks: LaunchChecks | None = self.answers.get("launch")
        return checks

    def facts(self) -> PreflightFacts:
        """Return what a plan is made of; what is not required may be missing.

        Raises:
            CredentialsError, CloudError: A required question was refused.
        """
        if self.refusal is not None:
            raise self.refusal
        answers, account = self.answers, self.account
        subnets: Mapping[str, Subnet] | None = answers.get("subnets")
        return PreflightFacts(
            identity=answers["identity"],
            cidrs=tuple(answers["cidr"]),
            names_cidrs=self.names_cidrs,
            zones=answers["zones"],
            hardware=self.hardware,
            image=answers["image"],
            prices=answers["prices"],
            known_types=account.known_types if account is not None else tuple,
            quotas=self._quotas(),
            subnets=subnets,
            network=answers.get("network"),
            reservations=answers.get("reservations", ()),
            scores=self.scores,
            account_plan=answers.get(ACCOUNT_PLAN),
            session_ends_at=answers.get("login"),
            notes=(
                *(f"not checked: {error}" for name, error in self.errors.items() if name not in NOT_NOTED),
                *(error.message for error in (self.launch.errors if self.launch is not None else ())),
            ),
        )

    @property
    def scores(self) -> dict[str, int]:
        """The spot placement scores by zone, as this account names it: EC2 answers ids of all accounts."""
        resolved: FoundNetwork | None = self.answers.get("network")
        subnets = (self.answers.get("subnets") or {}) if resolved is None else resolved.subnets
        names = {subnet.zone_id: zone for zone, subnet in subnets.items()}
        scores = self.answers.get("scores", {}).get(self.recipe.region, {})
        return {names.get(zone_id, zone_id): score for zone_id, score in scores.items()}

    def _quotas(self) -> dict[tuple[str, Market], Quota]:
        """Join limits and use; a cached limit that is too low may have been raised: it is asked for again."""
        instances, answers = self.recipe.instances, self.answers
        if self.account is None or "limits" not in answers or "usage" not in answers:
            return {}
        cached = quotas(answers["limits"], answers["usage"])
        short = [
            quota.code
            for name, hardware in self.hardware.items()
            for market in instances.markets
            if (key := quota_key(name, market)) and (quota := cached.get(key))
            if hardware.vcpus * instances.maximum > quota.left
        ]
        if not short:
            return cached
        fresh = self.account.limits(sorted(set(short)), fresh=True)
        return quotas({**answers["limits"], **fresh}, answers["usage"])


def _find_network(recipe: Recipe, account: Ec2Account | None) -> FoundNetwork | None:
    """Return what the recipe's network is; None where it names none, or no account can be asked."""
    return account.network(recipe.network) if recipe.network is not None and account is not None else None


def _cidrs(
    recipe: Recipe, own_cidr: Callable[[], str], find_network: Callable[[], FoundNetwork | None]
) -> tuple[str, ...]:
    """Return the networks that reach the instances: the caller's, or where endpoint and bastion are."""
    if recipe.network is None or not recipe.network.is_private:
        return (own_cidr(),)
    resolved = find_network()
    return () if resolved is None or recipe.network.access is Access.SESSION_MANAGER else resolved.cidrs


class Once(Generic[Answer]):
    """A question that several others need the answer of: it is asked once, the others wait."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._answers: list[Answer] = []
        self._error: CloudError | None = None
        self._lock = Lock()

    def value(self) -> Answer:
        with self._lock:
            if not self._answers and self._error is None:
                try:
                    self._answers = [self._ask()]
                except CloudError as error:
                    self._error = error
        if self._error is not None:
            raise self._error
        return self._answers[0]


def find_image(
    images: Images, image: str, types: Sequence[str], hardware: Mapping[str, InstanceType]
) -> Image:
    """Return the image that a recipe names, for its types; the first one says of which architecture.

    Raises:
        CloudError: There is no such image.
    """
    return images.resolve(image, **_kind(types, hardware))


def _find_image(
    recipe: Recipe,
    cloud: Ec2Cloud,
    hardware: Callable[[], Mapping[str, InstanceType]],
    *,
    may_be_kept: bool,
) -> Image:
    """Find a recipe's image together with its types: again only if EC2 describes these in another way.

    With `may_be_kept`, as of many Regions, SSM is not asked for AWS's newest image twice a day.
    """
    name, types = recipe.instances.image, recipe.instances.types
    expected = _expected_kind(recipe, cloud)
    kept = cloud.images.last(name, **expected) if may_be_kept and name == AUTO else None
    early = Once(lambda: kept or cloud.images.resolve(name, **expected))
    with suppress(CloudError):
        early.value()
    described = _kind(types, hardware())
    return early.value() if described == expected else cloud.images.resolve(name, **described)


def _expected_kind(recipe: Recipe, cloud: Ec2Cloud) -> "_ImageKind":
    types = recipe.instances.types
    return _kind(types, cloud.types.listed(types))


def _kind(types: Sequence[str], hardware: Mapping[str, InstanceType]) -> "_ImageKind":
    return {
        "gpu": any(entry.has_nvidia_gpu for entry in hardware.values()),
        "architecture": next((entry.architecture for name in types if (entry := hardware.get(name))), X86_64),
    }


class _ImageKind(TypedDict):
    gpu: bool
    architecture: str


def _account_questions(
    recipe: Recipe, account: Ec2Account, subnets: Callable[[], Mapping[str, Subnet]]
) -> dict[str, Callable[[], Any]]:
    types, markets = recipe.instances.types, recipe.instances.markets
    keys = {quota_key(name, market) for name in types for market in markets}
    codes = sorted(CODES[key] for key in keys if key is not None)
    questions: dict[str, Callable[[], Any]] = {
        "limits": lambda: account.limits(codes),
        "usage": account.usage,
    }
    if recipe.network is None:
        questions["subnets"] = subnets
    return questions


class PriceLookup:
    """On-demand and spot prices of now for the record, asked for once a type, however many run."""

    def __init__(self, prices: Prices) -> None:
        self._listed = prices
        self._prices: dict[str, list[Price]] = {}
        self._lock = Lock()

    def of(self, instance_type: str, zone: str) -> list[Price]:
        """Return the on-demand price and the spot price of the zone, as far as they are known.

        A missing price does not stop a run: the report shows it as unknown.
        """
        with self._lock:
            if instance_type not in self._prices:
                self._prices[instance_type] = self._ask(instance_type)
            prices = self._prices[instance_type]
        return [price for price in prices if price.zone in {"", zone}]

    def _ask(self, instance_type: str) -> list[Price]:
        try:
            return self._listed.find([instance_type], [*Market])
        except CloudError as error:
            log.warning("the prices of %s stay unknown: %s", instance_type, error.message)
            return []


def check_launch(
    recipe: Recipe,
    account: "Ec2Account",
    image: Callable[[], Image],
    *,
    network: Callable[[], FoundNetwork | None] = lambda: None,
    subnets: Callable[[], Mapping[str, Subnet] | None] = lambda: None,
    hardware: Callable[[], Mapping[str, InstanceType]] = dict,
    planned: MachineSpec | None = None,
    last: Image | None = None,
    fresh: bool = False,
) -> "LaunchChecks":
    """Make the dry runs of a launch in parallel: at most five calls, none for what was allowed an hour ago.

    Each is the request that the launch would make of the recipe's first type, in each market, except for what
    exists only then: the cluster's own groups, and user data.

    Args:
        recipe: What is to be launched.
        account: Asks EC2.
        image: Returns the image once it is known; the requests that name none do not wait for it.
        network: Returns what the recipe's network is, likewise; None for the default VPC.
        subnets: Returns the subnets of the default VPC, likewise; None if they are unknown.
        hardware: Returns the types, likewise; only those of a recipe with EFA wait for it.
        planned: What a plan that is made already asks for: nothing of these is looked up then.
        last: What the image was when it was last looked up: the dry runs do not wait for it, and are
            repeated if it is another one now.
        fresh: Ask for what was allowed an hour ago, too.
    """
    instances = recipe.instances
    first = instances.markets[0]
    keys = [*(("RunInstances", market) for market in instances.markets), ("CreateSecurityGroup", first)]
    if len(instances.types) > 1:
        keys += [("CreateLaunchTemplate", first), ("CreateFleet", first)]

    place = Once(lambda: _place(recipe, network(), subnets))

    def machine_on(image: Image) -> MachineSpec:
        interfaces, _ = fabric_interfaces(
            instances,
            instances.types,
            hardware() if instances.efa else {},
            is_public=place.value().has_public_address,
        )
        return MachineSpec.for_recipe(instances, image, network=place.value(), interfaces=interfaces)

    def zone_of(network: PlannedNetwork) -> str:
        """Return a zone of the launch; an empty one leaves the choice to EC2."""
        if recipe.network is not None and network.subnets:
            return next(iter(network.subnets))
        return instances.zones[0] if len(instances.zones) == 1 else ""

    def refusal(action: str, market: Market, image: Image) -> CloudError | None:
        try:
            request = LaunchRequest(
                machine=planned or machine_on(image),
                instance_type=instances.types[0],
                zone=zone_of(planned.network if planned else place.value()),
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


def _is_certain(error: CloudError, unlike: Collection[str] = ()) -> bool:
    """True for a refusal of the request itself, unless it is about a type of resource in `unlike`."""
    if isinstance(error, CredentialsError):
        return error.denial is not None and error.denial.resource_type not in unlike
    return error.is_final and not isinstance(error, CapacityError | QuotaError)


def _place(
    recipe: Recipe,
    resolved: FoundNetwork | None,
    default_subnets: Callable[[], Mapping[str, Subnet] | None],
) -> PlannedNetwork:
    """Return the network of the launch."""
    named = recipe.instances.zones
    if recipe.network is not None and resolved is not None:
        return plan_network(recipe.network, resolved, usable_subnets(recipe.network, resolved, named))
    try:
        subnets = default_subnets()
    except CloudError:  # the plan notes that they are unknown
        subnets = None
    return default_network(best_zones(named or [*(subnets or {})], subnets), subnets)
