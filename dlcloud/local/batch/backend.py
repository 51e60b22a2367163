"""moto's AWS Batch where it forgives what AWS refuses, or runs jobs in another way. Imports moto."""

from collections import Counter
from datetime import datetime
from typing import Any

from moto.batch import models
from moto.batch.exceptions import ClientException
from moto.batch.models import BatchBackend, ComputeEnvironment
from moto.batch.utils import JobStatus
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends

from dlcloud.local.batch.compute import JobScheduler
from dlcloud.local.iam.access import PARTITION

SERVICE_ROLE = "AWSServiceRoleForBatch"
"""Batch's own role, which it takes where a compute environment names none.

Source: AWS Batch user guide, "Using service-linked roles for AWS Batch".
"""
ENDED = ("SUCCEEDED", "FAILED")


class LocalBatchBackend(BatchBackend):
    """AWS Batch of one region."""

    # moto looks for a backend's paths beside the module that its class was made in.
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
        """Make a compute environment; without a role of its own, with Batch's."""
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

    def start(self) -> None:
        """Wait for an instance."""
        self.status = "RUNNABLE"
        self.scheduler.add(self)

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
        """End it: at once, or by its container's end."""
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
        return super().describe_short()

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
    def image(self) -> str:
        return str(self._get_container_property("image", ""))

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
