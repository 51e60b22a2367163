"""The scheduler of the local AWS Batch."""

import threading
from types import SimpleNamespace

import pytest

from dlcloud.local import batch
from dlcloud.local.batch import JobScheduler

RESOURCES = {
    "instanceTypes": ["c7i.large"],
    "maxvCpus": 2,
    "subnets": ["subnet-1"],
    "securityGroupIds": [],
    "instanceRole": "role",
    "type": "EC2",
}


class Job:
    """A job that notes its end."""

    vcpus = 1

    def __init__(self):
        arn = "arn:aws:batch:us-east-1:123456789012:compute-environment/one"
        environment = SimpleNamespace(name="one", arn=arn, state="ENABLED", compute_resources=RESOURCES)
        self.job_queue = SimpleNamespace(state="ENABLED", environments=[environment])
        self.reason = None

    def wait(self, reason):
        self.waits_for = reason

    def end(self, _exit_status, reason):
        self.reason = reason


@pytest.mark.timeout(60)
def test_a_job_can_be_stopped_while_there_is_no_capacity(monkeypatch):
    """The scheduler slept with its lock held: calls of AWS Batch waited for it."""
    monkeypatch.setattr(batch, "NO_CAPACITY_S", 3600.0)
    asked = threading.Event()

    def refuse(**_):
        asked.set()
        raise RuntimeError("InsufficientInstanceCapacity")

    scheduler = JobScheduler(None, lambda _: SimpleNamespace(run_instances=refuse), {"c7i.large": 2})
    job = Job()
    scheduler.add(job)
    assert asked.wait(30)
    scheduler.stop(job)
    assert job.reason == "terminated"
