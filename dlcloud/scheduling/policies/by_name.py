"""The policies by name, in the order of the tables."""

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
