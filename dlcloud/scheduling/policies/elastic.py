"""dlcloud's own policy: plans the rest of the run, with what the pools have shown so far.

What runs next is what costs the least to the end, by dynamic programming over a model of spot (`value`) that
is fitted to each pool as it runs (`forecast`). The plan decides between waiting, spot, spot with on-demand
next to it, and on-demand; how many spot instances join is decided one changeover at a time: a join stops all
workers, and must be paid back by what it saves until some of them are expected to go.

The deadline does not depend on the model. Spare time is what is left of the slack after a refusal of
on-demand instances and one restart of all workers. While there is some, all of spot may be lost together or
one by one: every worker is on-demand within one restart of the first loss. Without it, all are on-demand.
"""

from dataclasses import dataclass

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.fill import Targets, kept, on_demand_too
from dlcloud.scheduling.policies.forecast import Forecast, forecast, on_demand_usd, spot_by_cost, spread
from dlcloud.scheduling.policies.situation import HOUR_S, PoolDecision, Situation
from dlcloud.scheduling.policies.value import Mode, ValueTable, value_table

MARGIN_S = 1.0
"""What rounding of times may cost."""
LOOK_S = 600.0
"""Spells become older without an event: the plan is looked at so often while spot may replace on-demand."""
PROBE_H = 0.1
"""The worth of an hour of work is the slope of the plan's cost over so much of it."""
DOUBT = 0.05
"""Work that is put off costs on-demand at least as often as this, whatever the plan expects of spot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """What may run next, and what the run costs to its end then; in hours of all workers on-demand."""

    mode: Mode
    cost_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A situation, and the plan for the rest of it.

    Attributes:
        room: The workers that are not kept anyway.
        spare_h: Until the safe moment.
        spot: All spot instances that are of use, with what is kept.
        held: Spot instances that run, up to those that are of use.
        on_demand: On-demand instances that run and may go.
    """

    situation: Situation
    table: ValueTable
    expected: Forecast
    room: int
    spare_h: float
    spot: Targets
    obtainable: int
    held: int
    on_demand: int

    def can_lose(self, lost_h: float) -> bool:
        """True if some spare time is left after a loss of time: without any, all is on-demand immediately."""
        return self.spare_h > lost_h + 2 * MARGIN_S / HOUR_S

    def cost_h(self, mode: Mode, lost_h: float = 0.0, *, stays: bool = False) -> float:
        """Return the plan's cost from a mode on, after some spare time was lost."""
        is_off = mode in {Mode.WAIT, Mode.OFF}
        age = self.expected.off_age if is_off else self.expected.on_age
        work_h = self.situation.least_time_s / HOUR_S
        return self.table.value(mode, age, work_h, self.spare_h - lost_h, stays=stays)


def elastic(situation: Situation) -> PoolDecision:
    """Run what is expected to cost the least to the end, while it is safe; else all on-demand."""
    base = kept(situation)
    safe_s = situation.refusal_s + situation.restart_s + MARGIN_S
    spare_s = situation.slack_s - safe_s
    first_s = situation.allowed_s - situation.work_s / situation.scaling.speed(situation.maximum) - safe_s
    everything = on_demand_too(situation, base, situation.maximum)
    if sum(base.values()) >= situation.maximum:
        return PoolDecision(targets=base, reason="all that is paid for anyway", ask_again_s=HOUR_S)
    if spare_s <= 0 or first_s <= 0:
        reason = "the latest safe moment: all on-demand"
        return PoolDecision(targets=everything, reason=reason, ask_again_s=HOUR_S)
    has_spot = any(pool.market is Market.SPOT and pool.hourly_usd > 0 for pool in situation.pools)
    if not has_spot:
        return PoolDecision(targets=everything, reason="there is no spot pool", ask_again_s=HOUR_S)
    return _decide(_make_plan(situation, base, spare_s, max(first_s, spare_s)), base, everything, spare_s)


def _make_plan(situation: Situation, base: Targets, spare_s: float, first_s: float) -> _Plan:
    offers = spot_by_cost(situation)
    expected = forecast(situation, offers, first_s)
    if len({pool.key for _, pool, _ in offers}) > 1:
        offers = spot_by_cost(situation, _pause_usd(situation, expected, spare_s))
        expected = forecast(situation, offers, first_s)
    spot = spread(offers, base, situation.maximum)
    paid = {pool.key: pool.hourly_usd <= 0 for pool in situation.pools}
    on_demand = [pool for pool in situation.pools if pool.market is Market.ON_DEMAND and not paid[pool.key]]
    held = [
        min(pool.present, spot.get(pool.key, 0)) for pool in situation.pools if pool.market is Market.SPOT
    ]
    return _Plan(
        situation=situation,
        table=value_table(expected.model),
        expected=expected,
        room=situation.maximum - sum(base.values()),
        spare_h=spare_s / HOUR_S,
        spot=spot,
        obtainable=sum(spot.values()) - sum(base.values()),
        held=sum(held),
        on_demand=sum([max(0, pool.present - pool.keep) for pool in on_demand]),
    )


def _pause_usd(situation: Situation, expected: Forecast, spare_s: float) -> float:
    """Return what a restart of all workers costs to the end; the less spare time is left, the more."""
    table, model = value_table(expected.model), expected.model
    work_h, spare_h = situation.least_time_s / HOUR_S, spare_s / HOUR_S
    restart_h = model.changeover_h + model.boot_h
    before = table.value(Mode.SPOT, expected.on_age, work_h, spare_h)
    after = table.value(Mode.SPOT, expected.on_age, work_h, spare_h - restart_h)
    lost_h = max(restart_h, restart_h * model.spot_usd + after - before)
    return situation.maximum * on_demand_usd(situation) * lost_h


def _decide(plan: _Plan, base: Targets, everything: Targets, spare_s: float) -> PoolDecision:
    options = sorted(_options(plan), key=lambda option: option.cost_h)
    mode = options[0].mode
    spot = _joined(plan, base, mode) if mode in {Mode.SPOT, Mode.BOTH} else base
    targets = everything if mode in {Mode.OFF, Mode.ON} else spot
    if mode is Mode.BOTH:
        targets = on_demand_too(plan.situation, spot, plan.situation.maximum)
    again_s = LOOK_S
    if sum(targets.values()) < plan.situation.maximum:
        # The less there is to spare, the sooner the plan is looked at again: never is all of it waited away.
        again_s = min(again_s, max(spare_s / 4, plan.situation.restart_s), spare_s)
    return PoolDecision(
        targets=targets, reason=_explain(plan, options), ask_again_s=max(MARGIN_S / 2, again_s)
    )


def _options(plan: _Plan) -> list[_Option]:
    """Return what may run next: to change nothing first, then what a changeover leads to."""
    if not plan.obtainable:
        return _options_without_spot(plan)
    if plan.held:
        return _options_on_spot(plan)
    return _options_beside_spot(plan)


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
    idle = _Option(mode=Mode.IDLE, cost_h=plan.cost_h(Mode.IDLE, stays=True))
    if plan.on_demand:
        options = [_Option(mode=Mode.ON, cost_h=plan.cost_h(Mode.ON, stays=True)), idle]
    else:
        options = [idle, _Option(mode=Mode.ON, cost_h=lost_h + plan.cost_h(Mode.ON, lost_h))]
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
    left_h = plan.situation.least_time_s / HOUR_S
    lasting_h = min(left_h, 1 / plan.expected.losses_per_h)
    if saved * lasting_h > stopped * pauses_h and plan.can_lose(_pause_h(plan)):
        return plan.spot
    running = {p.key: min(p.present, p.obtainable) for p in plan.situation.pools if p.market is Market.SPOT}
    return base | {key: count for key, count in running.items() if count}


def _worth(plan: _Plan, *, is_beside: bool) -> float:
    """Return what an hour of work of all workers saves to the end, over its price on-demand."""
    if is_beside:
        return 1.0
    model, work_h = plan.expected.model, plan.situation.least_time_s / HOUR_S
    age, probe_h = plan.expected.on_age, min(PROBE_H, work_h)
    now = plan.table.value(Mode.SPOT, age, work_h, plan.spare_h)
    done = plan.table.value(Mode.SPOT, age, work_h - probe_h, plan.spare_h + probe_h)
    least = model.spot_usd + DOUBT * (1 - model.spot_usd)
    return min(1.0, max(least, (now - done) / probe_h)) if probe_h else least


def _explain(plan: _Plan, options: list[_Option]) -> str:
    """Return the decision as a clause: what runs, what it costs, and what the next best would."""
    scale = plan.room * on_demand_usd(plan.situation)
    best, *others = options
    names = {
        Mode.WAIT: "waiting for spot",
        Mode.IDLE: "waiting for spot to last",
        Mode.OFF: "on-demand",
        Mode.ON: "on-demand",
        Mode.SPOT: f"{plan.obtainable} of {plan.room} on spot",
        Mode.BOTH: f"on-demand next to {plan.obtainable} on spot",
    }
    text = f"{names[best.mode]}: {scale * best.cost_h:.2f} USD to the end"
    if others and others[0].cost_h < float("inf"):
        text += f", {scale * others[0].cost_h:.2f} with {names[others[0].mode]}"
    return f"{text}; {plan.spare_h:.1f} h to spare"
