"""The walk of `dlcloud doctor`: ask all that `up` asks, and say of each whether it would stand in the way."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from dlcloud.cli.context import Context
from dlcloud.core.cost import exact
from dlcloud.core.errors import CloudError
from dlcloud.core.events import stage
from dlcloud.core.instance import Market, Price
from dlcloud.core.plan import make_plan
from dlcloud.core.protocols import Cloud
from dlcloud.core.quota import quota_key, quotas
from dlcloud.core.recipe import Recipe, read_recipe
from dlcloud.launch.preflight import REQUIRED, Findings, ask, preflight_facts
from dlcloud.report.findings import Check, findings_report
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import recipe_text

TYPE_RECIPE = """
name: doctor
cloud: {cloud}
region: {region}
instances: {{types: [{type}], market: spot-then-on-demand}}
workload: {{command: "true"}}
"""


def examine(context: Context, target: str, *, cloud: str | None, region: str | None, output: str) -> None:
    """Print every check.

    Raises:
        RecipeError: The recipe is at fault.
        CloudError: Something would be refused; the table was printed.
    """
    recipe = _recipe(target, cloud, region)
    there = context.cloud(recipe.cloud, recipe.region)
    account = context.account(recipe.cloud, recipe.region)
    with stage(context.emit, context.clock, f"asking {recipe.cloud} {recipe.region}"):
        findings = ask(recipe, cloud=there, account=account)
    names = [name for name in (*REQUIRED, *_NAMES) if _asked(name, findings)]
    checks = [_check(name, findings, recipe, there) for name in names]
    refusal = _first_refusal(findings)
    if refusal is None:
        try:
            plan = make_plan(recipe, preflight_facts(recipe, findings, cloud=there, account=account))
            checks.append(Check(name="plan", good=True, detail=f"{len(plan.pools)} pool(s) can be tried"))
        except CloudError as error:
            refusal = error
            checks.append(Check(name="plan", good=False, detail=error.message))
    click.echo(render(findings_report(checks, target=target), Format(output)))
    if refusal is not None:
        refusal.result_shown = True
        raise refusal


def _recipe(target: str, cloud: str | None, region: str | None) -> Recipe:
    """Return the recipe of that name, or one for a bare instance type."""
    kind, dot, _ = target.partition(".")
    bare = dot and "/" not in target and not target.endswith((".yaml", ".yml")) and kind
    if bare:
        text = TYPE_RECIPE.format(cloud=cloud or "aws", region=region or "us-east-1", type=target)
        return read_recipe(text, target)
    text, path = recipe_text(target)
    recipe = read_recipe(text, str(path or target))
    changed = {key: value for key, value in (("cloud", cloud), ("region", region)) if value}
    return recipe.model_copy(update=changed)


_NAMES = ("subnets", "limits", "scores")
_TITLES = {
    "identity": "credentials",
    "zones": "offered in",
    "cidr": "SSH from",
    "subnets": "default network",
    "limits": "vCPU quota",
    "scores": "spot placement score",
}


def _asked(name: str, findings: Findings) -> bool:
    return name in findings.answers or name in findings.errors


def _first_refusal(findings: Findings) -> CloudError | None:
    refused = (findings.errors.get(name) for name in REQUIRED)
    return next((error for error in refused if isinstance(error, CloudError)), None)


def _check(name: str, findings: Findings, recipe: Recipe, cloud: Cloud) -> Check:
    title = _TITLES.get(name, name)
    if name in findings.errors:
        good = False if name in REQUIRED else None
        return Check(name=title, good=good, detail=str(findings.errors[name]))
    good, detail = _VERDICTS[name](findings, recipe, cloud)
    return Check(name=title, good=good, detail=detail)


Verdict = tuple[bool | None, str]


def _identity(findings: Findings, _: Recipe, __: Cloud) -> Verdict:
    who = findings.answers["identity"]
    return True, f"{who.arn} of account {who.account}"


def _zones(findings: Findings, recipe: Recipe, _: Cloud) -> Verdict:
    zones = findings.answers["zones"]
    told = [f"{name}: {', '.join(zones.get(name, ())) or 'nowhere'}" for name in recipe.instances.types]
    return any(zones.get(name) for name in recipe.instances.types), "\n".join(told)


def _image(findings: Findings, _: Recipe, __: Cloud) -> Verdict:
    image = findings.answers["image"]
    return True, f"{image.image_id} ({image.name})"


def _prices(findings: Findings, recipe: Recipe, _: Cloud) -> Verdict:
    prices: Sequence[Price] = findings.answers["prices"]
    told = [_price(p) for p in prices if p.market is Market.ON_DEMAND]
    for name in recipe.instances.types:
        spot = sorted(
            (p for p in prices if p.instance_type == name and p.market is Market.SPOT),
            key=lambda p: (p.hourly_usd, p.zone),
        )
        if spot:
            where = ", ".join(f"{p.zone} {exact(p.hourly_usd)}" for p in spot)
            told.append(f"{name} spot: {where} USD/h ({spot[0].as_of:%Y-%m-%d}, {spot[0].source})")
    return (True, "\n".join(told)) if told else (None, "no price is known")


def _price(price: Price) -> str:
    usd = exact(price.hourly_usd)
    return f"{price.instance_type} {price.market}: {usd} USD/h ({price.as_of:%Y-%m-%d}, {price.source})"


def _cidr(findings: Findings, _: Recipe, __: Cloud) -> Verdict:
    return True, str(findings.answers["cidr"])


def _subnets(findings: Findings, recipe: Recipe, _: Cloud) -> Verdict:
    zones = sorted(findings.answers["subnets"])
    if zones:
        return True, f"default subnets in {', '.join(zones)}"
    return False, f"no default subnet; aws ec2 create-default-vpc --region {recipe.region}"


def _limits(findings: Findings, recipe: Recipe, cloud: Cloud) -> Verdict:
    known = quotas(findings.answers["limits"], findings.answers.get("usage", ()))
    told: dict[str, bool] = {}
    for name in recipe.instances.types:
        hardware = cloud.hardware(name)
        for market in recipe.instances.markets:
            key = quota_key(name, market)
            quota = known.get(key) if key else None
            if quota is None or hardware is None:
                continue
            need = hardware.vcpus * recipe.instances.maximum
            enough = need <= quota.left
            text = "" if enough else f"; {need} are needed: {quota.increase(need, recipe.region)}"
            told[quota.told() + text] = enough
    return (all(told.values()), "\n".join(told)) if told else (None, "no limit is known for these types")


def _scores(findings: Findings, _: Recipe, __: Cloud) -> Verdict:
    scores = findings.answers["scores"]
    names = {zone_id: zone for zone, zone_id in findings.answers.get("subnets", {}).items()}
    told = ", ".join(f"{names.get(zone, zone)} {score}" for zone, score in sorted(scores.items()))
    return (True, f"{told} (10 is best)") if told else (None, "EC2 gives none")


_VERDICTS: dict[str, Callable[[Findings, Recipe, Any], Verdict]] = {
    "identity": _identity,
    "zones": _zones,
    "image": _image,
    "prices": _prices,
    "cidr": _cidr,
    "subnets": _subnets,
    "limits": _limits,
    "scores": _scores,
}
