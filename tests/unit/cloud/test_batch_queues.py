"""AWS Batch: what is asked of it, and what is made of its answers."""

import base64
from email import message_from_bytes

import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import ANY

from dlcloud.cloud.compute.batch_queues import AwsBatch, BatchRequest, limit_actions
from dlcloud.model.errors import CloudError
from tests.fakes.clock import FakeClock

NAME = "dlcloud-c0ffee"
ENVIRONMENT = {
    "computeEnvironmentName": NAME,
    "computeEnvironmentArn": "arn:ce",
    "state": "ENABLED",
    "status": "VALID",
    "statusReason": "ComputeEnvironment Healthy",
}
JOB = {"jobId": "job-1", "jobName": "trials-1", "jobQueue": NAME, "jobDefinition": NAME, "startedAt": 0}


def batch_over(clients, clock=None):
    return AwsBatch(clients=clients, pause=(clock or FakeClock()).sleep)


def listed(*jobs):
    return {"jobSummaryList": [{"jobName": "trials-1", **job} for job in jobs]}


def test_instances_have_the_recipes_disk_encrypted_with_imdsv2_for_containers(clients, stub):
    ec2 = stub(clients.get("ec2"))
    request = BatchRequest(
        cluster_id="c0ffee", types=["c7i.large"], most_vcpus=4, is_spot=True, subnets=["subnet-1"],
        groups=["sg-1"], profile="role", definition={}, disk_gib=80, life_s=3600.0, tags={"a": "b"},
    )  # fmt: skip
    ec2.add_response("create_launch_template", {}, {
        "LaunchTemplateName": f"{NAME}-batch", "LaunchTemplateData": ANY, "TagSpecifications": ANY,
    })  # fmt: skip
    seen = []
    clients.get("ec2").meta.events.register(
        "provide-client-params.ec2", lambda params, **_: seen.append(params)
    )
    batch = batch_over(clients)
    name = batch._put_template(NAME, request)
    data = seen[0]["LaunchTemplateData"]
    (disk,) = data["BlockDeviceMappings"]
    assert (disk["Ebs"]["VolumeSize"], disk["Ebs"]["Encrypted"]) == (80, True)
    assert (data["MetadataOptions"]["HttpTokens"], data["MetadataOptions"]["HttpPutResponseHopLimit"]) == (
        "required",
        2,
    )
    parts = message_from_bytes(base64.b64decode(data["UserData"]))
    assert parts.is_multipart(), "Batch merges its own part"
    assert "CLEANUP_WAIT_DURATION=1m" in parts.get_payload(0).get_payload()
    assert batch._resources(request, name)["launchTemplate"]["launchTemplateName"] == f"{NAME}-batch"


@pytest.mark.parametrize(("life_s", "limit"), [(60, 600), (7200, 7200), (30 * 86400, 86400)])
def test_a_queue_cancels_what_cannot_run_with_nobody_watching(clients, stub, life_s, limit):
    batch = stub(clients.get("batch"))
    actions = limit_actions(life_s)
    assert {action["reason"].partition(":")[0]: action["maxTimeSeconds"] for action in actions} == {
        "MISCONFIGURATION": 600,
        "CAPACITY": limit,
    }
    batch.add_response("create_job_queue", {"jobQueueName": NAME, "jobQueueArn": "arn:q"})
    clients.get("batch").create_job_queue(  # botocore's model of the call
        jobQueueName=NAME, priority=1, computeEnvironmentOrder=[], jobStateTimeLimitActions=actions
    )


def test_a_submission_whose_answer_was_lost_is_found_and_not_repeated(clients, stub, monkeypatch):
    once, batch = clients.get_without_retries("batch"), stub(clients.get("batch"))
    asked = []

    def lose(**arguments):
        asked.append(arguments)
        raise ReadTimeoutError(endpoint_url="https://batch")

    monkeypatch.setattr(once, "submit_job", lose)
    queue = {"jobQueueName": NAME, "jobQueueArn": "arn:q", "priority": 1, "state": "ENABLED"}
    queues = {"jobQueues": [{**queue, "status": "VALID", "computeEnvironmentOrder": []}]}
    batch.add_response("describe_job_queues", queues)
    batch.add_response("list_jobs", listed())
    batch.add_response("describe_job_queues", queues)
    batch.add_response("list_jobs", listed({"jobId": "job-1"}))
    assert batch_over(clients).submit("c0ffee", "trials-1", 3, {}) == "job-1"
    assert len(asked) == 1


def test_a_submission_that_batch_refused_is_an_error(clients, stub):
    stub(clients.get_without_retries("batch")).add_client_error("submit_job", "ClientException", "No.", 400)
    with pytest.raises(CloudError, match="No"):
        batch_over(clients).submit("c0ffee", "trials-1", 3, {})


def test_why_nothing_runs_is_what_environment_job_and_first_child_say(clients, stub):
    batch = stub(clients.get("batch"))
    invalid = {**ENVIRONMENT, "status": "INVALID", "statusReason": "CLIENT_ERROR - not authorized"}
    batch.add_response("describe_compute_environments", {"computeEnvironments": [invalid]})
    batch.add_response(
        "describe_jobs", {"jobs": [{**JOB, "status": "PENDING", "arrayProperties": {"size": 2}}]}
    )
    reason = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - none"
    batch.add_response(
        "list_jobs",
        listed({"jobId": "job-1:0", "statusReason": reason}),
        {"arrayJobId": "job-1", "jobStatus": "RUNNABLE"},
    )
    assert batch_over(clients).why_waiting("c0ffee", "job-1") == f"CLIENT_ERROR - not authorized; {reason}"
    batch.add_response("describe_compute_environments", {"computeEnvironments": [ENVIRONMENT]})
    batch.add_response("describe_jobs", {"jobs": [{**JOB, "status": "RUNNABLE"}]})
    assert batch_over(clients).why_waiting("c0ffee", "job-1") == ""


def test_what_is_still_changed_is_changed_a_little_later(clients, stub):
    batch, clock = stub(clients.get("batch")), FakeClock()
    for _ in range(3):
        batch.add_client_error(
            "delete_compute_environment", "ClientException", "found existing JobQueue", 400
        )
    batch.add_response("delete_compute_environment", {}, {"computeEnvironment": NAME})
    batch_over(clients, clock)._change("delete_compute_environment", computeEnvironment=NAME)
    assert len(clock.slept) == 3
