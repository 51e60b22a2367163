"""Look before launching: everything a plan needs to know, asked for at once; nothing is created."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlcloud.core.errors import CloudError
from dlcloud.core.instance import InstanceType, Market
from dlcloud.core.plan import PreflightFacts
from dlcloud.core.protocols import Account, Cloud
from dlcloud.core.quota import CODES, Quota, quota_key, quotas
from dlcloud.core.recipe import Recipe
from dlcloud.system.parallel import fan_out

REQUIRED = ("identity", "zones", "image", "prices", "cidr")
"""What a plan cannot be made without, in the order in which a refusal is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What each question was answered, and what went wrong with the others; by the names of the questions."""

    answers: Mapping[str, Any]
    errors: Mapping[str, Exception] = field(default_factory=dict)


def observe(
    recipe: Recipe, *, cloud: Cloud, account: Account | None = None, cidr: str = ""
) -> PreflightFacts:
    """Ask who we are, what is offered where, which image, what it costs and what our own address is.

    Args:
        recipe: What is to be launched.
        cloud: Whom to ask.
        account: Whom to ask for limits, subnets and scores, which are noted as unknown where it refuses.
        cidr: The network that may reach the instances; learned if empty.

    Raises:
        CredentialsError, CloudError: The first required question that was refused.
    """
    findings = ask(recipe, cloud=cloud, account=account, cidr=cidr)
    for name in REQUIRED:
        if name in findings.errors:
            raise findings.errors[name]
    return preflight_facts(recipe, findings, cloud=cloud, account=account)


def ask(recipe: Recipe, *, cloud: Cloud, account: Account | None, cidr: str = "") -> Findings:
    """Ask every question at once; one that is refused stops no other."""
    types = recipe.instances.types
    gpu = any(known.gpu for known in _hardware(recipe, cloud).values())
    questions: dict[str, Callable[[], Any]] = {
        "identity": cloud.identity,
        "zones": lambda: cloud.offered_zones(types),
        "image": lambda: cloud.resolve_image(recipe.instances.image, gpu=gpu),
        "prices": lambda: cloud.prices(types, recipe.instances.markets),
        "cidr": lambda: cidr or cloud.caller_cidr(),
    }
    if account is not None:
        questions |= _questions_of_account(recipe, account)
    outcomes = fan_out(lambda name: questions[name](), list(questions))
    errors = {outcome.item: outcome.error for outcome in outcomes if outcome.error is not None}
    # A mistake of ours is no finding.
    for error in errors.values():
        if not isinstance(error, CloudError):
            raise error
    return Findings(
        answers={outcome.item: outcome.value for outcome in outcomes if outcome.error is None}, errors=errors
    )


def preflight_facts(
    recipe: Recipe, findings: Findings, *, cloud: Cloud, account: Account | None
) -> PreflightFacts:
    """Return what a plan is made of; what is not required may be missing."""
    answers = findings.answers
    subnets: Mapping[str, str] | None = answers.get("subnets")
    return PreflightFacts(
        identity=answers["identity"],
        cidr=answers["cidr"],
        zones=answers["zones"],
        hardware=_hardware(recipe, cloud),
        image=answers["image"],
        prices=answers["prices"],
        known=account.known_types() if account is not None else (),
        quotas=_quotas(recipe, answers, cloud, account),
        subnet_zones=None if subnets is None else tuple(sorted(subnets)),
        scores=_by_zone(answers.get("scores", {}), subnets or {}),
        notes=tuple(
            f"not checked: {error}" for name, error in findings.errors.items() if name not in REQUIRED
        ),
    )


def _questions_of_account(recipe: Recipe, account: Account) -> dict[str, Callable[[], Any]]:
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


def _quotas(
    recipe: Recipe, answers: Mapping[str, Any], cloud: Cloud, account: Account | None
) -> dict[tuple[str, Market], Quota]:
    """Join limits and use; a kept limit that is too low may have been raised since: it is asked for again."""
    if account is None or "limits" not in answers or "usage" not in answers:
        return {}
    known = quotas(answers["limits"], answers["usage"])
    short = [
        quota.code
        for name, hardware in _hardware(recipe, cloud).items()
        for market in recipe.instances.markets
        if (key := quota_key(name, market)) and (quota := known.get(key))
        if hardware.vcpus * recipe.instances.maximum > quota.left
    ]
    if not short:
        return known
    return quotas({**answers["limits"], **account.limits(sorted(set(short)), fresh=True)}, answers["usage"])


def _hardware(recipe: Recipe, cloud: Cloud) -> dict[str, InstanceType]:
    return {name: known for name in recipe.instances.types if (known := cloud.hardware(name))}


def _by_zone(scores: Mapping[str, int], subnets: Mapping[str, str]) -> dict[str, int]:
    """Name zones as this account does; EC2 scores them by ids that are the same for all accounts."""
    names = {zone_id: zone for zone, zone_id in subnets.items()}
    return {names.get(zone_id, zone_id): score for zone_id, score in scores.items()}
