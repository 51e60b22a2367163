"""Ask everything that a plan needs to know, at once; nothing is created."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import call
from threading import Lock
from typing import Any, Generic, TypedDict, TypeVar

from dlcloud.cloud.account.caller import Ec2Caller
from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.compute.images import Images
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.offers.prices import Prices
from dlcloud.launch.dry_run import LaunchChecks, check_launch
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import FEWEST_SCORED_TYPES, X86_64, Image, InstanceType, Market, Price
from dlcloud.model.remote import Access
from dlcloud.planning.limits import CODES, Quota, quota_key, quotas
from dlcloud.planning.networks import FoundNetwork, Subnet
from dlcloud.planning.plan import PreflightFacts
from dlcloud.recipe.recipe import Recipe
from dlcloud.system.parallel import fan_out

REQUIRED = ("identity", "zones", "image", "prices", "network", "cidr")
"""The questions that a plan cannot be made without, in the order in which a refusal is raised."""

ACCOUNT_PLAN = "account plan"
"""The question for the account's plan of AWS."""
NOT_NOTED = {*REQUIRED, ACCOUNT_PLAN}
"""What a plan does not note as unchecked: policies of earlier versions do not allow the account's plan."""

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


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
        return first or (self.launch.refusal if self.launch is not None else None)

    @property
    def launch(self) -> LaunchChecks | None:
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
            known_types=account.known_types() if account is not None else (),
            quotas=self._quotas(),
            subnets=subnets,
            network=answers.get("network"),
            reservations=answers.get("reservations", ()),
            scores=_scores_by_zone(answers.get("scores", {}), self._zone_ids),
            account_plan=answers.get(ACCOUNT_PLAN),
            notes=(
                *(f"not checked: {error}" for name, error in self.errors.items() if name not in NOT_NOTED),
                *(error.message for error in (self.launch.errors if self.launch is not None else ())),
            ),
        )

    @property
    def _zone_ids(self) -> Mapping[str, Subnet]:
        """The subnets whose zones are known by name and id."""
        resolved: FoundNetwork | None = self.answers.get("network")
        subnets: Mapping[str, Subnet] = self.answers.get("subnets") or {}
        return subnets if resolved is None else resolved.subnets

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


def run_preflight(
    recipe: Recipe,
    *,
    cloud: Ec2Cloud,
    account: Ec2Account | None = None,
    cidrs: Sequence[str] = (),
    dry_run: bool = True,
    thorough: bool = False,
) -> Preflight:
    """Ask every question at once; one that is refused stops no other.

    Args:
        recipe: The instances to be launched.
        cloud: Knows the caller's identity, the offer, the image and the prices.
        account: Knows limits, subnets and scores, which are noted as unknown where it refuses.
        cidrs: The networks that may reach the instances; the own address is asked for if there are none.
        thorough: List the account's reservations although the recipe uses none, and ask again what EC2
            allowed within the last hour.
        dry_run: Ask EC2 whether it would take the launch, too, where there is an account.
    """
    types = recipe.instances.types
    hardware = _Once(lambda: cloud.types.hardware(types))
    image = _Once(lambda: _find_image(recipe, cloud, hardware.value))
    network = _Once(lambda: _find_network(recipe, account))
    questions: dict[str, Callable[[], Any]] = {
        "identity": cloud.caller.identity,
        "zones": lambda: cloud.types.zones(types),
        "hardware": hardware.value,
        "image": image.value,
        "prices": lambda: cloud.prices.find(types, recipe.instances.markets),
        "cidr": lambda: cidrs or _cidrs(recipe, cloud.caller, network.value),
    }
    if recipe.network is not None and account is not None:
        questions["network"] = network.value
    if recipe.instances.uses_reservations or thorough:
        questions["reservations"] = cloud.capacity.reservations
    if account is not None:
        subnets = _Once(account.subnets)
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


def _find_network(recipe: Recipe, account: Ec2Account | None) -> FoundNetwork | None:
    """Return what the recipe's network is; None where it names none, or no account can be asked."""
    return account.network(recipe.network) if recipe.network is not None and account is not None else None


def _cidrs(
    recipe: Recipe, caller: Ec2Caller, find_network: Callable[[], FoundNetwork | None]
) -> tuple[str, ...]:
    """Return the networks that reach the instances: the caller's, or where endpoint and bastion are."""
    if recipe.network is None or not recipe.network.is_private:
        return (caller.cidr(),)
    resolved = find_network()
    return () if resolved is None or recipe.network.access is Access.SESSION_MANAGER else resolved.cidrs


class _Once(Generic[Answer]):
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


def _find_image(recipe: Recipe, cloud: Ec2Cloud, hardware: Callable[[], Mapping[str, InstanceType]]) -> Image:
    """Find a recipe's image beside its types: again only if EC2 describes these otherwise than expected."""
    name, types = recipe.instances.image, recipe.instances.types
    expected = _expected_kind(recipe, cloud)
    early = _Once(lambda: cloud.images.resolve(name, **expected))
    with suppress(CloudError):
        early.value()
    described = _kind(types, hardware())
    return early.value() if described == expected else cloud.images.resolve(name, **described)


class _ImageKind(TypedDict):
    gpu: bool
    architecture: str


def _expected_kind(recipe: Recipe, cloud: Ec2Cloud) -> _ImageKind:
    types = recipe.instances.types
    return _kind(types, cloud.types.listed(types))


def _kind(types: Sequence[str], hardware: Mapping[str, InstanceType]) -> _ImageKind:
    return {
        "gpu": any(entry.has_nvidia_gpu for entry in hardware.values()),
        "architecture": next((entry.architecture for name in types if (entry := hardware.get(name))), X86_64),
    }


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


def _account_questions(
    recipe: Recipe, account: Ec2Account, subnets: Callable[[], Mapping[str, Subnet]]
) -> dict[str, Callable[[], Any]]:
    types, markets = recipe.instances.types, recipe.instances.markets
    keys = {quota_key(name, market) for name in types for market in markets}
    codes = sorted(CODES[key] for key in keys if key is not None)
    questions: dict[str, Callable[[], Any]] = {
        "limits": lambda: account.limits(codes),
        "usage": account.usage,
        ACCOUNT_PLAN: account.account_plan,
    }
    if recipe.network is None:
        questions["subnets"] = subnets
    if Market.SPOT in markets and len(types) >= FEWEST_SCORED_TYPES:
        questions["scores"] = lambda: account.spot_scores(types, recipe.instances.maximum)
    return questions


def _scores_by_zone(scores: Mapping[str, int], subnets: Mapping[str, Subnet]) -> dict[str, int]:
    """Name zones as this account does; EC2 scores them by ids that are the same for all accounts."""
    names = {subnet.zone_id: zone for zone, subnet in subnets.items()}
    return {names.get(zone_id, zone_id): score for zone_id, score in scores.items()}
