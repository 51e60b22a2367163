"""Exactly what is asked of EC2, and what is made of its answers."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from botocore.stub import ANY

from dlcloud.cloud.compute.fleets import fleet_arguments
from dlcloud.cloud.compute.requests import read_instance, run_instances_arguments, template_data
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Instance, InstanceState, Market
from dlcloud.planning.launch_request import FleetRequest
from tests.fakes.samples import cluster
from tests.unit.cloud.conftest import cloud_over, request

TAGS = [
    {"Key": "dlcloud:managed", "Value": "true"},
    {"Key": "dlcloud:cluster", "Value": "c0ffee"},
    {"Key": "Name", "Value": "dlcloud sample-1a2b"},
]
WANTED = {
    "ImageId": "ami-0123456789abcdef0",
    "InstanceType": "c7i.xlarge",
    "MinCount": 1,
    "MaxCount": 2,
    "ClientToken": "t" * 64,
    "UserData": "#cloud-config\n",
    "SecurityGroupIds": ["sg-1"],
    "InstanceInitiatedShutdownBehavior": "terminate",
    "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
    "BlockDeviceMappings": [
        {
            "DeviceName": "/dev/sda1",
            "Ebs": {"VolumeSize": 60, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True},
        }
    ],
    "TagSpecifications": [
        {"ResourceType": kind, "Tags": TAGS} for kind in ("instance", "volume", "network-interface")
    ],
}
LAUNCHED = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
ANSWER = {
    "Instances": [
        {
            "InstanceId": "i-1",
            "InstanceType": "c7i.xlarge",
            "State": {"Name": "pending"},
            "LaunchTime": LAUNCHED,
            "Placement": {"AvailabilityZone": "us-east-1a"},
            "Tags": TAGS,
        }
    ]
}


def test_an_on_demand_launch_asks_for_exactly_this(clients, stub):
    stub(clients.get_without_retries()).add_response("run_instances", ANSWER, WANTED)
    assert cloud_over(clients).instances.launch(request()) == [
        Instance(
            instance_id="i-1",
            instance_type="c7i.xlarge",
            market=Market.ON_DEMAND,
            zone="us-east-1a",
            state=InstanceState.PENDING,
            state_reason="",
            launched_at=LAUNCHED,
            tags=cluster().tags,
        )
    ]


def test_a_spot_launch_is_one_time_in_its_zone_and_tags_its_request(clients, stub):
    specifications = [*WANTED["TagSpecifications"], {"ResourceType": "spot-instances-request", "Tags": TAGS}]
    wanted = WANTED | {
        "Placement": {"AvailabilityZone": "us-east-1b"},
        "InstanceMarketOptions": {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        },
        "TagSpecifications": specifications,
    }
    answer = {"Instances": [{**ANSWER["Instances"][0], "InstanceLifecycle": "spot"}]}
    stub(clients.get_without_retries()).add_response("run_instances", answer, wanted)
    (launched,) = cloud_over(clients).instances.launch(request(market=Market.SPOT, zone="us-east-1b"))
    assert launched.market is Market.SPOT


def test_instances_are_read_over_all_pages_and_sorted_by_their_launch(clients, stub):
    def answer_for(instance_id, second, **other):
        at = LAUNCHED.replace(second=second)
        return {**ANSWER["Instances"][0], "InstanceId": instance_id, "LaunchTime": at, **other}

    running = answer_for(
        "i-2",
        1,
        State={"Name": "running"},
        PublicIpAddress="198.51.100.2",
        Tags=[*TAGS, {"Key": "dlcloud:ssh-port", "Value": "2201"}],
    )
    dead = answer_for(
        "i-1",
        2,
        State={"Name": "terminated"},
        StateReason={"Code": "x", "Message": "Server.Spot"},
        Placement={},
    )
    filters = {"Filters": [{"Name": "tag:dlcloud:cluster", "Values": ["c0ffee"]}]}
    ec2 = stub(clients.get("ec2"))
    ec2.add_response(
        "describe_instances", {"Reservations": [{"Instances": [dead]}], "NextToken": "more"}, filters
    )
    ec2.add_response(
        "describe_instances", {"Reservations": [{"Instances": [running]}]}, {**filters, "NextToken": "more"}
    )
    first, second = cloud_over(clients).instances.find("c0ffee")
    assert (first.instance_id, first.host, first.ssh_port) == ("i-2", "198.51.100.2", 2201)
    assert (second.state, second.state_reason, second.zone) == (InstanceState.TERMINATED, "Server.Spot", "")
    managed = {"Filters": [{"Name": "tag:dlcloud:managed", "Values": ["true"]}]}
    ec2.add_response("describe_instances", {"Reservations": []}, managed)
    assert cloud_over(clients).instances.find() == [], "without a cluster, every managed one is asked for"


def test_a_group_in_use_is_returned_and_one_that_is_gone_is_no_error(clients, stub):
    ec2 = stub(clients.get("ec2"))
    groups = {"SecurityGroups": [{"GroupId": f"sg-{number}"} for number in (1, 2, 3)]}
    ec2.add_response("describe_security_groups", groups, {"Filters": ANY})
    ec2.add_client_error("delete_security_group", "DependencyViolation")
    ec2.add_client_error("delete_security_group", "InvalidGroup.NotFound")
    ec2.add_response("delete_security_group", {}, {"GroupId": "sg-3"})
    assert cloud_over(clients).network.delete_groups("c0ffee") == ["sg-1"]


def test_an_ipv6_caller_is_let_in_as_such(clients, stub):
    permission = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "Ipv6Ranges": [{"CidrIpv6": "2001:db8::1/128", "Description": "dlcloud"}],
    }
    stub(clients.get("ec2")).add_response(
        "authorize_security_group_ingress", {}, {"GroupId": "sg-1", "IpPermissions": [permission]}
    )
    cloud_over(clients).network.allow_ssh("sg-1", "2001:db8::1/128")


def test_instances_reach_only_each_other_until_the_rules_are_revoked(moto_cloud, ec2):
    group_id = moto_cloud.network.create_group("c0ffee", cluster().tags)
    moto_cloud.network.allow_peers(group_id)
    moto_cloud.network.allow_peers(group_id)
    (group,) = ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    (rule,) = group["IpPermissions"]
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"], rule["IpRanges"]) == ("tcp", 0, 65535, [])
    assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group_id]
    moto_cloud.network.revoke_ssh("c0ffee")
    (group,) = ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    assert group["IpPermissions"] == []
    assert moto_cloud.network.delete_groups("c0ffee") == []


def test_a_group_of_our_name_without_our_tags_is_an_error(moto_cloud, ec2):
    ec2.create_security_group(GroupName="dlcloud-c0ffee", Description="another program")
    with pytest.raises(CloudError, match="dlcloud-c0ffee"):
        moto_cloud.network.create_group("c0ffee", cluster().tags)


ENDED = datetime(2026, 9, 1, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "reason", "ended_at"),
    [
        ("terminated", "Service initiated (2026-09-01 12:34:56 GMT)", ENDED),
        ("shutting-down", "User initiated (2026-09-01 12:34:56 GMT)", ENDED),
        ("terminated", "Server.SpotInstanceTermination", None),
        ("stopped", "User initiated (2026-09-01 12:34:56 GMT)", None),
        ("running", "", None),
    ],
)
def test_the_end_of_an_instance_is_read_from_its_reason(state, reason, ended_at):
    answer = {**ANSWER["Instances"][0], "State": {"Name": state}, "StateTransitionReason": reason}
    assert read_instance(answer).ended_at == ended_at


def test_access_moves_from_one_address_to_another_and_wide_and_named_networks_stay(moto_cloud, ec2):
    network = moto_cloud.network
    group = network.create_group("c0ffee", cluster().tags)
    for address in ("198.51.100.9/32", "192.0.2.0/24"):
        network.allow_ssh(group, address)
    network.allow_ssh(group, "198.51.100.10/32", named=True)
    assert network.move_ssh("c0ffee", "192.0.2.8/32") is None, "a wide network covers it"
    assert network.move_ssh("c0ffee", "198.51.100.10/32") is None
    assert network.move_ssh("c0ffee", "203.0.113.7/32") == ["198.51.100.9/32"]
    permissions = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    allowed = {each["CidrIp"] for permission in permissions for each in permission["IpRanges"]}
    assert allowed == {"203.0.113.7/32", "192.0.2.0/24", "198.51.100.10/32"}
    assert network.move_ssh("c0ffee", "203.0.113.7/32") is None


def test_many_instances_are_terminated_in_several_calls(clients, stub):
    names = [f"i-{number:04}" for number in range(1100)]
    ec2 = stub(clients.get("ec2"))
    for part in (names[:500], names[500:1000], names[1000:]):
        ec2.add_response("terminate_instances", {}, {"InstanceIds": part})
    cloud_over(clients).instances.terminate(names)


def test_one_id_that_is_gone_does_not_keep_the_others(clients, stub):
    ec2 = stub(clients.get("ec2"))
    for part in (["i-1", "gone", "i-2"], ["gone", "i-2"], ["gone"]):
        ec2.add_client_error("terminate_instances", "InvalidInstanceID.NotFound")
        if part == ["i-1", "gone", "i-2"]:
            ec2.add_response("terminate_instances", {}, {"InstanceIds": ["i-1"]})
    ec2.add_response("terminate_instances", {}, {"InstanceIds": ["i-2"]})
    cloud_over(clients).instances.terminate(["i-1", "gone", "i-2"])


@pytest.mark.parametrize("tenancy", ["default", "dedicated"])
def test_tenancy_is_asked_for_in_launches_and_templates(tenancy):
    asked = request(tenancy=tenancy, zone="us-east-1a")
    expected = {} if tenancy == "default" else {"Tenancy": tenancy}
    assert run_instances_arguments(asked)["Placement"] == {"AvailabilityZone": "us-east-1a", **expected}
    assert template_data(asked, "").get("Placement", {}) == expected


@pytest.mark.parametrize(
    ("name", "specification"),
    [
        *(
            (name, {"CpuCredits": "standard"})
            for name in ("t2.micro", "t3.xlarge", "t3a.large", "t4g.micro", "t8i.nano")
        ),
        *((name, None) for name in ("t1.micro", "trn1.2xlarge", "c7i.xlarge")),  # EC2 would refuse it
    ],
)
def test_a_burstable_type_bills_no_credits_beyond_its_price(name, specification):
    asked = request(instance_type=name)
    assert run_instances_arguments(asked).get("CreditSpecification") == specification
    assert template_data(asked, "").get("CreditSpecification") == specification


def test_a_fleet_takes_burstable_types_from_a_template_with_their_credits_and_tags_volumes():
    asked = FleetRequest(
        template="plain",
        burstable_template="credits",
        pools=(("t3.xlarge", "us-east-1a"), ("c7i.xlarge", "us-east-1a"), ("t3.xlarge", "us-east-1b")),
        spot_count=1,
        on_demand_count=1,
        client_token="token",
        tags={},
        requested_at=LAUNCHED,
    )
    arguments = fleet_arguments(asked)
    assert {
        config["LaunchTemplateSpecification"]["LaunchTemplateName"]: [
            (override["InstanceType"], override["Priority"]) for override in config["Overrides"]
        ]
        for config in arguments["LaunchTemplateConfigs"]
    } == {"credits": [("t3.xlarge", 0.0), ("t3.xlarge", 0.0)], "plain": [("c7i.xlarge", 1.0)]}
    assert {"fleet", "instance", "volume"} == {
        each["ResourceType"] for each in arguments["TagSpecifications"]
    }
    for single in (True, False):
        arguments = fleet_arguments(replace(asked, single_zone=single))
        for market in ("SpotOptions", "OnDemandOptions"):
            assert ("SingleAvailabilityZone" in arguments[market]) is single
