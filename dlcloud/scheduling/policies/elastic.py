"""dlcloud's own policy: all spot there is, on-demand as late as is safe, as few changeovers as pay.

An hour of work costs the same on-demand whenever it is done, so that it is bought as late as possible: until
then spot instances may still do it. Three things keep the deadline safe, and are never spent on waiting:

- the time that a refusal of on-demand instances may take;
- one restart for each spot instance, should each be lost alone;
- a reserve for the changeovers of spot spells yet to come, as far as the slack allows; it shrinks with time.

On-demand is left for spot once a spell has lasted long enough for the rest of it to pay for the way there and
back. The constants were fitted on traces, `docs/deadlines.md` says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.fill import Targets, fill, in_order, kept, on_demand_too
from dlcloud.scheduling.policies.situation import HOUR_S, Availability, Decision, Pool, Situation

MARGIN_S = 1.0
"""What rounding of times may cost."""
PRIOR_SPELLS = 9.0
PRIOR_SPELL_S = 1.2 * HOUR_S
PRIOR_CYCLE_S = 1.0 * HOUR_S
"""What is believed of a pool at first, as so many spells of that length and distance."""
WORTH_CHANGEOVERS = 22.0
"""The rest of a spell must be so many changeovers long to be worth leaving on-demand."""
TAIL = 4.0
"""Each second that a spell has lasted lets expect so many more: spells have heavy tails."""
RESERVED_TRIPS = 0.5
"""So many times the expected changeovers are held in reserve."""
FLAPPING_CYCLE_S = 20 * 60.0
FLAPPING_SHARE = 0.5
"""Where it is cheap (this share of the slack), enough is reserved for instances that each are lost and
replaced so often."""
PACE = 0.9
"""At most this share of the slack that a steady pace would have left is reserved."""
DROP_S = 2.3 * HOUR_S
DROP_CHANGEOVERS = 20.0
"""On-demand is let go for nothing only with so much slack to spare beyond the reserve; the hours shrink as
the deadline comes closer."""
SHORTEST_CHANGEOVERS = 4.0
"""With less work left than so many changeovers nothing is changed that need not be."""
STAY_SHARE = 1 / 3
"""A running spot instance is given up for a cheaper pool where this share of what a changeover costs
on-demand is saved each hour: its spell is expected to last the inverse of it, in hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slack:
    """The slack of a situation, in seconds.

    Attributes:
        free_s: What is left after a refusal of on-demand instances.
        reserve_s: What of it is better kept for changeovers to come.
        spell_s: The expected length of a spot spell.
    """

    free_s: float
    reserve_s: float
    spell_s: float


def elastic(situation: Situation) -> Decision:
    """Run on all spot that is useful; fill with on-demand from the latest safe moment on."""
    slack = _measure(situation)
    present: Targets = {pool.key: pool.present for pool in situation.pools if pool.present}
    if any(pool.present > pool.keep for pool in _priced(situation, Market.ON_DEMAND)):
        return _beside_on_demand(situation, slack, present)
    spot = _change(
        situation, slack, present, fill(kept(situation), _spot_pools(situation), situation.maximum)
    )
    size = sum(spot.values())
    if size >= situation.maximum:
        return Decision(targets=spot, reason=f"all {size} without more on-demand", ask_again_s=HOUR_S)
    wait_s = slack.free_s - slack.reserve_s - situation.restart_s * (1 + _count_spot(spot))
    if wait_s > 0:
        reason = f"{size} of {situation.maximum} obtainable; on-demand can wait {wait_s / HOUR_S:.1f} h"
        return Decision(targets=spot, reason=reason, ask_again_s=wait_s + MARGIN_S / 2)
    return _filled(situation, spot, "the latest safe moment for on-demand")


def _beside_on_demand(situation: Situation, slack: _Slack, present: Targets) -> Decision:
    """Decide while on-demand instances run that spot may replace."""
    least_s = max(0.0, (WORTH_CHANGEOVERS * situation.restart_s - slack.spell_s) / TAIL)
    pools = _spot_pools(situation)
    lasting = [pool for pool in pools if pool.present or pool.availability.unchanged_s >= least_s]
    targets = present
    if situation.least_time_s > SHORTEST_CHANGEOVERS * situation.restart_s:
        desired = fill(kept(situation), lasting, situation.maximum)
        targets = _change(situation, slack, present, desired, fills=True)
    size = sum(targets.values())
    if targets is present or size >= situation.maximum:
        reason = "on-demand stays: no time for a changeover" if targets is present else "spot has lasted"
        return _filled(situation, targets, reason, _next_look(pools, least_s))
    spare_s = slack.free_s - slack.reserve_s - situation.restart_s * (2 + _count_spot(targets))
    drop_s = DROP_S * situation.time_left_s / situation.allowed_s + DROP_CHANGEOVERS * situation.restart_s
    if spare_s > drop_s:
        reason = f"on-demand is not needed for {spare_s / HOUR_S:.1f} h"
        return Decision(targets=targets, reason=reason, ask_again_s=spare_s)
    return _filled(situation, targets, f"on-demand fills: spot has {size}", _next_look(pools, least_s))


def _filled(situation: Situation, targets: Targets, reason: str, ask_again_s: float = HOUR_S) -> Decision:
    filled = on_demand_too(situation, targets, situation.maximum)
    return Decision(targets=filled, reason=reason, ask_again_s=ask_again_s)


def _next_look(pools: Sequence[Pool], least_s: float) -> float:
    """Return the seconds until a young spot spell has lasted long enough; at most an hour."""
    young = [
        least_s - pool.availability.unchanged_s for pool in pools if pool.obtainable and not pool.present
    ]
    return min([HOUR_S, *(wait_s + MARGIN_S / 2 for wait_s in young if wait_s > 0)])


def _change(
    situation: Situation, slack: _Slack, present: Targets, desired: Targets, *, fills: bool = False
) -> Targets:
    """Return `desired` if there is time for it and for the loss of every spot instance, else `present`.

    With `fills`, on-demand instances fill what is missing, so that only other spot instances are a change.
    """
    is_same = desired == present
    if fills:
        is_same = _spot_only(desired) == _spot_only(present)
    if is_same or slack.free_s >= situation.restart_s * (1 + _count_spot(desired)):
        return desired
    return present


def _measure(situation: Situation) -> _Slack:
    restart_s, left_s = situation.restart_s, situation.time_left_s
    spell_s, cycle_s = _expected([pool.availability for pool in _priced(situation, Market.SPOT)])
    first_s = situation.allowed_s - situation.work_s / situation.scaling.speed(situation.maximum)
    pace_s = max(0.0, first_s - situation.refusal_s) * max(0.0, left_s) / situation.allowed_s
    trips_s = 2 * restart_s * RESERVED_TRIPS * left_s / cycle_s
    changes = situation.maximum * left_s / FLAPPING_CYCLE_S
    flapping_s = min(2 * restart_s * changes, FLAPPING_SHARE * pace_s)
    return _Slack(
        free_s=situation.slack_s - situation.refusal_s - MARGIN_S,
        reserve_s=max(0.0, min(PACE * pace_s, max(trips_s, flapping_s))),
        spell_s=spell_s,
    )


def _expected(pools: Sequence[Availability]) -> tuple[float, float]:
    """Return the expected length of a spot spell and of a spell with the gap after it, in seconds."""
    number = max(1, len(pools))
    spells = PRIOR_SPELLS + sum([pool.spells for pool in pools]) / number
    available_s = sum([pool.available_s for pool in pools]) / number
    observed_s = sum([pool.observed_s for pool in pools]) / number
    return (
        (PRIOR_SPELLS * PRIOR_SPELL_S + available_s) / spells,
        (PRIOR_SPELLS * PRIOR_CYCLE_S + observed_s) / spells,
    )


def _priced(situation: Situation, market: Market) -> list[Pool]:
    return [pool for pool in situation.pools if pool.market is market and pool.hourly_usd > 0]


def _spot_pools(situation: Situation) -> list[Pool]:
    """Return the spot pools that are cheaper than on-demand, the one to use first at the front."""
    dearest = min([pool.hourly_usd for pool in _priced(situation, Market.ON_DEMAND)], default=float("inf"))
    stay_usd = STAY_SHARE * dearest * situation.restart_s / HOUR_S
    pools = in_order(situation, Market.SPOT, stay_usd=stay_usd)
    return [pool for pool in pools if pool.hourly_usd < dearest]


def _spot_only(targets: Targets) -> Targets:
    return {key: count for key, count in targets.items() if key[0] is Market.SPOT}


def _count_spot(targets: Targets) -> int:
    return sum([count for (market, _), count in targets.items() if market is Market.SPOT])
