"""Spot policies: how many instances of which market and pool to run now, and why.

Pure functions of a `Situation`; never ask a cloud, a clock or a file. `dlcloud simulate` and the elastic
controller call the same functions:

    from dlcloud.scheduling.policies import POLICIES
    decision = POLICIES["elastic"](situation)

The caller builds a `Situation` at each event (an instance joined, was lost or refused; capacity appeared) and
no later than `decision.ask_again_s` seconds after the last decision, and makes the instances of each pool as
many as `decision.targets` says. An instance that another one replaces leaves once the other takes part.
"""

from collections.abc import Mapping

from dlcloud.scheduling.policies.elastic import elastic
from dlcloud.scheduling.policies.published import gang, greedy, on_demand, uniform_progress
from dlcloud.scheduling.policies.situation import Policy

POLICIES: Mapping[str, Policy] = {
    "on-demand": on_demand,
    "greedy": greedy,
    "gang": gang,
    "uniform-progress": uniform_progress,
    "elastic": elastic,
}
"""The policies by name, in the order of the tables."""
