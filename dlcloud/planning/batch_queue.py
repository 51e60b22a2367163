"""What is asked of AWS Batch for an experiment, and what it answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dlcloud.model.cluster import Leftover

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


class CloudBatch(Protocol):
    """AWS Batch in one region."""

    def put(self, request: BatchRequest) -> None:
        """Make what is missing of a cluster's compute environment and queue, and its job definition.

        Raises:
            CloudError: Batch refuses one, or finds it invalid.
        """

    def submit(self, cluster_id: str, name: str, size: int, variables: Mapping[str, str]) -> str:
        """Submit an array of so many trials, of one as a job alone; return the job's id."""

    def find_job(self, cluster_id: str, name: str) -> str:
        """Return the id of a cluster's job of a name; empty if there is none."""

    def describe(self, job_id: str) -> BatchJob:
        """Return how far a job is.

        Raises:
            CloudError: Batch does not know it: it forgets jobs a week after their end.
        """

    def reasons(self, job_id: str, indices: Sequence[int]) -> dict[int, str]:
        """Return why children of an array ended, by their index."""

    def terminate(self, job_id: str) -> None:
        """End a job with its children."""

    def delete(self, cluster_id: str) -> None:
        """End a cluster's jobs and delete all that it has of Batch; no error for what is gone.

        Raises:
            CloudError: Something is left; deleting it again goes on.
        """

    def find(self) -> Iterator[Leftover]:
        """Return what exists of any cluster."""
