"""Policies that others use or have published: on-demand, greedy, a gang of N, Uniform Progress.

They aim at a deadline that is earlier by `refusal_s`, so that a refusal of on-demand instances makes none of
them late either; with a `refusal_s` of 0 they are as published.
"""

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.situation import PoolDecision, Situation, kept, on_demand_too, spot_first

MARGIN_S = 1.0
"""Rounding of times is smaller than this, in seconds."""


def on_demand(situation: Situation) -> PoolDecision:
    """Run as many on-demand instances as are allowed, from the beginning to the end."""
    targets = on_demand_too(situation, kept(situation), situation.maximum)
    return PoolDecision(targets=targets, reason="always on-demand")


def greedy(situation: Situation) -> PoolDecision:
    """Run on spot while there is any, wait while there is none, and end on on-demand when time runs out.

    Source: Wu et al., "Can't Be Late", NSDI 2024, section 3: Thrifty, Exploitation and Safety Net rules.
    """
    room_s = _until_net(situation)
    if room_s <= MARGIN_S:
        return _safety_net(situation)
    targets = spot_first(situation, kept(situation), situation.maximum)
    reason = "spot while it lasts" if targets else "no spot instance to be had: waiting"
    return PoolDecision(targets=targets, reason=reason, ask_again_s=room_s)


def gang(situation: Situation) -> PoolDecision:
    """Run the full number on spot or nothing, and end on on-demand when time runs out."""
    room_s = _until_net(situation)
    if room_s <= MARGIN_S:
        return _safety_net(situation)
    targets = spot_first(situation, kept(situation), situation.maximum)
    if sum(targets.values()) < situation.maximum:
        reason = f"fewer than {situation.maximum} spot instances to be had: waiting"
        return PoolDecision(targets=kept(situation), reason=reason, ask_again_s=room_s)
    return PoolDecision(targets=targets, reason=f"all {situation.maximum} on spot", ask_again_s=room_s)


def uniform_progress(situation: Situation) -> PoolDecision:
    """Keep to the straight line from nothing done at the start to all done at the deadline.

    Spot whenever there is any; on-demand when there is none and the work is behind the line; an on-demand
    instance stays until the work is ahead of the line of two changeovers later (hysteresis), and at the end
    (safety net). For several workers: what spot lacks of the full number is on-demand.

    Source: Wu et al., "Can't Be Late", NSDI 2024, section 5.2.2.
    """
    room_s = _until_net(situation)
    if room_s <= MARGIN_S:
        return _safety_net(situation)
    behind_s = _behind(situation, 2 * situation.restart_s)
    if situation.present(Market.ON_DEMAND) and behind_s > 0:
        running = {pool.key: pool.present for pool in situation.pools if pool.present}
        targets = on_demand_too(situation, running, situation.maximum)
        gain = situation.scaling.speed(situation.maximum) - situation.work_s / _allowed_s(situation)
        again = max(MARGIN_S, behind_s / max(gain, 1e-6))
        return PoolDecision(
            targets=targets, reason="on-demand until the lead is two changeovers", ask_again_s=again
        )
    targets = spot_first(situation, kept(situation), situation.maximum)
    if sum(targets.values()) >= situation.maximum:
        return PoolDecision(targets=targets, reason="spot is obtainable", ask_again_s=room_s)
    ahead = -_behind(situation, 0.0)
    if ahead <= MARGIN_S / 1000:
        targets = on_demand_too(situation, targets, situation.maximum)
        return PoolDecision(targets=targets, reason="behind the line: on-demand", ask_again_s=room_s)
    again = min(room_s, ahead * _allowed_s(situation) / situation.work_s + MARGIN_S)
    return PoolDecision(targets=targets, reason="ahead of the line: waiting for spot", ask_again_s=again)


def _allowed_s(situation: Situation) -> float:
    """Return the seconds from the beginning to the deadline that a policy aims at."""
    return max(MARGIN_S, situation.allowed_s - situation.refusal_s)


def _behind(situation: Situation, later_s: float) -> float:
    """Return how far the work is behind the line of `later_s` from now, in instance-seconds."""
    allowed_s = _allowed_s(situation)
    elapsed_s = allowed_s - (situation.time_left_s - situation.refusal_s)
    expected = (elapsed_s + later_s) * situation.work_s / allowed_s
    return expected - (situation.work_s - situation.work_left_s)


def _until_net(situation: Situation) -> float:
    """Return after how many seconds less than two changeovers are to spare."""
    return situation.slack_s - situation.refusal_s - 2 * situation.restart_s


def _safety_net(situation: Situation) -> PoolDecision:
    """Return the decision to end on on-demand, where less than two changeovers are to spare.

    What makes progress on spot stays until it is lost.
    """
    spot = {pool.key: pool.running for pool in situation.pools if pool.market is Market.SPOT and pool.running}
    targets = on_demand_too(situation, kept(situation) | spot, situation.maximum)
    present = sum([pool.present for pool in situation.pools])
    again = situation.restart_s if present < situation.maximum else float("inf")
    return PoolDecision(targets=targets, reason="no time to spare: on-demand to the end", ask_again_s=again)
