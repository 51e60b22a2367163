"""dlcloud's own policy: all spot there is, on-demand as late as is safe.

An hour of work costs the same on-demand whenever it is done, so that it is bought as late as possible: until
then spot instances may still do it. What is never spent is the time that keeps the deadline safe: a refusal
of on-demand instances, one restart, and the changeovers of spot spells yet to come.
"""

from dlcloud.core.instance import Market
from dlcloud.core.policies.fill import kept, on_demand_too, spot_first
from dlcloud.core.policies.situation import HOUR_S, Decision, Situation

MARGIN_S = 1.0
CYCLE_S = 2 * HOUR_S
"""The time from one spot spell to the next where nothing is known yet: prior of the estimate."""


def elastic(situation: Situation) -> Decision:
    """Run on all spot that is useful; fill with on-demand from the latest safe moment on."""
    spot = spot_first(situation, kept(situation), situation.maximum)
    if sum(spot.values()) >= situation.maximum and _may_leave_on_demand(situation):
        return Decision(targets=spot, reason=f"{situation.maximum} without on-demand", ask_again_s=HOUR_S)
    if situation.slack_s > _reserve_s(situation) + MARGIN_S and not _is_filling(situation):
        until = situation.slack_s - _reserve_s(situation)
        reason = f"{sum(spot.values())} of {situation.maximum}; on-demand can wait {until / HOUR_S:.1f} h"
        return Decision(targets=spot, reason=reason, ask_again_s=until)
    if not _may_leave_on_demand(situation):
        spot = _present(situation)
    targets = on_demand_too(situation, spot, situation.maximum)
    return Decision(targets=targets, reason="the latest safe moment: on-demand fills", ask_again_s=HOUR_S)


def _is_filling(situation: Situation) -> bool:
    return situation.slack_s <= _reserve_s(situation) + situation.restart_s


def _present(situation: Situation) -> dict[tuple[Market, str], int]:
    return kept(situation) | {pool.key: pool.present for pool in situation.pools if pool.present}


def _may_leave_on_demand(situation: Situation) -> bool:
    """True if a way to spot and back still leaves the time for a refusal."""
    if not situation.present(Market.ON_DEMAND):
        return True
    return situation.slack_s >= situation.refusal_s + 2 * situation.restart_s + MARGIN_S


def _reserve_s(situation: Situation) -> float:
    """Return the slack at which on-demand begins: a refusal, a restart, the changeovers of spells to come."""
    trips = situation.time_left_s / CYCLE_S
    return situation.refusal_s + situation.restart_s + min(2 * situation.restart_s * trips, HOUR_S)
