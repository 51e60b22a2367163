"""`dlcloud doctor`: every check that `up` makes before it creates anything, alone."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from dlcloud.app.choice import regions_of, with_chosen_types
from dlcloud.app.context import Context
from dlcloud.app.recipe_files import read_recipe_file, with_profile
from dlcloud.app.routes import refuse_missing_program
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.launch.preflight import ACCOUNT_PLAN, REQUIRED, Preflight, run_preflight, share_questions
from dlcloud.model.account import AccountPlan
from dlcloud.model.errors import (
    CloudError,
    CredentialsError,
    DlcloudError,
    MissingCredentialsError,
    QuotaError,
    missing_statements,
)
from dlcloud.model.events import stage
from dlcloud.model.instance import Image, InstanceType, Market, Price
from dlcloud.model.money import exact
from dlcloud.planning.fit import suits_workload
from dlcloud.planning.networks import describe_network, plan_network, usable_subnets
from dlcloud.planning.plan import make_plan
from dlcloud.planning.quotas import CODES, quota_key, quotas
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.account import Check, describe_place, findings_report
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import iam_policy
from dlcloud.system.parallel import all_or_raise, fan_out

TYPE_RECIPE = """
name: doctor
cloud: {cloud}
{region}instances: {{types: [{type}], market: spot-then-on-demand}}
workload: {{command: "true"}}
"""


def run(
    context: Context, *, target: str, cloud: str, region: str | None, fix_hint: bool, output: str
) -> None:
    """Check whether TARGET, a recipe or an instance type, would start. Creates nothing."""
    context.change_nothing()
    recipe = _read_target(context, target, cloud, region)
    regions = regions_of(context, recipe.cloud, recipe.open_regions, recipe.geography)
    place = ", ".join(regions)

    places = {
        name: (context.clouds.cloud(recipe.cloud, name), context.clouds.account(recipe.cloud, name))
        for name in regions
    }
    shared = share_questions(recipe, *places[regions[0]], regions)

    def ask(region: str) -> Preflight:
        cloud, account = places[region]
        own = recipe.in_region(region)
        return run_preflight(own, cloud=cloud, account=account, thorough=True, shared=shared)

    with stage(context.emit, context.clock, f"asking {recipe.cloud} {place}"):
        preflights = all_or_raise(fan_out(ask, regions))
    answers = [_check_all(preflight) for preflight in preflights]
    checks = [
        replace(check, region=region) if len(regions) > 1 else check
        for region, (own, _) in zip(regions, answers, strict=True)
        for check in own
    ]
    # It starts if one region would start it.
    refusal = answers[0][1] if all(error is not None for _, error in answers) else None
    if isinstance(refusal, QuotaError):
        types = context.clouds.cloud(recipe.cloud, regions[0]).types
        refusal.hint += find_today("" if _is_type(target) else target, preflights[0], types)
    statements: list[dict[str, object]] = []
    for preflight in preflights:
        statements += [one for one in _missing_statements(preflight) if one not in statements]
    remedy = refusal.hint if refusal is not None else ""
    report = findings_report(
        checks,
        target=target,
        place=describe_place(recipe.cloud, place),
        statements=statements,
        remedy=remedy,
        next_command=_next_command(target, recipe) if refusal is None else "",
    )
    say(render(report, Format(output)))
    if fix_hint and output == Format.TABLE:
        say(f"\n{json.dumps(statements, indent=2)}" if statements else "\nno statement is missing")
    if refusal is not None:
        refusal.message = f"{target} would not start: {refusal.message}"
        refusal.result_shown = True
        raise refusal


def _next_command(target: str, recipe: Recipe) -> str:
    """Return the command that starts what was checked."""
    words = ["dlcloud", "bench", "--type", target] if _is_type(target) else ["dlcloud", "up", target]
    return shlex.join([*words, "--cloud", recipe.cloud])


def _read_target(context: Context, target: str, cloud: str, region: str | None) -> Recipe:
    """Return the recipe of that name, or one for a bare instance type."""
    if _is_type(target):
        place = f"region: {region}\n" if region else ""
        text = TYPE_RECIPE.format(cloud=cloud, region=place, type=target)
        return with_profile(read_recipe(text, target), text, target)[0]
    file = read_recipe_file(target)
    update: dict[str, object] = {"cloud": cloud} if cloud else {}
    update |= {"region": region, "regions": [], "geography": None} if region else {}
    file = replace(file, recipe=file.recipe.model_copy(update=update))
    return with_chosen_types(context, file)[0].recipe


def _is_type(target: str) -> bool:
    """True for an instance type, such as `g6.xlarge`; False for a recipe."""
    family, dot, _ = target.partition(".")
    return bool(dot and family) and "/" not in target and not target.endswith((".yaml", ".yml"))


def _check_all(preflight: Preflight) -> tuple[list[Check], CloudError | None]:
    """Return every check, and the first error that would stop an `up`."""
    asked = preflight.answers.keys() | preflight.errors.keys()
    checks = [Check(name="types", good=_types(preflight)[0], detail=_types(preflight)[1])]
    checks += [
        _check(name, preflight, required=name in REQUIRED) for name in (*REQUIRED, *OPTIONAL) if name in asked
    ]
    refusal = preflight.refusal
    if refusal is None:
        try:
            plan = make_plan(preflight.recipe, preflight.facts())
            checks.append(Check(name="plan", good=True, detail=f"{len(plan.pools)} pool(s) can be tried"))
        except CloudError as error:
            refusal = error
            checks.append(Check(name="plan", good=False, detail=error.message))
    return checks, refusal


_ASKED_OF_AWS = frozenset(
    {"zones", "image", "subnets", "network", ACCOUNT_PLAN, "limits", "reservations", "scores", "launch"}
)
"""What cannot be checked without credentials."""

OPTIONAL = ("subnets", ACCOUNT_PLAN, "limits", "reservations", "scores", "launch")
"""The questions whose refusal stops no launch."""
_TITLES = {
    "identity": "credentials",
    "zones": "offered in",
    "cidr": "SSH from",
    "subnets": "default network",
    "network": "network",
    "limits": "vCPU quota",
    "reservations": "reserved capacity",
    "scores": "spot placement score",
    "launch": "dry run",
}

Verdict = tuple[bool | None, str]
"""A check's answer: True if it is good, None if that is not known; and its details."""


def _check(name: str, preflight: Preflight, *, required: bool) -> Check:
    identity, error = preflight.errors.get("identity"), preflight.errors.get(name)
    if name != "identity" and isinstance(identity, MissingCredentialsError) and name in _ASKED_OF_AWS:
        return Check(name=_TITLES.get(name, name), good=None, detail="not checked: there are no credentials")
    if error is not None:
        good, detail = False if required else None, str(preflight.errors[name])
    else:
        good, detail = _VERDICTS[name](preflight)
    return Check(name=_TITLES.get(name, name), good=good, detail=detail)


def _identity(preflight: Preflight) -> Verdict:
    identity = preflight.answers["identity"]
    return True, f"{identity.arn} of account {identity.account}"


def _types(preflight: Preflight) -> Verdict:
    """Return the hardware; not known where EC2 did not describe it."""
    names, hardware = preflight.recipe.instances.types, preflight.hardware
    lines = [
        f"{name}: {entry.describe()} ({entry.source})"
        if (entry := hardware.get(name))
        else f"{name}: unknown"
        for name in names
    ]
    return all(name in hardware for name in names) or None, "\n".join(lines)


def _zones(preflight: Preflight) -> Verdict:
    zones, types = preflight.answers["zones"], preflight.recipe.instances.types
    lines = [f"{name}: {', '.join(zones.get(name, ())) or 'nowhere'}" for name in types]
    return any(zones.get(name) for name in types), "\n".join(lines)


def _image(preflight: Preflight) -> Verdict:
    image = preflight.answers["image"]
    architecture = f", {image.architecture}" if image.architecture else ""
    return True, f"{image.image_id} ({image.name}{architecture})"


def _prices(preflight: Preflight) -> Verdict:
    prices: Sequence[Price] = preflight.answers["prices"]
    lines = [_price(p) for p in prices if p.market is Market.ON_DEMAND]
    for name in preflight.recipe.instances.types:
        spot = sorted(
            (p for p in prices if p.instance_type == name and p.market is Market.SPOT),
            key=lambda p: (p.hourly_usd, p.zone),
        )
        if spot:
            zones = ", ".join(f"{p.zone} {exact(p.hourly_usd)}" for p in spot)
            lines.append(f"{name} spot: {zones} USD/h ({spot[0].as_of:%Y-%m-%d}, {spot[0].source})")
    return (True, "\n".join(lines)) if lines else (None, "no price is known")


def _price(price: Price) -> str:
    usd = f"{exact(price.hourly_usd)} USD/h in {price.region}"
    return f"{price.instance_type} {price.market}: {usd} ({price.as_of:%Y-%m-%d}, {price.source})"


def _cidr(preflight: Preflight) -> Verdict:
    return True, ", ".join(preflight.answers["cidr"]) or "nowhere: Session Manager's agent connects"


def _subnets(preflight: Preflight) -> Verdict:
    zones = sorted(preflight.answers["subnets"])
    if zones:
        return True, f"default subnets in {', '.join(zones)}"
    return False, f"no default subnet; aws ec2 create-default-vpc --region {preflight.recipe.region}"


def _network(preflight: Preflight) -> Verdict:
    """Return what the recipe's network is, and whether this machine has what its access needs."""
    network, instances = preflight.recipe.network, preflight.recipe.instances
    if network is None:
        return None, "none is named"
    resolved = preflight.answers["network"]
    try:
        refuse_missing_program(network)
        subnets = usable_subnets(network, resolved, instances.zones)
    except DlcloudError as error:
        return False, f"{error.message}; {error.hint}"
    lines = describe_network(network, subnets, count=instances.maximum, profile=instances.profile)
    return True, "\n".join([plan_network(network, resolved, subnets).describe(), *lines])


def _account_plan(preflight: Preflight) -> Verdict:
    """Return AWS's plan of the account, and which of the types a Free one may not launch."""
    plan = preflight.answers[ACCOUNT_PLAN]
    if plan is not AccountPlan.FREE:
        return True, "AWS has no plan for this account" if plan is None else "Paid"
    hardware, names = preflight.hardware, preflight.recipe.instances.types
    refused = [name for name in names if name in hardware and hardware[name].free_tier is False]
    if not refused:
        return True, "Free, and these types are eligible"
    return (len(refused) < len(names)) and None, f"Free: EC2 refuses {', '.join(refused)}"


def _limits(preflight: Preflight) -> Verdict:
    recipe, answers = preflight.recipe, preflight.answers
    limits = quotas(answers["limits"], answers.get("usage", ()))
    lines: dict[str, bool] = {}
    for name in recipe.instances.types:
        hardware = preflight.hardware.get(name)
        for market in recipe.instances.markets:
            key = quota_key(name, market)
            quota = limits.get(key) if key else None
            if quota is None or hardware is None:
                continue
            need = hardware.vcpus * recipe.instances.maximum
            enough = need <= quota.left
            shortfall = "" if enough else f"; {need} are needed for {name}"
            lines[quota.describe() + shortfall] = enough
    return (all(lines.values()), "\n".join(lines)) if lines else (None, "no limit is known for these types")


def _reservations(preflight: Preflight) -> Verdict:
    """Return the account's reservations of the recipe's types, and how many instances are idle in each."""
    instances = preflight.recipe.instances
    listed = [one for one in preflight.answers["reservations"] if one.instance_type in instances.types]
    if not listed:
        return True, "no reservation of these types"
    lines = [one.describe() for one in listed]
    if instances.reservations is None:
        lines.append("instances.reservations in the recipe takes idle ones first, at a marginal price of 0")
    return True, "\n".join(lines)


def _scores(preflight: Preflight) -> Verdict:
    text = ", ".join(f"{zone} {score}" for zone, score in sorted(preflight.scores.items()))
    return (True, f"{text} (10 is best)") if text else (None, "EC2 gives none")


def _launch(preflight: Preflight) -> Verdict:
    """Return what EC2 says to the launch; a refusal that the launch may not meet is not known."""
    checks = preflight.launch
    if checks is None or not checks.errors:
        markets = " and ".join(str(market) for market in preflight.recipe.instances.markets)
        return True, f"EC2 would launch {preflight.recipe.instances.types[0]} {markets}"
    # The markets, and the calls of a launch, are often denied for one reason.
    denials = [getattr(error, "denial", None) for error in checks.errors]
    texts = [
        denial.describe() if denial else error.message
        for denial, error in zip(denials, checks.errors, strict=True)
    ]
    lines = [*texts, *(f"hint: {error.hint}" for error in checks.errors if error.hint)]
    return (None if checks.refusal is None else False), "\n".join(dict.fromkeys(lines))


def _missing_statements(preflight: Preflight) -> list[dict[str, object]]:
    """Return the policy statements that would allow what was denied, each once."""
    documented = json.loads(iam_policy(partition=partition_of(preflight.recipe.region).name))["Statement"]
    launch = preflight.launch.errors if preflight.launch is not None else []
    statements: list[dict[str, object]] = []
    for error in (*preflight.errors.values(), *launch):
        denial = error.denial if isinstance(error, CredentialsError) else None
        if denial is not None:
            missing = (dict(statement) for statement in missing_statements(denial, documented))
            statements += [statement for statement in missing if statement not in statements]
    return statements


_VERDICTS: dict[str, Callable[[Preflight], Verdict]] = {
    "identity": _identity,
    "zones": _zones,
    "image": _image,
    "prices": _prices,
    "cidr": _cidr,
    "subnets": _subnets,
    "network": _network,
    ACCOUNT_PLAN: _account_plan,
    "limits": _limits,
    "reservations": _reservations,
    "scores": _scores,
    "launch": _launch,
}


ASKED = 8
"""How many types are asked for the zones that offer them."""


def find_today(target: str, preflight: Preflight, types: InstanceTypes) -> str:
    """Return which type would start today, with the command that starts it; empty if none is known to.

    Args:
        target: The recipe, as the user names it; empty for one that dlcloud made of a type.
        preflight: The answers, of which the plan and the use of the account are taken.
        types: Describes and finds types.
    """
    recipe = preflight.recipe
    try:
        candidates = sorted(_startable(preflight, types), key=lambda entry: _rank(recipe, entry))[:ASKED]
        zones = types.zones([entry.name for entry in candidates]) if candidates else {}
    except CloudError:  # the checks above say what is refused
        return ""
    entry = next((entry for entry in candidates if entry.name in zones), None)
    if entry is None:
        return ""
    suits = suits_workload(recipe, entry)
    name = target if target and suits else "quickstart --cloud aws"
    note = "" if suits else ", though not this workload"
    return (
        f"; today {entry.name} ({entry.describe()}) would start{note}: dlcloud up {name} --type {entry.name}"
    )


def _startable(preflight: Preflight, types: InstanceTypes) -> list[InstanceType]:
    """Return the types that plan and quotas allow in one of the recipe's markets."""
    account, instances = preflight.account, preflight.recipe.instances
    if account is None:
        return []
    if preflight.answers.get(ACCOUNT_PLAN) is AccountPlan.FREE:
        offered: Sequence[InstanceType] = types.free_tier()
    else:
        offered = [one.hardware for one in account.known_types() if one.hardware.status == "current"]
    keys = {quota_key(entry.name, market) for entry in offered for market in instances.markets}
    limits = account.limits(sorted(CODES[key] for key in keys if key is not None))
    counted = quotas(limits, preflight.answers.get("usage", ()))
    left: dict[tuple[str, Market] | None, int] = {key: quota.left for key, quota in counted.items()}

    def has_room(entry: InstanceType, market: Market) -> bool:
        return entry.vcpus * max(1, instances.minimum) <= left.get(quota_key(entry.name, market), 0)

    return [
        entry
        for entry in offered
        if _boots(preflight, entry) and any(has_room(entry, market) for market in instances.markets)
    ]


def _boots(preflight: Preflight, entry: InstanceType) -> bool:
    """True if an image is there for a type: one that the recipe names is of one architecture."""
    image: Image | None = preflight.answers.get("image")
    if preflight.recipe.instances.image == "auto" or image is None or not image.architecture:
        return True
    return image.architecture in entry.architectures


def _rank(recipe: Recipe, entry: InstanceType) -> tuple[bool, float, float]:
    """Return the order: what suits the workload, then the most peak TFLOPS and the most memory."""
    return (not suits_workload(recipe, entry), -(entry.peak_tflops or 0.0), -entry.memory_gib)
