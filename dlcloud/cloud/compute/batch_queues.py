"""AWS Batch: the compute environment, queue, job definition and jobs of one cluster's experiment."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import retry_codes, translate_errors
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.model.cluster import CLUSTER_TAG, Leftover, control_role_name
from dlcloud.model.errors import CloudError

PAUSE_S = 1.0
READY_S = 300.0
GONE_S = 900.0
"""A compute environment is gone once its instances are."""
NEW_ROLE_TRIES = 30
CLIENT = {"ClientException"}
DESCRIBED_AT_ONCE = 100
"""Source: AWS Batch API reference, DescribeJobs."""
ENDED = ("SUCCEEDED", "FAILED")

BATCH_KIND = "batch-compute-environment"
"""The kind of such a leftover: a queue is never without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A compute environment, its queue, and the job definition of the trials.

    Attributes:
        cluster_id: Names all of them.
        types: Instance types.
        most_vcpus: Of all instances together.
        is_spot: Instances are spot.
        subnets: Their ids; empty for the default ones.
        groups: Ids of security groups.
        profile: The name of the instance profile, and of its role, which the containers have, too.
        definition: The input of RegisterJobDefinition, without its name and the role.
        tags: Of all of them, and of the instances.
    """

    cluster_id: str
    types: Sequence[str]
    most_vcpus: int
    is_spot: bool
    subnets: Sequence[str]
    groups: Sequence[str]
    profile: str
    definition: Mapping[str, Any]
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A job, or an array of jobs: how many are in each of Batch's states."""

    counts: Mapping[str, int]
    is_over: bool
    reason: str

    @property
    def running(self) -> int:
        return self.counts.get("RUNNING", 0) + self.counts.get("STARTING", 0)


class AwsBatch:
    """AWS Batch in one region.

    Args:
        clients: The region's.
        pause: Waits some seconds.
    """

    def __init__(self, *, clients: Clients, pause: Callable[[float], None]) -> None:
        self._clients = clients
        self._pause = pause

    def put(self, request: BatchRequest) -> None:
        """Make what is missing of a cluster's compute environment and queue, and its job definition.

        Raises:
            CloudError: Batch refuses one, or finds it invalid.
        """
        name, tags = control_role_name(request.cluster_id), dict(request.tags)
        if self._environment(name) is None:
            resources = self._resources(request)
            with translate_errors(
                f"creating the compute environment {name} (batch:CreateComputeEnvironment)"
            ):
                # The role was made a moment ago.
                retry_codes(
                    self._clients.get("batch").create_compute_environment,
                    {
                        "computeEnvironmentName": name,
                        "type": "MANAGED",
                        "state": "ENABLED",
                        "computeResources": resources,
                        "tags": tags,
                    },
                    CLIENT,
                    pauses_s=[PAUSE_S] * NEW_ROLE_TRIES,
                    pause=self._pause,
                )
        self._wait(lambda: self._environment(name), name, READY_S)
        if self._queue(name) is None:
            with translate_errors(f"creating the job queue {name} (batch:CreateJobQueue)"):
                self._clients.get("batch").create_job_queue(
                    jobQueueName=name,
                    state="ENABLED",
                    priority=1,
                    computeEnvironmentOrder=[{"order": 1, "computeEnvironment": name}],
                    tags=tags,
                )
        self._wait(lambda: self._queue(name), name, READY_S)
        with translate_errors(f"registering the job definition {name} (batch:RegisterJobDefinition)"):
            role = f"arn:{partition_of(self._clients.region).name}:iam::{self._account()}:role"
            container = dict(request.definition["containerProperties"])
            container["jobRoleArn"] = f"{role}/dlcloud/{self._clients.region}/{request.profile}"
            definition = {**request.definition, "containerProperties": container}
            self._clients.get("batch").register_job_definition(
                jobDefinitionName=name, tags=tags, propagateTags=True, **definition
            )

    def submit(self, cluster_id: str, name: str, size: int, variables: Mapping[str, str]) -> str:
        """Submit `size` trials as an array, one trial as a plain job; return the id of the job."""
        queue = control_role_name(cluster_id)
        array = {"arrayProperties": {"size": size}} if size > 1 else {}
        pairs = [{"name": key, "value": value} for key, value in variables.items()]
        with translate_errors(f"submitting {size} trial(s) to {queue} (batch:SubmitJob)"):
            answer = self._clients.get("batch").submit_job(
                jobName=name,
                jobQueue=queue,
                jobDefinition=queue,
                containerOverrides={"environment": pairs},
                **array,
            )
        return str(answer["jobId"])

    def find_job(self, cluster_id: str, name: str) -> str:
        """Return the id of the job of a cluster that has a name; empty if there is none."""
        queue = control_role_name(cluster_id)
        if self._queue(queue) is None:
            return ""
        with translate_errors(f"looking for jobs in {queue} (batch:ListJobs)"):
            pages = (
                self._clients.get("batch")
                .get_paginator("list_jobs")
                .paginate(jobQueue=queue, filters=[{"name": "JOB_NAME", "values": [name]}])
            )
            ids = [job["jobId"] for page in pages for job in page["jobSummaryList"]]
        # An array's children follow it, as ID:INDEX.
        return next((job_id for job_id in ids if ":" not in job_id), "")

    def describe(self, job_id: str) -> BatchJob:
        """Return how far a job is.

        Raises:
            CloudError: Batch does not know the job: it forgets jobs a week after their end.
        """
        (job,) = self._jobs([job_id])
        counts = job.get("arrayProperties", {}).get("statusSummary") or {job["status"]: 1}
        return BatchJob(
            counts={status: int(count) for status, count in counts.items() if count},
            is_over=job["status"] in ENDED,
            reason=job.get("statusReason", ""),
        )

    def reasons(self, job_id: str, indices: Sequence[int]) -> dict[int, str]:
        """Return why children of an array ended, by their index."""
        is_array = bool(self._jobs([job_id])[0].get("arrayProperties"))
        ids = {f"{job_id}:{index}" if is_array else job_id: index for index in indices}
        names, reasons = list(ids), dict[int, str]()
        for start in range(0, len(names), DESCRIBED_AT_ONCE):
            for job in self._jobs(names[start : start + DESCRIBED_AT_ONCE]):
                status = job.get("container", {}).get("exitCode")
                ending = f"exit status {status}" if status is not None else job["status"].lower()
                reasons[ids[job["jobId"]]] = f"{job.get('statusReason') or 'no reason'} ({ending})"
        return reasons

    def terminate(self, job_id: str) -> None:
        """Terminate a job with its children."""
        with translate_errors(f"ending the job {job_id} (batch:TerminateJob)"):
            self._clients.get("batch").terminate_job(jobId=job_id, reason="dlcloud ends it")

    def delete(self, cluster_id: str) -> None:
        """Terminate a cluster's jobs and delete all that it has of Batch; no error for what is gone.

        What launches instances is disabled first.

        Raises:
            CloudError: Something is left; deleting again continues.
        """
        name = control_role_name(cluster_id)
        environment, queue = self._environment(name), self._queue(name)
        if environment is not None and environment["status"] != "DELETING":
            with translate_errors(f"disabling {name} (batch:UpdateComputeEnvironment)"):
                self._clients.get("batch").update_compute_environment(
                    computeEnvironment=name, state="DISABLED"
                )
        self._deregister(name)
        if queue is not None and queue["status"] != "DELETING":
            with translate_errors(f"disabling the job queue {name} (batch:UpdateJobQueue)"):
                self._clients.get("batch").update_job_queue(jobQueue=name, state="DISABLED")
            self._wait(lambda: self._queue(name), name, READY_S, state="DISABLED")
            with translate_errors(f"deleting the job queue {name} (batch:DeleteJobQueue)"):
                self._clients.get("batch").delete_job_queue(jobQueue=name)
        self._wait_gone(lambda: self._queue(name), name)
        if environment is not None and environment["status"] != "DELETING":
            self._wait(lambda: self._environment(name), name, READY_S, state="DISABLED")
            with translate_errors(f"deleting {name} (batch:DeleteComputeEnvironment)"):
                self._clients.get("batch").delete_compute_environment(computeEnvironment=name)
        self._wait_gone(lambda: self._environment(name), name)

    def find(self) -> Iterator[Leftover]:
        """Yield the compute environments of clusters."""
        with translate_errors("listing compute environments (batch:DescribeComputeEnvironments)"):
            environments = self._clients.pages(
                "batch", "describe_compute_environments", "computeEnvironments"
            )
        for environment in environments:
            if cluster_id := environment.get("tags", {}).get(CLUSTER_TAG):
                yield Leftover(
                    kind=BATCH_KIND,
                    resource_id=environment["computeEnvironmentName"],
                    cluster_id=cluster_id,
                    name="",
                    region=self._clients.region,
                )

    def _resources(self, request: BatchRequest) -> dict[str, Any]:
        spot = request.is_spot
        return {
            "type": "SPOT" if spot else "EC2",
            "allocationStrategy": "SPOT_PRICE_CAPACITY_OPTIMIZED" if spot else "BEST_FIT_PROGRESSIVE",
            "minvCpus": 0,
            "maxvCpus": request.most_vcpus,
            "instanceTypes": list(request.types),
            "subnets": list(request.subnets or self._default_subnets()),
            "securityGroupIds": list(request.groups),
            "instanceRole": request.profile,
            "tags": dict(request.tags),
        }

    def _default_subnets(self) -> list[str]:
        with translate_errors("looking up the default subnets (ec2:DescribeSubnets)"):
            answer = self._clients.get("ec2").describe_subnets(
                Filters=[{"Name": "default-for-az", "Values": ["true"]}]
            )
        return sorted(subnet["SubnetId"] for subnet in answer["Subnets"])

    def _account(self) -> str:
        return str(self._clients.get("sts").get_caller_identity()["Account"])

    def _deregister(self, name: str) -> None:
        with translate_errors(f"looking for the job definition {name} (batch:DescribeJobDefinitions)"):
            pages = (
                self._clients.get("batch")
                .get_paginator("describe_job_definitions")
                .paginate(jobDefinitionName=name, status="ACTIVE")
            )
            arns = [item["jobDefinitionArn"] for page in pages for item in page["jobDefinitions"]]
        for arn in arns:
            with translate_errors(f"deregistering {name} (batch:DeregisterJobDefinition)", ignore=CLIENT):
                self._clients.get("batch").deregister_job_definition(jobDefinition=arn)

    def _environment(self, name: str) -> dict[str, Any] | None:
        with translate_errors(f"looking at {name} (batch:DescribeComputeEnvironments)"):
            answer = self._clients.get("batch").describe_compute_environments(computeEnvironments=[name])
        return next((item for item in answer["computeEnvironments"] if item["status"] != "DELETED"), None)

    def _queue(self, name: str) -> dict[str, Any] | None:
        with translate_errors(f"looking at the job queue {name} (batch:DescribeJobQueues)"):
            answer = self._clients.get("batch").describe_job_queues(jobQueues=[name])
        return next((item for item in answer["jobQueues"] if item["status"] != "DELETED"), None)

    def _jobs(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        with translate_errors(f"asking for the state of {ids[0]} (batch:DescribeJobs)"):
            jobs = self._clients.get("batch").describe_jobs(jobs=list(ids))["jobs"]
        if len(jobs) != len(ids):
            raise CloudError(f"AWS Batch does not know {len(ids) - len(jobs)} job(s), as {ids[0]}")
        return list(jobs)

    def _wait(
        self, look: Callable[[], dict[str, Any] | None], name: str, seconds: float, *, state: str = ""
    ) -> None:
        """Wait until something can be used, or has a state.

        Raises:
            CloudError: AWS Batch says that it is invalid, or it takes too long.
        """
        ends_at = time.monotonic() + seconds
        while True:
            item = look()
            if item is not None and item["status"] == "INVALID" and not state:
                raise CloudError(f"{name} is invalid: {item.get('statusReason', 'AWS Batch says no more')}")
            is_settled = item is not None and item["status"] in {"VALID", "INVALID"}
            if item is None or (is_settled and state in {"", item["state"]}):
                return
            self._pause_until(ends_at, f"{name} is still {item['status']}")

    def _wait_gone(self, look: Callable[[], dict[str, Any] | None], name: str) -> None:
        ends_at = time.monotonic() + GONE_S
        while (item := look()) is not None:
            if item["status"] == "INVALID":
                raise CloudError(f"{name} cannot be deleted: {item.get('statusReason', '')}")
            self._pause_until(ends_at, f"{name} is not deleted yet")

    def _pause_until(self, ends_at: float, message: str) -> None:
        if time.monotonic() >= ends_at:
            raise CloudError(message, "run it again")
        self._pause(PAUSE_S)
