"""Look before launching: everything a plan needs to know, asked for at once; nothing is created."""

from collections.abc import Callable
from typing import Any

from dlcloud.core.plan import Observed
from dlcloud.core.ports import Cloud
from dlcloud.core.recipe import Recipe
from dlcloud.ssh.fanout import fan_out


def observe(recipe: Recipe, *, cloud: Cloud, cidr: str = "") -> Observed:
    """Ask who we are, what is offered where, which image, what it costs and what our own address is.

    Args:
        recipe: What is to be launched.
        cloud: Whom to ask.
        cidr: The network that may reach the instances; learned if empty.

    Raises:
        CredentialsError, CloudError: The first question, in this order, that was refused.
    """
    types = recipe.instances.types
    hardware = {name: known for name in types if (known := cloud.hardware(name))}
    gpu = any(known.gpu for known in hardware.values())
    questions: dict[str, Callable[[], Any]] = {
        "identity": cloud.identity,
        "zones": lambda: cloud.offered_zones(types),
        "image": lambda: cloud.resolve_image(recipe.instances.image, gpu=gpu),
        "prices": lambda: cloud.prices(types, recipe.instances.markets),
        "cidr": lambda: cidr or cloud.caller_cidr(),
    }
    outcomes = fan_out(lambda name: questions[name](), list(questions))
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    answers: dict[str, Any] = {outcome.item: outcome.value for outcome in outcomes}
    return Observed(
        identity=answers["identity"],
        cidr=answers["cidr"],
        zones=answers["zones"],
        hardware=hardware,
        image=answers["image"],
        prices=answers["prices"],
    )
