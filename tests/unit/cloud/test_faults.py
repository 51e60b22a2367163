"""Every refusal of AWS becomes the error of dlcloud that says what to do; a launch is asked for once."""

import json
from types import SimpleNamespace

import pytest
from botocore import exceptions as boto
from botocore.awsrequest import AWSResponse

from dlcloud.cloud.account.leftovers import _find_allowed
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import TRIES, translate_errors
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, QuotaError, ThrottledError
from tests.fakes.clock import FakeClock
from tests.unit.cloud.conftest import NOWHERE, REGION, cloud_over, request

CASES = [
    ("InsufficientInstanceCapacity", CapacityError),
    ("InsufficientHostCapacity", CapacityError),
    ("Unsupported", CapacityError),
    ("SpotMaxPriceTooLow", CapacityError),
    ("VcpuLimitExceeded", QuotaError),
    ("InstanceLimitExceeded", QuotaError),
    ("MaxSpotInstanceCountExceeded", QuotaError),
    ("UnauthorizedOperation", CredentialsError),
    ("AuthFailure", CredentialsError),
    ("ExpiredToken", CredentialsError),
    ("RequestExpired", CredentialsError),
    ("OptInRequired", CredentialsError),
    ("ExpiredTokenException", CredentialsError),
    ("PendingVerification", CredentialsError),
    ("Blocked", CredentialsError),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", CapacityError),
    ("InvalidPlacementGroup.InUse", CapacityError),
    ("IdempotentInstanceTerminated", CapacityError),
    ("InsufficientFreeAddressesInSubnet", CapacityError),
    ("ReservationCapacityExceeded", CapacityError),
    ("MaxFleetCountExceeded", QuotaError),
    ("InvalidAMIID.NotFound", CloudError),
]


@pytest.mark.parametrize(("code", "kind"), CASES)
def test_every_class_of_code_has_its_error(clients, stub, code, kind):
    stub(clients.get_without_retries()).add_client_error("run_instances", code, "Because.", 400)
    with pytest.raises(CloudError) as caught:
        cloud_over(clients).instances.launch(request())
    assert type(caught.value) is kind
    assert caught.value.message == (f"launching 2 c7i.xlarge on-demand (ec2:RunInstances): Because. ({code})")
    assert isinstance(caught.value.__cause__, boto.ClientError)
    assert bool(caught.value.hint) == (kind is not CloudError)
    if "ServiceLinkedRole" in code:
        assert not caught.value.is_final, "spot lacks its role, on-demand does not"
        assert "aws iam create-service-linked-role" in caught.value.hint


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "Throttling", "EC2ThrottledException"])
def test_a_throttled_launch_is_retried_with_backoff_then_reported(clients, stub, code):
    clock, ec2 = FakeClock(), stub(clients.get_without_retries())
    cloud = cloud_over(clients, clock=clock)
    for _ in range(TRIES):
        ec2.add_client_error("run_instances", code, "Slow down.", 503)
    with pytest.raises(ThrottledError, match="Slow down"):
        cloud.instances.launch(request())
    assert len(clock.slept) == TRIES - 1
    assert max(clock.slept[:2]) < min(clock.slept[3:])
    ec2.add_client_error("run_instances", code)
    ec2.add_response("run_instances", {"Instances": []})
    assert cloud.instances.launch(request()) == [], "of one that is throttled once"


IN_USE = {
    "snapshot": lambda cloud: cloud.own_images.delete_snapshots(["snap-1"]),
    "placement_group": lambda cloud: cloud.capacity.delete_placement_group("c0ffee"),
}


@pytest.mark.parametrize(
    ("kind", "code"),
    [("snapshot", "InvalidSnapshot.InUse"), ("placement_group", "InvalidPlacementGroup.InUse")],
)
def test_what_is_in_use_for_a_moment_longer_is_deleted_a_moment_later(clients, stub, kind, code):
    clock, ec2 = FakeClock(), stub(clients.get("ec2"))
    for _ in range(3):
        ec2.add_client_error(f"delete_{kind}", code)
    ec2.add_response(f"delete_{kind}", {})
    IN_USE[kind](cloud_over(clients, clock=clock))
    assert len(clock.slept) == 3


def test_roles_that_may_not_be_listed_are_not_looked_for(clients, stub, caplog):
    stub(clients.get("iam")).add_client_error("list_roles", "AccessDenied", http_status_code=403)
    assert _find_allowed("roles", cloud_over(clients).roles.find) == []
    assert "roles: not looked for" in caplog.text


def test_no_capacity_is_asked_for_exactly_once(clients):
    code = "InsufficientInstanceCapacity"
    error = f"<Error><Code>{code}</Code><Message>None left.</Message></Error>"
    body = f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>".encode()
    asked = []

    def refuse(request, **_):
        asked.append(request.body)
        return AWSResponse(request.url, 500, {}, SimpleNamespace(stream=lambda: [body]))

    clients.get_without_retries().meta.events.register("before-send", refuse)
    with pytest.raises(CapacityError, match="None left"):
        cloud_over(clients).instances.launch(request())
    assert len(asked) == 1
    assert "Action=RunInstances" in asked[0]


def test_an_unknown_profile_is_a_credentials_error(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(CredentialsError, match="missing"):
        cloud_over(Clients(region=REGION)).caller.identity()


@pytest.mark.parametrize(
    "error",
    [
        boto.CredentialRetrievalError(provider="sso", error_msg="expired"),
        boto.UnauthorizedSSOTokenError(),
        boto.TokenRetrievalError(provider="sso", error_msg="expired"),
        boto.SSOTokenLoadError(profile_name="me", error_msg="none"),
        boto.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_credentials_that_cannot_be_retrieved_are_not_valid(error):
    with pytest.raises(CredentialsError, match="asking"), translate_errors("asking"):
        raise error


def test_an_endpoint_that_does_not_answer_is_unreachable():
    with pytest.raises(CloudError) as caught:
        cloud_over(Clients(region=REGION, endpoint_url=NOWHERE)).instances.launch(request())
    assert "AWS cannot be reached" in caught.value.message
    assert "network" in caught.value.hint


def test_a_denial_is_decoded_where_its_text_names_nothing(clients, stub):
    ec2, sts = stub(clients.get("ec2")), stub(clients.get("sts"))
    old = "You are not authorized to perform this operation. Encoded authorization failure message: abc"
    context = {"action": "ec2:RunInstances", "resource": "arn:aws:ec2:us-east-1:1:instance/*"}
    decoded = json.dumps({"allowed": False, "explicitDeny": False, "context": context})
    ec2.add_client_error("describe_instances", "UnauthorizedOperation", old)
    sts.add_response("decode_authorization_message", {"DecodedMessage": decoded}, {"EncodedMessage": "abc"})
    with pytest.raises(
        CredentialsError, match="ec2:RunInstances on arn:aws:ec2:us-east-1:1:instance/"
    ) as error:
        cloud_over(clients).instances.find("c0ffee")
    assert error.value.denial.action == "ec2:RunInstances"
    ec2.add_client_error("describe_instances", "UnauthorizedOperation", old)
    sts.add_client_error("decode_authorization_message", "AccessDenied")
    with pytest.raises(CredentialsError, match=r"perform this operation\. \(Unauthorized") as error:
        cloud_over(clients).instances.find("c0ffee")
    assert error.value.denial is None


def test_a_plain_denial_needs_no_decoding_and_loses_its_code(clients, stub):
    text = "User: me is not authorized to perform: ec2:DescribeInstances with an explicit deny in a service "
    text += "control policy. Encoded authorization failure message: abc"
    stub(clients.get("ec2")).add_client_error("describe_instances", "UnauthorizedOperation", text)
    with pytest.raises(CredentialsError, match="an explicit deny in the service control policy") as error:
        cloud_over(clients).instances.find("c0ffee")
    assert "abc" not in error.value.message
    assert "administrator" in error.value.hint
