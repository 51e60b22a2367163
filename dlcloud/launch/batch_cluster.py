"""AWS Batch for the trials of one cluster: each step is recorded before it may cost money."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dlcloud.cloud.compute.batch_queues import BatchRequest
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.managed import mark_ended
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.events import stage
from dlcloud.model.instance import InstanceType
from dlcloud.model.money import price_of
from dlcloud.planning.plan import Plan
from dlcloud.planning.policies import join_policies, results_policy
from dlcloud.planning.storage import results_uri
from dlcloud.recipe.recipe import Recipe
from dlcloud.store.clusters import BATCH, BATCH_JOB, STORAGE_ROLE

SMALLEST_DISK_GIB = 30
"""The root volume of Batch's images. Source: Amazon ECS developer guide, "ECS-optimized AMIs"."""

AGENT_ACTIONS = (
    *("ecs:DeregisterContainerInstance", "ecs:DiscoverPollEndpoint", "ecs:Poll"),
    *("ecs:RegisterContainerInstance", "ecs:StartTelemetrySession", "ecs:Submit*"),
    *("ecs:UpdateContainerInstancesState", "ec2:DescribeTags", "logs:CreateLogStream", "logs:PutLogEvents"),
    *("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetAuthorizationToken"),
    *("ecr:GetDownloadUrlForLayer", "ecs:ListTagsForResource", "ecs:TagResource"),
)
"""Source: AWS managed policy AmazonEC2ContainerServiceforEC2Role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCluster:
    """What a cluster has of AWS Batch.

    Args:
        launcher: Of the cluster.
        recipe: With an experiment and a bucket for its results.
    """

    launcher: Launcher
    recipe: Recipe

    def prepare(
        self, plan: Plan, definition: Mapping[str, Any], hardware: Mapping[str, InstanceType]
    ) -> None:
        """Make what is missing: role, security group, compute environment, queue and job definition.

        Raises:
            CloudError: One is refused. What was made carries the cluster's tag.
        """
        launcher = self.launcher
        clusters, cluster, clock = launcher.store.clusters, launcher.cluster, launcher.clock
        types = [name for name in self.recipe.instances.types if name in hardware]
        with stage(launcher.emit, clock, "making the compute environment and the queue of AWS Batch"):
            intent_id = clusters.begin_intent(cluster.cluster_id, BATCH, "", clock.now())
            disk_gib = max(SMALLEST_DISK_GIB, self.recipe.instances.disk_gib)
            launcher.set_disk(disk_gib)
            group = launcher.create_group(plan.machine.network.vpc_id)
            request = BatchRequest(
                cluster_id=cluster.cluster_id,
                types=types,
                most_vcpus=plan.max_count * max(hardware[name].vcpus for name in types),
                is_spot="spot" in self.recipe.instances.market,
                subnets=sorted(plan.machine.network.subnets.values()),
                groups=[group, *plan.machine.network.groups],
                profile=self._put_role(),
                definition=definition,
                disk_gib=disk_gib,
                life_s=plan.life_minutes * 60,
                tags=cluster.tags,
            )
            launcher.cloud.batch.put(request)
            clusters.end_intent(intent_id, "made", clock.now())
            clusters.set_state(cluster.cluster_id, ClusterState.RUNNING)

    def submit(self, size: int, variables: Callable[[str], Mapping[str, str]]) -> tuple[str, str]:
        """Submit an array of trials; return its name and its id.

        Args:
            size: How many.
            variables: Stores what the trials of a job of this name need; returns the variables of containers.
        """
        launcher, cluster_id = self.launcher, self.launcher.cluster_id
        clusters, clock = launcher.store.clusters, launcher.clock
        name = f"trials-{len(clusters.intents(cluster_id, BATCH_JOB)) + 1}"
        with stage(launcher.emit, clock, f"submitting {size} trial(s) to AWS Batch"):
            given = variables(name)
            intent_id = clusters.begin_intent(cluster_id, BATCH_JOB, name, clock.now())
            job_id = launcher.cloud.batch.submit(cluster_id, name, size, given)
            clusters.end_intent(intent_id, job_id, clock.now())
        return name, job_id

    def last_job(self) -> tuple[str, str] | None:
        """Return name and id of the job that was submitted last; None without any.

        Of a submission without an answer, Batch is asked for the job; where it knows none, there is none.
        """
        clusters, clock = self.launcher.store.clusters, self.launcher.clock
        for intent in reversed(clusters.intents(self.launcher.cluster_id, BATCH_JOB)):
            job_id = intent.outcome
            if job_id is None:
                job_id = self.launcher.cloud.batch.find_job(self.launcher.cluster_id, intent.detail)
                clusters.end_intent(intent.intent_id, job_id, clock.now())
            if job_id:
                return intent.detail, job_id
        return None

    def _put_role(self) -> str:
        """Make the role of instances and containers; return its name."""
        launcher, cluster = self.launcher, self.launcher.cluster
        clusters, clock = launcher.store.clusters, launcher.clock
        intent_id = clusters.begin_intent(cluster.cluster_id, STORAGE_ROLE, "", clock.now())
        policy = batch_policy(results_uri(self.recipe, cluster.cluster_id))
        profile = launcher.cloud.roles.put_batch(
            cluster.cluster_id, policy, cluster.tags, boundary=self.recipe.permissions_boundary
        )
        clusters.end_intent(intent_id, profile, clock.now())
        return profile


def note_members(launcher: Launcher) -> None:
    """Store the instances that Batch has launched, with their prices, and those that it has ended."""
    clusters, now = launcher.store.clusters, launcher.clock.now()
    listed = launcher.describe_instances()
    stored = {member.instance.instance_id: member for member in clusters.members(launcher.cluster_id)}
    new = [instance for name, instance in listed.items() if name not in stored and instance.alive]
    types = sorted({instance.instance_type for instance in new})
    prices = launcher.cloud.prices.find(types, sorted({one.market for one in new})) if new else []
    members = []
    for instance in new:
        price = price_of(instance, prices)
        members.append(
            Member(
                instance=instance,
                hourly_usd=None if price is None else price.hourly_usd,
                price_source="" if price is None else price.source,
                price_as_of=None if price is None else price.as_of,
            )
        )
    gone = [
        member
        for name, member in stored.items()
        if member.ended_at is None and (name not in listed or not listed[name].alive)
    ]
    clusters.put_members(launcher.cluster_id, [*members, *mark_ended(gone, listed, now)])


def batch_policy(uri: str) -> str:
    """Return the policy of Batch's instances and their containers; its ARNs are of the partition `aws`."""
    agent = {"Effect": "Allow", "Action": list(AGENT_ACTIONS), "Resource": "*"}
    return join_policies([results_policy(uri), json.dumps({"Statement": [agent]})])
