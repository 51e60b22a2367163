"""Ask everything that a plan needs to know, at once; nothing is created."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import call
from threading import Lock
from typing import Any

from dlcloud.core.errors import CloudError
from dlcloud.core.instance import InstanceType, Market, Price
from dlcloud.core.plan import PreflightFacts
from dlcloud.core.protocols import Account, Cloud
from dlcloud.core.quota import CODES, Quota, quota_key, quotas
from dlcloud.core.recipe import Recipe
from dlcloud.system.parallel import fan_out

REQUIRED = ("identity", "zones", "image", "prices", "cidr")
"""The questions that a plan cannot be made without, in the order in which a refusal is raised."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The answers to a recipe's questions, and the errors of those that were refused, by question."""

    recipe: Recipe
    cloud: Cloud
    account: Account | None
    answers: Mapping[str, Any]
    errors: Mapping[str, Exception]

    @property
    def refusal(self) -> CloudError | None:
        """The error of the first required question that was refused."""
        errors = (self.errors.get(name) for name in REQUIRED)
        return next((error for error in errors if isinstance(error, CloudError)), None)

    def facts(self) -> PreflightFacts:
        """Return what a plan is made of; what is not required may be missing.

        Raises:
            CredentialsError, CloudError: A required question was refused.
        """
        if self.refusal is not None:
            raise self.refusal
        answers, account = self.answers, self.account
        subnets: Mapping[str, str] | None = answers.get("subnets")
        return PreflightFacts(
            identity=answers["identity"],
            cidr=answers["cidr"],
            zones=answers["zones"],
            hardware=_hardware(self.recipe, self.cloud),
            image=answers["image"],
            prices=answers["prices"],
            known_types=account.known_types() if account is not None else (),
            quotas=self._quotas(),
            subnet_zones=None if subnets is None else tuple(sorted(subnets)),
            scores=_scores_by_zone(answers.get("scores", {}), subnets or {}),
            notes=tuple(
                f"not checked: {error}" for name, error in self.errors.items() if name not in REQUIRED
            ),
        )

    def _quotas(self) -> dict[tuple[str, Market], Quota]:
        """Join limits and use; a cached limit that is too low may have been raised: it is asked for again."""
        instances, answers = self.recipe.instances, self.answers
        if self.account is None or "limits" not in answers or "usage" not in answers:
            return {}
        cached = quotas(answers["limits"], answers["usage"])
        short = [
            quota.code
            for name, hardware in _hardware(self.recipe, self.cloud).items()
            for market in instances.markets
            if (key := quota_key(name, market)) and (quota := cached.get(key))
            if hardware.vcpus * instances.maximum > quota.left
        ]
        if not short:
            return cached
        fresh = self.account.limits(sorted(set(short)), fresh=True)
        return quotas({**answers["limits"], **fresh}, answers["usage"])


def run_preflight(
    recipe: Recipe, *, cloud: Cloud, account: Account | None = None, cidr: str = ""
) -> Preflight:
    """Ask every question at once; one that is refused stops no other.

    Args:
        recipe: The instances to be launched.
        cloud: Knows the caller's identity, the offer, the image and the prices.
        account: Knows limits, subnets and scores, which are noted as unknown where it refuses.
        cidr: The network that may reach the instances; asked for if empty.
    """
    types = recipe.instances.types
    gpu = any(hardware.gpu for hardware in _hardware(recipe, cloud).values())
    questions: dict[str, Callable[[], Any]] = {
        "identity": cloud.identity,
        "zones": lambda: cloud.offered_zones(types),
        "image": lambda: cloud.resolve_image(recipe.instances.image, gpu=gpu),
        "prices": lambda: cloud.prices(types, recipe.instances.markets),
        "cidr": lambda: cidr or cloud.caller_cidr(),
    }
    if account is not None:
        questions |= _account_questions(recipe, account)
    outcomes = dict(zip(questions, fan_out(call, list(questions.values())), strict=True))
    errors = {name: outcome.error for name, outcome in outcomes.items() if outcome.error is not None}
    for error in errors.values():
        if not isinstance(error, CloudError):
            raise error  # a bug of ours is no answer
    answers = {name: outcome.value for name, outcome in outcomes.items() if outcome.error is None}
    return Preflight(recipe=recipe, cloud=cloud, account=account, answers=answers, errors=errors)


class PriceLookup:
    """On-demand and spot prices of now for the record, asked for once a type, however many run."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
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
            return self._cloud.prices([instance_type], [*Market])
        except CloudError as error:
            log.warning("the prices of %s stay unknown: %s", instance_type, error.message)
            return []


def _account_questions(recipe: Recipe, account: Account) -> dict[str, Callable[[], Any]]:
    types, markets = recipe.instances.types, recipe.instances.markets
    keys = {quota_key(name, market) for name in types for market in markets}
    codes = sorted(CODES[key] for key in keys if key is not None)
    questions: dict[str, Callable[[], Any]] = {
        "limits": lambda: account.limits(codes),
        "usage": account.usage,
        "subnets": account.subnet_zones,
    }
    if Market.SPOT in markets:
        questions["scores"] = lambda: account.spot_scores(types, recipe.instances.maximum)
    return questions


def _hardware(recipe: Recipe, cloud: Cloud) -> dict[str, InstanceType]:
    return {name: entry for name in recipe.instances.types if (entry := cloud.hardware(name))}


def _scores_by_zone(scores: Mapping[str, int], subnets: Mapping[str, str]) -> dict[str, int]:
    """Name zones as this account does; EC2 scores them by ids that are the same for all accounts."""
    names = {zone_id: zone for zone, zone_id in subnets.items()}
    return {names.get(zone_id, zone_id): score for zone_id, score in scores.items()}
