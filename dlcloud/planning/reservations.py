"""Capacity that the account has reserved: what of it a recipe may take, and at which price.

The plan calls `take_reserved`; an elastic training chooses again whenever it needs a worker. A reservation is
billed whether instances run in it or not, so that one more instance in it costs nothing more; a Capacity
Block is paid for in advance. Nothing is launched into a block that EC2 is about to end.
Source: EC2 user guide, "Capacity Reservation pricing and billing".
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market, Price

if TYPE_CHECKING:  # recipes bring pydantic, which `--help` never needs
    from dlcloud.recipe.instances import Reservations
    from dlcloud.recipe.recipe import Recipe

OPEN = "open"
"""The word of recipes for any reservation that instances run in without naming it."""
MARGINAL_USD = Decimal(0)
"""An hour of one more instance in a reservation, which is paid for anyway."""
BLOCK_ENDS_BEFORE = timedelta(minutes=30)
"""So long before the end of a Capacity Block EC2 begins to terminate its instances.
Source: EC2 user guide, "Work with Capacity Blocks"."""
BLOCK_MARGIN = timedelta(minutes=10)
"""So long before that nothing is launched into a block any more, and an elastic training leaves it."""
LINUX = "Linux/UNIX"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """A reservation of the account, or one that is shared with it.

    Attributes:
        total: Instances that it holds.
        available: How many of them are idle.
        is_open: Instances run in it without naming it.
        is_block: It is a Capacity Block.
        is_interruptible: Its owner may take the capacity back.
        group: The name of the placement group that it is made in; empty for none.
    """

    reservation_id: str
    instance_type: str
    zone: str
    total: int
    available: int
    state: str = "active"
    is_open: bool = False
    is_block: bool = False
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    is_interruptible: bool = False
    platform: str = LINUX
    tenancy: str = "default"
    group: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def terminates_at(self) -> datetime | None:
        """When EC2 begins to terminate its instances; None for one whose instances run on."""
        return self.ends_at - BLOCK_ENDS_BEFORE if self.is_block and self.ends_at is not None else None

    def describe(self) -> str:
        """Return its type, place, counts and end in a line."""
        kind = "Capacity Block" if self.is_block else "open" if self.is_open else "targeted"
        end = f", ends {self.ends_at:%Y-%m-%d %H:%M} UTC" if self.ends_at is not None else ""
        state = "" if self.state == "active" else f", {self.state}"
        counts = f"{self.available} of {self.total} idle"
        return f"{self.reservation_id}: {self.instance_type} in {self.zone}, {counts}, {kind}{end}{state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedCapacity:
    """What a plan takes of a reservation: `count` instances at most."""

    reservation: CapacityReservation
    count: int

    @property
    def reservation_id(self) -> str:
        return self.reservation.reservation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationFit:
    """What instances of a recipe are like, as far as a reservation must match it.

    Attributes:
        types: The instance types, in order of preference.
        zones: The zones that they may be launched in; empty: any.
        group: The placement group of the user's own; empty for none.
        ends_after: When the last of them may end; None if that is not known.
    """

    types: Sequence[str]
    zones: Collection[str] = ()
    group: str = ""
    ends_after: datetime | None = None


def take_reserved(
    recipe: "Recipe",
    listed: Sequence[CapacityReservation],
    prices: Sequence[Price],
    *,
    asked_at: datetime | None,
    offered: Sequence[str],
    zones: Sequence[str],
    most: int,
    strict: bool,
) -> tuple[tuple[ReservedCapacity, ...], list[str]]:
    """Return what is idle in the recipe's reservations, as far as it suits, and why others do not.

    Args:
        recipe: Says which reservations, and how many of their instances stay idle.
        listed: The account's reservations.
        prices: The prices of the types.
        asked_at: When the reservations were listed; None if that is unknown.
        offered: The types that are launched.
        zones: The zones that are known to have a subnet; empty: any.
        most: How many instances are missing.
        strict: A reservation that is named must be there.

    Raises:
        CloudError: A reservation that is named by its id is not there, or is of another type.
    """
    instances, choice = recipe.instances, recipe.instances.reservations
    if choice is None or not choice.is_used:
        return (), []
    length = timedelta(hours=recipe.budget.max_hours)
    fit = ReservationFit(
        types=instances.types,
        zones=instances.zones or zones,
        group=instances.own_group,
        ends_after=None if asked_at is None else asked_at + length,
    )
    chosen, reasons = choose_reservations(choice, listed, fit, strict=strict)
    if asked_at is not None:
        chosen = without_ending(chosen, asked_at, BLOCK_MARGIN)
    chosen = [one for one in chosen if one.instance_type in offered]
    taken = idle_capacity(chosen, keep_free=choice.keep_free, most=most)
    if not taken and most:
        kept = f" beyond the {choice.keep_free} that stay free" if choice.keep_free else ""
        reasons.append(f"no reserved instance is idle{kept}: all come from the markets")
    on_demand = [price for price in prices if price.market is Market.ON_DEMAND]
    usd = {price.instance_type: price.hourly_usd for price in on_demand}
    return tuple(taken), [*reasons, *describe_reserved(taken, usd)]


def choose_reservations(
    choice: "Reservations", listed: Sequence[CapacityReservation], fit: ReservationFit, *, strict: bool = True
) -> tuple[list[CapacityReservation], list[str]]:
    """Return the reservations that a recipe may launch into, in the order in which they are taken.

    Without `strict`, one that is named and no longer there is no error: the cluster has outlived it.

    Returns:
        The reservations, and why others that the recipe means are left out.

    Raises:
        CloudError: One that is named by its id is not there, or is of another type.
    """
    by_id = {one.reservation_id: one for one in listed}
    for name in choice.ids if strict else ():
        _refuse_unusable(name, by_id.get(name), fit)
    meant = [one for name in choice.use for one in listed if _is_meant(one, name)]
    reasons = [f"{name}: no reservation has this tag" for name in choice.use if _names_none(name, listed)]
    chosen = []
    for one in _distinct(meant):
        fault = _fault(one, fit)
        if fault and (one.reservation_id in choice.ids or one.available):
            reasons.append(f"{one.reservation_id} is left out: {fault}")
        elif not fault:
            chosen.append(one)
    order = {name: number for number, name in enumerate(fit.types)}
    chosen.sort(key=lambda one: (not one.is_block, order[one.instance_type]))
    return chosen, reasons


def without_ending(
    chosen: Sequence[CapacityReservation], now: datetime, margin: timedelta
) -> list[CapacityReservation]:
    """Return the reservations as nothing can be launched into Capacity Blocks that soon end."""
    return [
        replace(one, available=0)
        if one.terminates_at is not None and one.terminates_at - margin <= now
        else one
        for one in chosen
    ]


def idle_capacity(
    chosen: Sequence[CapacityReservation], *, keep_free: int, most: int
) -> list[ReservedCapacity]:
    """Return what may be taken of reservations now: up to `most`, and `keep_free` of them stay idle."""
    left = max(0, min(most, sum(one.available for one in chosen) - keep_free))
    taken = []
    for one in chosen:
        count = min(left, one.available)
        if count:
            taken.append(ReservedCapacity(reservation=one, count=count))
        left -= count
    return taken


def describe_reserved(taken: Sequence[ReservedCapacity], prices: Mapping[str, Decimal]) -> list[str]:
    """Return what a plan takes of reservations, the marginal price, and what the reservations cost anyway.

    Args:
        taken: What the plan takes.
        prices: The on-demand price of an hour by instance type, as far as it is known.
    """
    lines = []
    for one in taken:
        usd = prices.get(one.reservation.instance_type)
        if one.reservation.is_block:
            anyway = "the Capacity Block is paid for in advance"
        elif usd is None:
            anyway = "the reservation is billed, used or not"
        else:
            anyway = f"the reservation is billed, used or not: {usd.normalize():f} USD/h each on-demand"
        end = one.reservation.terminates_at
        ends = f"; EC2 ends them from {end:%Y-%m-%d %H:%M} UTC on" if end is not None else ""
        lines.append(f"{one.count} of {one.reservation_id} at 0 USD marginal: {anyway}{ends}")
    return lines


def _distinct(reservations: Sequence[CapacityReservation]) -> list[CapacityReservation]:
    return list({one.reservation_id: one for one in reservations}.values())


def _is_meant(one: CapacityReservation, name: str) -> bool:
    if name == OPEN:
        return one.is_open
    key, _, value = name.removeprefix("tag:").partition("=")
    return one.tags.get(key) == value if name.startswith("tag:") else one.reservation_id == name


def _names_none(name: str, listed: Sequence[CapacityReservation]) -> bool:
    return name.startswith("tag:") and not any(_is_meant(one, name) for one in listed)


def _refuse_unusable(name: str, one: CapacityReservation | None, fit: ReservationFit) -> None:
    if one is None:
        raise CloudError(
            f"the reservation {name} is not there: it has ended, or is of another region or account",
            "aws ec2 describe-capacity-reservations lists them; dlcloud doctor shows those that fit",
        )
    if one.instance_type not in fit.types:
        raise CloudError(
            f"the reservation {name} holds {one.instance_type}, which is none of {', '.join(fit.types)}",
            f"add {one.instance_type} to instances.types of the recipe",
        )


def _fault(one: CapacityReservation, fit: ReservationFit) -> str:
    """Return why a reservation does not suit; empty if it does."""
    begin = f" from {one.starts_at:%Y-%m-%d %H:%M} UTC on" if one.starts_at is not None else ""
    is_early = one.ends_at is not None and fit.ends_after is not None and one.ends_at < fit.ends_after
    faults = {
        f"it holds {one.instance_type}": one.instance_type not in fit.types,
        f"it is {one.state}{begin}": one.state != "active",
        f"it is in {one.zone}, and instances are launched in {', '.join(sorted(fit.zones))}": bool(fit.zones)
        and one.zone not in fit.zones,
        f"it is for {one.platform} with {one.tenancy} tenancy": (one.platform, one.tenancy)
        != (LINUX, "default"),
        f"it is in {f'the placement group {one.group}' if one.group else 'no placement group'}": one.group
        != fit.group,
        "it is interruptible: EC2 takes its instances back, which need their own market": (
            one.is_interruptible
        ),
        "it may end before the instances do, which would then be billed (budget.max_hours)": is_early
        and not one.is_block,
    }
    return next((fault for fault, applies in faults.items() if applies), "")
