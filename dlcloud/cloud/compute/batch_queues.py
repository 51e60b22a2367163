"""AWS Batch: the compute environment, queue, job definition and jobs of one cluster's experiment.

`put` makes them, `submit` queues an array, `describe` and `why_waiting` say how far it is and why nothing
runs, `delete` removes all of it. What launches instances is made last and disabled first. A job that can
never run is cancelled by its queue, and each trial ends by its time-out, so that nothing is paid for without
end if the machine that watches is gone.
"""

import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import retry_codes, retry_launch, translate_errors
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.cloud.compute.requests import tag_specification
from dlcloud.model.account import owner_of
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
SETTLING_PAUSES_S = (1.0, 2.0, 3.0, *[5.0] * 10)
"""Between repetitions of a call on what is still changed, or whose queue is not gone everywhere yet."""
ROOT_DEVICE = "/dev/xvda"
"""Of the ECS-optimized images of Amazon Linux. Source: Amazon ECS developer guide, "ECS-optimized AMIs"."""
LOST_ANSWER_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
NEVER = ("MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE", "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT")
LATER = ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",)
"""Why a job does not leave RUNNABLE: for good, and until there is capacity.

Source: AWS Batch user guide, "Jobs stuck in a RUNNABLE status".
"""
SHORTEST_WAIT_S, LONGEST_WAIT_S = 600, 86_400
"""Source: AWS Batch API reference, JobStateTimeLimitAction."""

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
        disk_gib: The root volume of instances.
        life_s: After which nothing of it is to run.
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
    disk_gib: int
    life_s: float
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
            resources = self._resources(request, self._put_template(name, request))
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
                    jobStateTimeLimitActions=limit_actions(request.life_s),
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
        arguments = {
            "jobName": name,
            "jobQueue": queue,
            "jobDefinition": queue,
            "containerOverrides": {"environment": pairs},
            **array,
        }
        # SubmitJob has no token: what is repeated after a lost answer would run, and be paid for, twice.
        call = self._clients.get_without_retries("batch").submit_job
        try:
            with translate_errors(f"submitting {size} trial(s) to {queue} (batch:SubmitJob)"):
                return str(retry_launch(call, arguments, pause=self._pause)["jobId"])
        except CloudError as error:
            if error.answered:
                raise
            for seconds in LOST_ANSWER_PAUSES_S:
                self._pause(seconds)
                if job_id := self.find_job(cluster_id, name):
                    return job_id
            raise

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

    def why_waiting(self, cluster_id: str, job_id: str) -> str:
        """Return why nothing of a job runs, as Batch says; empty where it says nothing."""
        environment = self._environment(control_role_name(cluster_id)) or {}
        reasons = [environment.get("statusReason") or ""] if environment.get("status") == "INVALID" else []
        (job,) = self._jobs([job_id])
        reasons.append(job.get("statusReason") or "")
        if job.get("arrayProperties"):
            reasons += [child.get("statusReason") or "" for child in self._children(job_id, "RUNNABLE")[:1]]
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    def first_failure(self, job_id: str) -> str:
        """Return why the first child of an array that failed did; empty if none did."""
        failed = self._children(job_id, "FAILED")
        indices = [int(child["jobId"].rpartition(":")[2]) for child in failed if ":" in child["jobId"]]
        return self.reasons(job_id, [min(indices)])[min(indices)] if indices else ""

    def _children(self, job_id: str, status: str) -> list[dict[str, Any]]:
        with translate_errors(f"listing the children of {job_id} (batch:ListJobs)"):
            answer = self._clients.get("batch").list_jobs(arrayJobId=job_id, jobStatus=status)
        return list(answer["jobSummaryList"])

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
                self._change("update_compute_environment", computeEnvironment=name, state="DISABLED")
        self._deregister(name)
        if queue is not None and queue["status"] != "DELETING":
            with translate_errors(f"disabling the job queue {name} (batch:UpdateJobQueue)"):
                self._change("update_job_queue", jobQueue=name, state="DISABLED")
            self._wait(lambda: self._queue(name), name, READY_S, state="DISABLED")
            with translate_errors(f"deleting the job queue {name} (batch:DeleteJobQueue)"):
                self._change("delete_job_queue", jobQueue=name)
        self._wait_gone(lambda: self._queue(name), name)
        if environment is not None and environment["status"] != "DELETING":
            self._wait(lambda: self._environment(name), name, READY_S, state="DISABLED")
            with translate_errors(f"deleting {name} (batch:DeleteComputeEnvironment)"):
                self._change("delete_compute_environment", computeEnvironment=name)
        self._wait_gone(lambda: self._environment(name), name)

    def find(self) -> Iterator[Leftover]:
        """Yield the compute environments of clusters, with their owner."""
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
                    owner=owner_of(environment["tags"]),
                )

    def _change(self, method: str, **arguments: object) -> None:
        """Change or delete something of Batch; wait while an earlier change of it is not settled."""
        call = getattr(self._clients.get("batch"), method)
        retry_codes(call, arguments, CLIENT, pauses_s=SETTLING_PAUSES_S, pause=self._pause)

    def _put_template(self, name: str, request: BatchRequest) -> str:
        """Return the name of the launch template of Batch's instances, made if it is missing.

        It goes with the cluster's other launch templates, by its tag.
        """
        with translate_errors(
            f"creating the launch template {name}-batch (ec2:CreateLaunchTemplate)",
            ignore={"InvalidLaunchTemplateName.AlreadyExistsException"},
        ):
            self._clients.get("ec2").create_launch_template(
                LaunchTemplateName=f"{name}-batch",
                LaunchTemplateData=_template_data(request),
                TagSpecifications=[tag_specification("launch-template", request.tags)],
            )
        return f"{name}-batch"

    def _resources(self, request: BatchRequest, template: str) -> dict[str, Any]:
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
            "launchTemplate": {"launchTemplateName": template, "version": "$Latest"},
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


def limit_actions(life_s: float) -> list[dict[str, Any]]:
    """Return after how long a queue cancels jobs that cannot run, also if no launcher watches.

    A fault of the request is not waited for; capacity is, as long as anything may run.
    """
    patience_s = int(min(max(life_s, SHORTEST_WAIT_S), LONGEST_WAIT_S))
    limits = {**dict.fromkeys(NEVER, SHORTEST_WAIT_S), **dict.fromkeys(LATER, patience_s)}
    return [
        {"reason": reason, "state": "RUNNABLE", "maxTimeSeconds": seconds, "action": "CANCEL"}
        for reason, seconds in limits.items()
    ]


_USER_DATA = """MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="==BOUNDARY=="

--==BOUNDARY==
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/sh
echo ECS_ENGINE_TASK_CLEANUP_WAIT_DURATION=1m >> /etc/ecs/ecs.config

--==BOUNDARY==--
"""
"""Batch merges its own part with it, so that it must have several.

By default the agent keeps the disks of ended containers for three hours.
Sources: AWS Batch user guide, "Amazon EC2 user data in launch templates"; amazon-ecs-agent, README.
"""


def _template_data(request: BatchRequest) -> dict[str, Any]:
    """Return what Batch's own request for instances does not say: their disk and their metadata service.

    Containers reach the metadata service over one hop more than the instance.
    """
    disk = {"VolumeSize": request.disk_gib, "VolumeType": "gp3", "Encrypted": True}
    return {
        "BlockDeviceMappings": [{"DeviceName": ROOT_DEVICE, "Ebs": {**disk, "DeleteOnTermination": True}}],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
            "HttpEndpoint": "enabled",
        },
        "UserData": b64encode(_USER_DATA.encode()).decode(),
        "TagSpecifications": [
            tag_specification(resource, request.tags) for resource in ("volume", "network-interface")
        ],
    }
