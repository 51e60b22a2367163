"""AWS Batch: moto's queues and job definitions, whose jobs run on instances of the local EC2.

moto answers the API; `JobScheduler` launches instances for the jobs that wait, runs their commands, and
terminates the instances when no job needs them.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moto.batch import models
from moto.batch.exceptions import ClientException
from moto.batch.models import BatchBackend, ComputeEnvironment
from moto.batch.utils import JobStatus
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends

from dlcloud.local.ec2.instances import SiteInstances
from dlcloud.local.iam.access import PARTITION
from dlcloud.local.instance.machine_images import IMAGES
from dlcloud.model.instance import InstanceState

IDLE_S = 5.0
"""After which an instance without a job is ended; on AWS some minutes."""
POLL_S = 0.1
BOOT_S = 60.0
NO_CAPACITY_S = 1.0
LOST = "Host EC2 (instance {}) terminated."
"""Source: AWS Batch user guide, "Automated job retries"."""

NO_CAPACITY = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested for instance "
    "type [{}]"
)
TOO_LARGE = (
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The instance types of the compute environment cannot meet "
    "the requirements of the job"
)
"""Why a job at the head of a queue stays RUNNABLE.

Source: AWS Batch user guide, "Jobs stuck in a RUNNABLE status"; the second text is [from memory].
"""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Host:
    """An instance of a compute environment."""

    instance_id: str
    environment: Any
    vcpus: int
    used: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class JobScheduler:
    """Runs jobs first come, first served, each on an instance that has enough vCPUs free.

    Args:
        instances: Of the site.
        client: Returns a client of EC2 in a region, as the owner of the account.
        vcpus: Of each instance type.
    """

    def __init__(
        self,
        instances: SiteInstances,
        client: Callable[[str], Any],
        vcpus: Mapping[str, int],
    ) -> None:
        self._instances = instances
        self._client = client
        self._vcpus = vcpus
        self._waiting: deque[LocalJob] = deque()
        self._hosts: list[Host] = []
        self._on_host: dict[int, Host] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._lacking = ""

    def add(self, job: "LocalJob") -> None:
        """Queue a job."""
        with self._changed:
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True, name="batch scheduler")
                self._thread.start()
            self._changed.notify_all()

    def stop(self, job: "LocalJob") -> None:
        """End a job: its container, or immediately where it waits."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job.end(None, "terminated")
            elif (host := self._on_host.get(id(job))) is not None:
                self._instances.end_service(host.instance_id, _program_name(job))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(POLL_S if self._hosts or self._waiting else None)
                try:
                    self._end_idle()
                    self._start_waiting()
                except Exception:
                    log.exception("a job could not be scheduled")
                    self._changed.wait(NO_CAPACITY_S)

    def _start_waiting(self) -> None:
        """Start every job that has room, the oldest first."""
        for job in [*self._waiting]:
            environment = job.job_queue.environments[0]
            if "DISABLED" in {environment.state, job.job_queue.state}:
                continue
            self._lacking = ""
            host = self._host_for(environment, job.vcpus)
            job.wait(self._lacking)
            if host is None:
                return
            self._waiting.remove(job)
            host.used += job.vcpus
            self._on_host[id(job)] = host
            job.status = "STARTING"
            threading.Thread(target=self._run, args=(job, host), daemon=True).start()

    def _host_for(self, environment: Any, vcpus: int) -> Host | None:  # noqa: ANN401  moto's object
        """Return an instance with room, launched if the environment may have one more; None if not."""
        own = [host for host in self._hosts if host.environment is environment]
        for host in own:
            if host.vcpus - host.used >= vcpus:
                return host
        resources = environment.compute_resources
        name = next((one for one in resources["instanceTypes"] if self._vcpus.get(one, 0) >= vcpus), "")
        if not name:
            self._lacking = TOO_LARGE
        if not name or sum(host.vcpus for host in own) + self._vcpus[name] > int(resources["maxvCpus"]):
            return None
        instance_id = self._launch(environment, name, first=len(own))
        if not instance_id:
            return None
        self._hosts.append(Host(instance_id=instance_id, environment=environment, vcpus=self._vcpus[name]))
        return self._hosts[-1]

    def _launch(self, environment: Any, name: str, *, first: int) -> str:  # noqa: ANN401  moto's object
        """Launch an instance in one of the subnets; return its id, or nothing where none has room."""
        subnets = environment.compute_resources["subnets"]
        for place in range(len(subnets)):
            subnet = subnets[(first + place) % len(subnets)]
            try:
                return self._run_instance(environment.arn.split(":")[3], _launch(environment, name, subnet))
            except Exception as error:  # noqa: BLE001 - whatever EC2 says, the job waits
                log.warning("%s gets no instance: %s", environment.name, error)
        self._lacking = NO_CAPACITY.format(name)
        self._changed.wait(NO_CAPACITY_S)  # others may stop jobs meanwhile
        return ""

    def _run_instance(self, region: str, arguments: Mapping[str, Any]) -> str:
        return str(self._client(region).run_instances(**arguments)["Instances"][0]["InstanceId"])

    def _end_idle(self) -> None:
        """End instances without a job: after a while, and immediately those of a disabled environment."""
        now = time.monotonic()
        for host in [*self._hosts]:
            patience_s = IDLE_S if host.environment.state == "ENABLED" else 0.0
            if not host.used and now - host.idle_since >= patience_s:
                self._hosts.remove(host)
                client = self._client(host.environment.arn.split(":")[3])
                client.terminate_instances(InstanceIds=[host.instance_id])

    def _run(self, job: "LocalJob", host: Host) -> None:
        """Run a job on its instance; start it again where the instance was lost, as its definition says."""
        status, reason = None, LOST.format(host.instance_id)
        try:
            if self._boots(host) and not job.stop:
                job.begin()
                limit_s = job._get_attempt_duration()  # noqa: SLF001  moto's name
                ended = self._instances.run_service(
                    host.instance_id,
                    _program_name(job),
                    job.command,
                    job.described_variables(),
                    limit_s=limit_s,
                )
                if self._lives(host):
                    status, reason = ended, "Essential container in task exited"
        except (KeyError, OSError) as error:
            log.warning("%s: %s", host.instance_id, error)
        finally:
            self._end(job, host, status, reason)

    def _end(self, job: "LocalJob", host: Host, status: int | None, reason: str) -> None:
        with self._changed:
            self._on_host.pop(id(job), None)
            host.used -= job.vcpus
            host.idle_since = time.monotonic()
            if not self._lives(host) and host in self._hosts:
                self._hosts.remove(host)
            if status is None and not job.stop and len(job.attempts) < job.most_attempts:
                job.status = "RUNNABLE"
                self._waiting.appendleft(job)
            else:
                job.end(status, "terminated" if job.stop else reason)
            self._changed.notify_all()

    def _boots(self, host: Host) -> bool:
        """Wait until an instance runs; False if it never does."""
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            state = self._instances.state(host.instance_id)
            if state is not InstanceState.PENDING:
                return state is InstanceState.RUNNING
            time.sleep(POLL_S / 2)
        return False

    def _lives(self, host: Host) -> bool:
        return self._instances.state(host.instance_id) is InstanceState.RUNNING


def _program_name(job: "LocalJob") -> str:
    return f"batch-{id(job):x}"


def _launch(environment: Any, instance_type: str, subnet: str) -> dict[str, Any]:  # noqa: ANN401  moto's object
    """Return the arguments of RunInstances for a compute environment."""
    resources = environment.compute_resources
    tags = [{"Key": key, "Value": value} for key, value in resources.get("tags", {}).items()]
    profile = resources["instanceRole"]
    more: dict[str, Any] = {}
    if resources["type"] == "SPOT":
        more["InstanceMarketOptions"] = {"MarketType": "spot"}
    if template := resources.get("launchTemplate"):
        more["LaunchTemplate"] = {
            "LaunchTemplateName": template["launchTemplateName"],
            "Version": template["version"],
        }
    return {
        "UserData": "#!/bin/sh\n",  # Batch's own, which registers the instance
        "ImageId": IMAGES[0].image_id,
        "InstanceType": instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": subnet,
        "SecurityGroupIds": resources["securityGroupIds"],
        "IamInstanceProfile": {"Arn" if profile.startswith("arn:") else "Name": profile},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume") if tags
        ],
        **more,
    }


SERVICE_ROLE = "AWSServiceRoleForBatch"
"""Batch's own role, which it takes where a compute environment names none.

Source: AWS Batch user guide, "Using service-linked roles for AWS Batch".
"""
ENDED = ("SUCCEEDED", "FAILED")


class LocalBatchBackend(BatchBackend):
    """AWS Batch of one region."""

    # moto looks for a backend's paths next to the module that its class was made in.
    __module__ = BatchBackend.__module__

    def create_compute_environment(
        self,
        compute_environment_name: str,
        _type: str,
        state: str,
        compute_resources: dict[str, Any],
        service_role: str,
        tags: dict[str, str] | None = None,
    ) -> ComputeEnvironment:
        """Make a compute environment; without its own role, with Batch's."""
        role = service_role or _service_role()
        return super().create_compute_environment(
            compute_environment_name, _type, state or "ENABLED", compute_resources, role, tags
        )

    def delete_compute_environment(self, compute_environment_name: str) -> None:
        """Delete a compute environment that is disabled and in no queue.

        Source: AWS Batch API reference, DeleteComputeEnvironment.
        """
        environment = self.get_compute_environment(compute_environment_name)
        if environment is not None:
            if environment.state != "DISABLED":
                raise ClientException("Cannot delete, resource is not in DISABLED state")
            if any(environment in queue.environments for queue in self._job_queues.values()):
                raise ClientException("Cannot delete, found existing JobQueue relationship")
        super().delete_compute_environment(compute_environment_name)

    def delete_job_queue(self, queue_name: str) -> None:
        """Delete a queue that is disabled; its jobs end. Source: AWS Batch API reference, DeleteJobQueue."""
        queue = self.get_job_queue(queue_name)
        if queue is not None:
            if queue.state != "DISABLED":
                raise ClientException("Cannot delete, job queue is not in DISABLED state")
            for job in queue.jobs:
                job.terminate("the job queue is deleted")
        super().delete_job_queue(queue_name)

    def terminate_job(self, job_id: str, reason: str) -> None:
        """End a job; of an array, all of its children. Source: AWS Batch API reference, TerminateJob."""
        super().terminate_job(job_id, reason)
        job = self.get_job_by_id(job_id)
        for child in (job._child_jobs if job is not None else None) or ():  # noqa: SLF001  moto has no other way
            child.terminate(reason)


def bind_batch(scheduler: JobScheduler) -> None:
    """Let moto run the jobs of all regions by a scheduler, in place of Docker."""
    models.batch_backends.backend = LocalBatchBackend
    models.Job = type("BoundJob", (LocalJob,), {"scheduler": scheduler})  # type: ignore[assignment,misc]  # it is one


class LocalJob(models.Job):
    """A job, or the parent of an array, that a scheduler runs."""

    scheduler: JobScheduler
    waits_for: str = ""

    def start(self) -> None:
        """Wait for an instance."""
        self.status = "RUNNABLE"
        self.scheduler.add(self)

    def wait(self, reason: str) -> None:
        """Take note of why it waits."""
        self.waits_for = reason

    def begin(self) -> None:
        """Take note that its container runs."""
        self.job_started_at = datetime.now()  # noqa: DTZ005  moto compares it with its own
        self.status = "RUNNING"
        self._start_attempt()

    def end(self, exit_status: int | None, reason: str) -> None:
        """Take note that its container has ended, or will not begin."""
        self.exit_code = exit_status
        self.job_stopped_reason = reason
        self._mark_stopped(success=exit_status == 0)

    def terminate(self, reason: str) -> None:
        """End it: immediately, or by its container's end."""
        super().terminate(reason)
        if self._child_jobs is None:
            self.scheduler.stop(self)

    def describe_short(self) -> dict[str, Any]:
        """Return it as listed; an array has ended when its children have.

        Source: AWS Batch user guide, "Array jobs".
        """
        if self._child_jobs:
            counts = Counter(JobStatus(child.status).value for child in self._child_jobs)
            if all(status in ENDED for status in counts):
                self.status = "FAILED" if counts["FAILED"] else "SUCCEEDED"
            else:
                self.status = "PENDING"
        short = super().describe_short()
        if self.status == "RUNNABLE" and self.waits_for:
            short["statusReason"] = self.waits_for
        return short

    def described_variables(self) -> dict[str, str]:
        """Return the variables of its container: the definition's, and Batch's own.

        Source: AWS Batch user guide, "AWS Batch job environment variables".
        """
        pairs = self._get_container_property("environment", [])
        own = {
            "AWS_BATCH_JOB_ID": self.job_id,
            "AWS_BATCH_JOB_ATTEMPT": str(len(self.attempts)),
            "AWS_BATCH_JQ_NAME": self.job_queue.name,
            "AWS_BATCH_CE_NAME": self.job_queue.environments[0].name,
        }
        index = self.array_properties.get("index")
        own |= {} if index is None else {"AWS_BATCH_JOB_ARRAY_INDEX": str(index)}
        return {pair["name"]: pair["value"] for pair in pairs} | own

    @property
    def command(self) -> list[str]:
        return self._add_parameters_to_command(self._get_container_property("command", []))

    @property
    def vcpus(self) -> int:
        return int(self._get_container_property("vcpus", 1))

    @property
    def most_attempts(self) -> int:
        """How often it is started where its instance is lost."""
        return int((self.job_definition.retry_strategy or {}).get("attempts", 1))


def _service_role() -> str:
    backend = iam_backends[DEFAULT_ACCOUNT_ID][PARTITION]
    role = next((role for role in list(backend.roles.values()) if role.name == SERVICE_ROLE), None)
    if role is None:
        path = "/aws-service-role/batch.amazonaws.com/"
        role = backend.create_role(SERVICE_ROLE, "{}", path, None, "", [], "3600")
    return str(role.arn)
