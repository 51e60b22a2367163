"""dlcloud's own policy: plans the rest of the run, with what the pools have shown so far.

In the order of a decision: spot instances are sorted by what they cost (`spot_by_cost`); what the pools have
shown becomes a model of spot (`forecast`); what runs next is what costs the least to the end, by dynamic
programming over that model (`value`). The plan decides between waiting, spot, spot with on-demand for the
rest of the workers, and on-demand. How many spot instances join is decided one changeover at a time: a join
stops all workers, and must be paid back by what it saves until some of them are expected to go.

The deadline does not depend on the model. Spare time is what is left of the slack after a refusal of
on-demand instances and one restart of all workers. While there is some, all of spot may be lost together or
one by one: every worker is on-demand within one restart of the first loss. Without it, all are on-demand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log2
from typing import NamedTuple

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.situation import (
    HOUR_S,
    PoolDecision,
    PoolState,
    Situation,
    Targets,
    kept,
    on_demand_too,
)
from dlcloud.scheduling.policies.value import MarkovModel, Mode, ValueTable, value_table
from dlcloud.scheduling.spells import OFF, ON

PRIOR_S = 2 * HOUR_S
PRIOR_AVAILABILITY = 0.56
"""What is believed of a pool's availability at first, as so long a time of watching it.

Source: the 17 recordings of Wu et al., "Can't Be Late", NSDI 2024, of each the half on which constants are
chosen; in the other half it is 0.63."""
PRIOR_DROPS = 0.2
"""This many losses of a part of a pool are believed of an hour before it was watched."""
SHARES = 4
"""Models differ by a quarter of the workers and of a probability, by a twentieth of a price, and by powers of
2 of times and rates, so that few tables are computed."""

_SPOT, _ON_DEMAND = Market.SPOT, Market.ON_DEMAND
"""A member is looked up in its class more slowly than it is compared, and a decision compares many."""

Candidate = tuple[float, float, PoolState, int]
"""USD an hour and instance, stops of all workers an hour, a pool, and how many of its instances."""
Offer = tuple[PoolState, int]
"""A pool, and how many of its instances are of use."""


@dataclass(slots=True, kw_only=True)
class Forecast:
    """What is expected of spot.

    Attributes:
        model: For the rest of the run.
        on_age: Class of age of the spell in the pool that is used first.
        off_age: Class of age of the time without any spot.
        losses_per_h: How often an hour some of the instances of the pool used first are expected to go.
    """

    model: MarkovModel
    on_age: int
    off_age: int
    losses_per_h: float


def spot_by_cost(situation: Situation, dearest_usd: float) -> tuple[list[Offer], list[Candidate]]:
    """Return what fills the workers if a stop of all costs its time on-demand, and all candidates.

    The cost of a pool is the price, as expected until the pool takes its instances back, and what its
    changeovers are expected to cost an hour: all workers stop when a spell ends, and once more to get there.
    Pools that are dearer than on-demand are left out.
    """
    left_h, maximum = situation.least_time_s / HOUR_S, situation.maximum
    candidates: list[Candidate] = []
    for pool in situation.pools:
        obtainable = pool.obtainable
        if not obtainable or pool.market is not _SPOT or not 0 < pool.hourly_usd < dearest_usd:
            continue
        stays = min(pool.running + pool.starting, obtainable)
        more = min(obtainable, maximum) - stays
        losses = losses_per_h(pool)
        usd = pool.expected_usd(min(left_h, 1 / losses))
        if stays:
            candidates.append((usd, losses, pool, stays))
        if more > 0:
            candidates.append((usd, 2 * losses, pool, more))
    pause_usd = maximum * situation.restart_s / HOUR_S * dearest_usd
    return in_order_of_cost(candidates, pause_usd, maximum), candidates


def in_order_of_cost(candidates: Sequence[Candidate], pause_usd: float, missing: int) -> list[Offer]:
    """Return the pools that fill this number of workers, for this cost of a stop of all.

    The next is always the cheapest for the workers that are still missing. As many instances share the cost
    of stops as are taken: when many shared it of which one was needed, a single instance was moved from pool
    to pool and back, and every move stopped all.
    """
    left, offers = list(candidates), []
    while left and missing > 0:
        best, least_usd = -1, inf
        for place, (usd, stops, pool, count) in enumerate(left):
            cost_usd = usd + pause_usd * stops / (count if count < missing else missing)  # noqa: FURB136  speed
            if cost_usd < least_usd or (cost_usd == least_usd and pool.name < left[best][2].name):
                best, least_usd = place, cost_usd
        _, _, pool, count = left.pop(best)
        offers.append((pool, min(count, missing)))
        missing -= count
    return offers


def on_demand_usd(situation: Situation) -> float:
    """Return the price of an on-demand instance-hour; infinite if there is none."""
    dearest_usd = inf
    for pool in situation.pools:
        if pool.market is _ON_DEMAND and 0 < pool.hourly_usd < dearest_usd:
            dearest_usd = pool.hourly_usd
    return dearest_usd


def losses_per_h(pool: PoolState) -> float:
    """Return how often an hour a pool that has capacity now takes some of it back."""
    past = pool.availability
    age_s = past.unchanged_s if pool.obtainable else 0.0
    partial = HOUR_S * past.drops / (past.available_s + HOUR_S)
    return past.on_factor * ON.hourly[ON.age_class(age_s / HOUR_S)] + partial


def forecast(situation: Situation, offers: Sequence[Offer], spare_s: float, dearest_usd: float) -> Forecast:
    """Return what is expected, if spot instances are taken in the order of `offers`.

    Args:
        situation: With at least one spot pool.
        offers: From `spot_by_cost`; empty if no spot is to be had.
        spare_s: The spare time at the start.
        dearest_usd: Price of an on-demand instance-hour.
    """
    spot = [pool for pool in situation.pools if pool.market is _SPOT and pool.hourly_usd > 0]
    first = offers[0][0] if offers else min(spot, key=lambda pool: (pool.hourly_usd, pool.name))
    past, boot_s, changeover_s = first.availability, situation.boot_s, situation.changeover_s
    share, usd = _share_and_price(situation, offers, first)
    drops = past.drops + (PRIOR_DROPS if situation.maximum > 1 else 0.0)
    drops = 2 * drops * HOUR_S / (past.available_s + HOUR_S)
    off_factor, unavailable_s, none = 0.0, inf, 1.0
    for pool in spot:
        pool_past = pool.availability
        off_factor += pool_past.off_factor
        unavailable_s = min(unavailable_s, pool_past.unchanged_s)
        if pool is not first:  # it has capacity as often as it had it so far
            none *= 1 - (PRIOR_S * PRIOR_AVAILABILITY + pool_past.available_s) / (
                PRIOR_S + pool_past.observed_s
            )
    model = MarkovModel(
        on_factor=_power_of_2(past.on_factor, roots=2),
        off_factor=_power_of_2(off_factor, roots=2),
        other=round((1 - none) * SHARES) / SHARES,
        share=share,
        drops=_power_of_2(drops) if drops > 1 / 4 else 0.0,
        spot_usd=round(20 * usd / dearest_usd) / 20,
        changeover_h=changeover_s / HOUR_S,
        boot_h=boot_s / HOUR_S,
        work_h=situation.work_s / situation.scaling.speed(situation.maximum) / HOUR_S,
        spare_h=spare_s / HOUR_S,
    )
    return Forecast(
        model=model,
        on_age=ON.age_class(past.unchanged_s / HOUR_S),
        off_age=OFF.age_class(unavailable_s / HOUR_S),
        losses_per_h=losses_per_h(first),
    )


def spread(offers: Sequence[Offer], targets: Targets, size: int) -> Targets:
    """Add instances in the order of the offers, until there are `size` in all."""
    filled, missing = dict(targets), size - sum(targets.values())
    for pool, count in offers:
        taken = min(count, missing)
        if taken > 0:
            filled[pool.key] = filled.get(pool.key, 0) + taken
            missing -= taken
    return filled


def _share_and_price(situation: Situation, offers: Sequence[Offer], first: PoolState) -> tuple[float, float]:
    """Return the share of the workers that spot gives, and its price."""
    room, count, usd = situation.maximum, 0, 0.0
    left_h = situation.least_time_s / HOUR_S
    for pool, taken in offers:
        count, usd = count + taken, usd + taken * pool.expected_usd(left_h)
    mean_usd = usd / count if count else first.expected_usd(left_h)
    share = ceil(SHARES * count / room) / SHARES if count else 1.0
    return share, mean_usd


def _power_of_2(value: float, *, roots: int = 1) -> float:
    """Round to a power of 2 or of a root of it, so that few tables are computed.

    Factors of spells weigh more than the other parameters: with powers of 2 three zones cost 2 to 3 % more.
    """
    return float(2.0 ** (round(roots * log2(value)) / roots))


MARGIN_S = 1.0
"""What rounding of times may cost."""
LOOK_S = 600.0
"""Spells become older without an event: the plan is looked at so often while spot may replace on-demand."""
PROBE_H = 0.1
"""The worth of an hour of work is the slope of the plan's cost over so much of it."""
DOUBT = 0.05
"""Work that is put off costs on-demand at least as often as this, whatever the plan expects of spot."""


class _Option(NamedTuple):
    """What may run next, and what the run costs to its end then; in hours of all workers on-demand."""

    mode: Mode
    cost_h: float


@dataclass(slots=True, kw_only=True)
class _Plan:
    """A situation, and the plan for the rest of it.

    Attributes:
        dearest_usd: Price of an on-demand instance-hour.
        room: The workers that are not kept anyway.
        work_h: What is left, on all workers.
        spare_h: Until the safe moment.
        spot: All spot instances that are of use, with what is kept.
        held: Spot instances that run, up to those that are of use.
        on_demand: On-demand instances that run and may go.
        leaves_home: It is of another Region than the state's.
    """

    situation: Situation
    table: ValueTable
    expected: Forecast
    dearest_usd: float
    room: int
    work_h: float
    spare_h: float
    spot: Targets
    obtainable: int
    held: int
    on_demand: int
    leaves_home: bool = False

    def can_lose(self, lost_h: float) -> bool:
        """True if some spare time is left after a loss of time: without any, all is on-demand immediately."""
        return self.spare_h > lost_h + 2 * MARGIN_S / HOUR_S

    def cost_h(self, mode: Mode, lost_h: float = 0.0, *, stays: bool = False) -> float:
        """Return the plan's cost from a mode on, after some spare time was lost."""
        age = self.expected.off_age if mode <= Mode.OFF else self.expected.on_age
        return self.table.value(mode, age, self.work_h, self.spare_h - lost_h, stays=stays)


def elastic(situation: Situation) -> PoolDecision:
    """Run what is expected to cost the least to the end, while it is safe; else all on-demand."""
    base = kept(situation)
    safe_s = situation.refusal_s + situation.restart_s + MARGIN_S
    spare_s = situation.slack_s - safe_s
    first_s = situation.allowed_s - situation.work_s / situation.scaling.speed(situation.maximum) - safe_s
    if sum(base.values()) >= situation.maximum:
        return PoolDecision(targets=base, reason="all that is paid for anyway", ask_again_s=HOUR_S)
    regions = {pool.region for pool in situation.pools if pool.market is _SPOT and pool.hourly_usd > 0}
    if spare_s <= 0 or first_s <= 0 or not regions:
        reason = "the latest safe moment: all on-demand" if regions else "there is no spot pool"
        everything = on_demand_too(situation, base, situation.maximum)
        return PoolDecision(targets=everything, reason=reason, ask_again_s=HOUR_S)
    first_s = max(first_s, spare_s)
    if len(regions) == 1:
        return _decide(_make_plan(situation, base, spare_s, first_s), base)
    return _decide(_plan_over(regions, situation, base, first_s), base)


def _plan_over(regions: set[str], situation: Situation, base: Targets, first_s: float) -> _Plan:
    """Plan for the Region in which the rest of the run costs least, with the move of the state to it.

    One Region trains at a time. A move costs its price, the workers' time, and spare time, and leads to a
    Region that has spot, as on-demand instances are to be had where the state is. If the Region where it is
    has none, a move there is compared with waiting for its own spot: a plan that counted on both would put
    the move off again and again.
    """
    safe_s = situation.refusal_s + situation.restart_s + MARGIN_S
    home = situation.region
    plans: dict[str, _Plan] = {}
    for region in sorted(regions - {home}):
        there = _seen_from(region, situation)
        spare_s = there.slack_s - safe_s
        plan = _make_plan(there, base, spare_s, first_s) if spare_s > 0 else None
        if plan is not None and plan.obtainable:
            plans[region] = plan
    there = _seen_from(home, situation, alone=bool(plans))
    if home in regions or not plans:
        plans[home] = _make_plan(there, base, there.slack_s - safe_s, first_s)
    if home:  # another Region is of use with spot only: to wait for its spot would put the move off
        plans = {name: replace(plan, leaves_home=name != home) for name, plan in plans.items()}

    def least_h(region: str) -> tuple[float, bool, str]:
        plan = plans[region]
        cost_h = min([one.cost_h for one in _options(plan)], default=float("inf"))
        return cost_h + (_move_h(plan, region) if home and region != home else 0.0), region != home, region

    return plans[min(plans, key=least_h)]


def _move_h(plan: _Plan, region: str) -> float:
    """Return what a move to a Region costs, in hours of all workers on-demand; they are billed meanwhile."""
    situation, move = plan.situation, plan.situation.move_to(region)
    usd_h = move.usd / (situation.maximum * plan.dearest_usd)
    return usd_h + move.seconds / HOUR_S * plan.expected.model.spot_usd


def _seen_from(region: str, situation: Situation, *, alone: bool = False) -> Situation:
    """Return the situation of a training that continues in a Region: no other one has spot now.

    `alone`: Nothing is expected of other Regions later, either.
    """
    moves = bool(situation.region) and region != situation.region
    own = [pool for pool in situation.pools if pool.market is not _SPOT or pool.region == region]
    others = [
        replace(pool, obtainable=0, running=0, starting=0)
        for pool in situation.pools
        if pool.market is _SPOT and pool.region != region
    ]
    has_spot = any(pool.market is _SPOT and pool.obtainable for pool in own)
    pools = own if alone and not has_spot and len(own) > 1 else [*own, *others]
    lost_s = situation.move_to(region).seconds if moves else 0.0
    return replace(situation, pools=tuple(pools), time_left_s=situation.time_left_s - lost_s)


def _make_plan(situation: Situation, base: Targets, spare_s: float, first_s: float) -> _Plan:
    dearest_usd, work_h = on_demand_usd(situation), situation.least_time_s / HOUR_S
    offers, candidates = spot_by_cost(situation, dearest_usd)
    expected = forecast(situation, offers, first_s, dearest_usd)
    if len(candidates) > 1:
        # Costs are linear in that of a stop: an order that holds for the least and the most holds between.
        all_usd = situation.maximum * dearest_usd
        most_usd = all_usd * (work_h + 2 * situation.restart_s / HOUR_S)
        if in_order_of_cost(candidates, most_usd, situation.maximum) != offers:
            pause_usd = all_usd * _pause_cost_h(expected, work_h, spare_s / HOUR_S)
            offers = in_order_of_cost(candidates, pause_usd, situation.maximum)
            expected = forecast(situation, offers, first_s, dearest_usd)
    spot = spread(offers, base, situation.maximum)
    held = on_demand = 0
    for pool in situation.pools:
        if pool.market is _SPOT:
            held += min(pool.present, spot.get(pool.key, 0))
        elif pool.hourly_usd > 0:
            on_demand += max(0, pool.present - pool.keep)
    kept_size = sum(base.values())
    return _Plan(
        situation=situation,
        table=value_table(expected.model),
        expected=expected,
        dearest_usd=dearest_usd,
        room=situation.maximum - kept_size,
        work_h=work_h,
        spare_h=spare_s / HOUR_S,
        spot=spot,
        obtainable=sum(spot.values()) - kept_size,
        held=held,
        on_demand=on_demand,
    )


def _pause_cost_h(expected: Forecast, work_h: float, spare_h: float) -> float:
    """Return what a restart of all workers costs to the end; the less spare time is left, the more."""
    table, model = value_table(expected.model), expected.model
    restart_h = model.changeover_h + model.boot_h
    before = table.value(Mode.SPOT, expected.on_age, work_h, spare_h)
    after = table.value(Mode.SPOT, expected.on_age, work_h, spare_h - restart_h)
    return max(restart_h, restart_h * model.spot_usd + after - before)


def _decide(plan: _Plan, base: Targets) -> PoolDecision:
    situation, size = plan.situation, plan.situation.maximum
    options = _options(plan)
    if len(options) > 1:
        options.sort(key=lambda option: option.cost_h)
    mode = options[0].mode
    targets = _joined(plan, base, mode) if mode in {Mode.SPOT, Mode.BOTH} else base
    if mode in {Mode.OFF, Mode.ON, Mode.BOTH}:
        targets = on_demand_too(situation, targets, size)
    again_s = LOOK_S
    if sum(targets.values()) < size:
        # The less there is to spare, the sooner the plan is looked at again: never is all of it waited away.
        spare_s = plan.spare_h * HOUR_S
        again_s = min(again_s, max(spare_s / 4, situation.restart_s), spare_s)
    return PoolDecision(
        targets=targets, reason=_explain(plan, options), ask_again_s=max(MARGIN_S / 2, again_s)
    )


def _options(plan: _Plan) -> list[_Option]:
    """Return what may run next: to change nothing first, then what a changeover leads to."""
    if not plan.obtainable:
        return _options_without_spot(plan)
    options = _options_on_spot(plan) if plan.held else _options_beside_spot(plan)
    if plan.leaves_home:
        options = [one for one in options if one.mode in {Mode.SPOT, Mode.BOTH}]
    return options


def _options_without_spot(plan: _Plan) -> list[_Option]:
    model = plan.expected.model
    waiting = _Option(mode=Mode.WAIT, cost_h=plan.cost_h(Mode.WAIT, stays=True))
    if plan.on_demand:
        return [_Option(mode=Mode.OFF, cost_h=plan.cost_h(Mode.OFF, stays=True)), waiting]
    restart_h = model.changeover_h + model.boot_h
    return [waiting, _Option(mode=Mode.OFF, cost_h=restart_h + plan.cost_h(Mode.OFF, restart_h))]


def _options_on_spot(plan: _Plan) -> list[_Option]:
    model, pause_h = plan.expected.model, _pause_h(plan)
    restart_h = model.changeover_h + model.boot_h
    hourly = model.spot_usd * model.share
    if plan.obtainable >= plan.room:
        return [_Option(mode=Mode.SPOT, cost_h=plan.cost_h(Mode.SPOT, stays=True))]
    if plan.on_demand:
        options = [_Option(mode=Mode.BOTH, cost_h=plan.cost_h(Mode.BOTH, stays=True))]
        if plan.can_lose(pause_h):
            usd = pause_h * hourly + plan.cost_h(Mode.SPOT, pause_h)
            options.append(_Option(mode=Mode.SPOT, cost_h=usd))
    else:
        options = [_Option(mode=Mode.SPOT, cost_h=plan.cost_h(Mode.SPOT, stays=True))]
        if plan.can_lose(restart_h):
            usd = restart_h * (1 - model.share) + model.changeover_h * hourly
            options.append(_Option(mode=Mode.BOTH, cost_h=usd + plan.cost_h(Mode.BOTH, restart_h)))
    usd = restart_h + plan.cost_h(Mode.ON, pause_h)
    return [*options, _Option(mode=Mode.ON, cost_h=usd)] if model.drops else options


def _options_beside_spot(plan: _Plan) -> list[_Option]:
    """Return the options while spot is to be had and none runs."""
    model = plan.expected.model
    lost_h = _pause_h(plan) if plan.on_demand else model.changeover_h + model.boot_h
    rest, hourly = 1 - model.share, model.spot_usd * model.share
    if plan.on_demand:
        options = [_Option(mode=Mode.ON, cost_h=plan.cost_h(Mode.ON, stays=True))]
    else:
        options = [_Option(mode=Mode.ON, cost_h=lost_h + plan.cost_h(Mode.ON, lost_h))]
    if plan.can_lose(lost_h):
        usd = (model.boot_h + model.changeover_h) * hourly
        options.append(_Option(mode=Mode.SPOT, cost_h=usd + plan.cost_h(Mode.SPOT, lost_h)))
        if rest > 0:
            options.append(
                _Option(mode=Mode.BOTH, cost_h=usd + lost_h * rest + plan.cost_h(Mode.BOTH, lost_h))
            )
    return options


def _pause_h(plan: _Plan) -> float:
    """Return what one more changeover costs now: less, if one is under way that ends later."""
    model = plan.expected.model
    return model.changeover_h - max(0.0, plan.situation.changing_s / HOUR_S - model.boot_h)


def _joined(plan: _Plan, base: Targets, mode: Mode) -> Targets:
    """Return all spot instances, or those that run, if the others do not pay for the stop of all workers."""
    more = plan.obtainable - plan.held
    if not plan.held or more <= 0:
        return plan.spot
    is_beside = mode is Mode.BOTH
    saved = (_worth(plan, is_beside=is_beside) - plan.expected.model.spot_usd) * more / plan.room
    size = plan.room if is_beside else plan.held
    stopped = _worth(plan, is_beside=is_beside) * size / plan.room
    pauses_h = _pause_h(plan) + plan.expected.model.changeover_h
    lasting_h = min(plan.work_h, 1 / plan.expected.losses_per_h)
    if saved * lasting_h > stopped * pauses_h and plan.can_lose(_pause_h(plan)):
        return plan.spot
    running = {p.key: min(p.present, p.obtainable) for p in plan.situation.pools if p.market is _SPOT}
    return base | {key: count for key, count in running.items() if count}


def _worth(plan: _Plan, *, is_beside: bool) -> float:
    """Return what an hour of work of all workers saves to the end, over its price on-demand."""
    if is_beside:
        return 1.0
    model, work_h = plan.expected.model, plan.work_h
    age, probe_h = plan.expected.on_age, min(PROBE_H, work_h)
    now = plan.table.value(Mode.SPOT, age, work_h, plan.spare_h)
    done = plan.table.value(Mode.SPOT, age, work_h - probe_h, plan.spare_h + probe_h)
    least = model.spot_usd + DOUBT * (1 - model.spot_usd)
    return min(1.0, max(least, (now - done) / probe_h)) if probe_h else least


def _explain(plan: _Plan, options: list[_Option]) -> str:
    """Return the decision as a clause: what runs, what it costs, and what the next best would."""
    scale = plan.room * plan.dearest_usd
    best, *others = options
    text = f"{_name(best.mode, plan)}: {scale * best.cost_h:.2f} USD to the end"
    if others and others[0].cost_h < float("inf"):
        text += f", {scale * others[0].cost_h:.2f} with {_name(others[0].mode, plan)}"
    return f"{text}; {plan.spare_h:.1f} h to spare"


def _name(mode: Mode, plan: _Plan) -> str:
    if mode is Mode.SPOT:
        return f"{plan.obtainable} of {plan.room} on spot"
    if mode is Mode.BOTH:
        return f"on-demand next to {plan.obtainable} on spot"
    return "waiting for spot" if mode is Mode.WAIT else "on-demand"
