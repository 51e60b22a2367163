"""Capacity Reservations, placement groups and EFA of the local EC2, as boto3 sees them."""

import pytest

from tests.fakes.local_ec2 import UBUNTU
from tests.fakes.local_ec2 import refusal as refused

ZONE, TYPE = "us-east-1a", "c7i.large"


@pytest.fixture
def reserve(rig):
    """Make reservations that are cancelled after the test, with the instances in them terminated."""
    made = []

    def make(count=1, *, criteria="targeted", **options):
        request = {"InstanceType": TYPE, "InstancePlatform": "Linux/UNIX", "AvailabilityZone": ZONE}
        request |= {"InstanceCount": count, "InstanceMatchCriteria": criteria, **options}
        made.append(rig.ec2.create_capacity_reservation(**request)["CapacityReservation"])
        return made[-1]["CapacityReservationId"]

    yield make
    running = [
        instance["InstanceId"]
        for some in rig.ec2.describe_instances()["Reservations"]
        for instance in some["Instances"]
        if instance["State"]["Name"] in {"pending", "running"}
    ]
    if running:
        rig.end(*running)
    for name in (one["CapacityReservationId"] for one in made):
        if show(rig, name)["State"] == "active":
            rig.ec2.cancel_capacity_reservation(CapacityReservationId=name)


def launch(rig, count=1, *, minimum=None, **options):
    request = {"ImageId": UBUNTU, "InstanceType": TYPE, "UserData": rig.user_data(), **options}
    request.setdefault("Placement", {"AvailabilityZone": ZONE})
    reply = rig.ec2.run_instances(MinCount=minimum or count, MaxCount=count, **request)
    return [instance["InstanceId"] for instance in reply["Instances"]]


def target(name):
    return {
        "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": name}}
    }


def preference(name):
    return {"CapacityReservationSpecification": {"CapacityReservationPreference": name}}


def show(rig, name):
    return rig.ec2.describe_capacity_reservations(CapacityReservationIds=[name])["CapacityReservations"][0]


def idle(rig, name):
    return show(rig, name)["AvailableInstanceCount"]


def test_targeted_reservation_takes_launches_that_name_it_alone(rig, reserve):
    name = reserve(2)
    launch(rig)  # does not name it
    assert idle(rig, name) == 2
    first, second = launch(rig, 4, minimum=1, **target(name))
    shown = rig.describe(first)
    assert shown["CapacityReservationId"] == name
    assert shown["CapacityReservationSpecification"]["CapacityReservationTarget"] == {
        "CapacityReservationId": name
    }
    assert refused(launch, rig, **target(name)) == "ReservationCapacityExceeded"
    rig.end(second)
    assert idle(rig, name) == 1
    assert show(rig, name)["TotalInstanceCount"] == 2


def test_open_reservation_takes_what_matches_unless_it_says_none(rig, reserve):
    name = reserve(1, criteria="open")
    outside, inside = launch(rig, **preference("none"))[0], launch(rig)[0]
    assert "CapacityReservationId" not in rig.describe(outside)
    assert rig.describe(inside)["CapacityReservationId"] == name
    assert "CapacityReservationId" not in rig.describe(launch(rig)[0])
    assert refused(launch, rig, **preference("capacity-reservations-only")) == "ReservationCapacityExceeded"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"InstanceType": "c7i.xlarge"}, "ReservationCapacityExceeded"),
        ({"Placement": {"AvailabilityZone": "us-east-1b"}}, "ReservationCapacityExceeded"),
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, "InvalidParameterCombination"),
        ({"InstanceMarketOptions": {"MarketType": "capacity-block"}}, "UnsupportedOperation"),
    ],
)
def test_target_that_does_not_fit_is_refused(rig, reserve, options, code):
    assert refused(launch, rig, **{**target(reserve()), **options}) == code


def test_unknown_and_cancelled_targets_are_refused(rig, reserve):
    assert refused(launch, rig, **target("cr-1")) == "InvalidCapacityReservationId.Malformed"
    unknown = "cr-0123456789abcdef0"
    assert refused(launch, rig, **target(unknown)) == "InvalidCapacityReservationId.NotFound"
    name = reserve()
    running = launch(rig, **target(name))[0]
    rig.ec2.cancel_capacity_reservation(CapacityReservationId=name)
    assert "CapacityReservationId" not in rig.describe(running)
    assert refused(launch, rig, **target(name)) == "InvalidCapacityReservationState"
    assert show(rig, name)["State"] == "cancelled"


def test_reservation_holds_capacity_and_quota_against_others(rig, reserve):
    rig.control.set_capacity(TYPE, 2, zone=ZONE)
    try:
        name = reserve(2)
        assert refused(launch, rig) == "InsufficientInstanceCapacity"
        assert refused(reserve) == "InsufficientInstanceCapacity"
        launch(rig, **target(name))
        rig.ec2.cancel_capacity_reservation(CapacityReservationId=name)
        launch(rig)
        assert refused(reserve) == "InsufficientInstanceCapacity"
    finally:
        rig.control.set_capacity(TYPE, None, zone=ZONE)


def test_filters_and_tags_of_reservations(rig, reserve):
    tags = [{"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "ml"}]}]
    name = reserve(2, TagSpecifications=tags)
    reserve(1)

    def listed(**filters):
        asked = [{"Name": key.replace("_", "-"), "Values": [value]} for key, value in filters.items()]
        found = rig.ec2.describe_capacity_reservations(Filters=asked)["CapacityReservations"]
        return [one["CapacityReservationId"] for one in found]

    assert listed(**{"tag:team": "ml"}) == [name]
    assert name in listed(state="active", instance_type=TYPE, availability_zone=ZONE)
    assert listed(instance_type="p5.48xlarge") == []
    instance = launch(rig, **target(name))[0]
    of_reservation = [{"Name": "capacity-reservation-id", "Values": [name]}]
    (group,) = rig.ec2.describe_instances(Filters=of_reservation)["Reservations"]
    assert [one["InstanceId"] for one in group["Instances"]] == [instance]


def test_fleet_runs_in_an_open_reservation_unless_it_says_none(rig, reserve):
    name = reserve(1, criteria="open")

    def fleet(choice):
        data = {"ImageId": UBUNTU, "InstanceType": TYPE, "UserData": "", **choice}
        return rig.fleet(data, [{"AvailabilityZone": ZONE}])["Instances"][0]["InstanceIds"][0]

    assert "CapacityReservationId" not in rig.describe(fleet(preference("none")))
    assert rig.describe(fleet({}))["CapacityReservationId"] == name


def test_cluster_placement_group_is_in_one_zone_and_kept_while_used(rig, reserve):
    assert refused(launch, rig, Placement={"GroupName": "none"}) == "InvalidPlacementGroup.Unknown"
    group = rig.ec2.create_placement_group(GroupName="near", Strategy="cluster")["PlacementGroup"]
    assert refused(rig.ec2.create_placement_group, GroupName="near") == "InvalidPlacementGroup.Duplicate"
    instance = launch(rig, Placement={"GroupName": "near", "AvailabilityZone": ZONE})[0]
    assert rig.describe(instance)["Placement"]["GroupName"] == "near"
    elsewhere = {"GroupName": "near", "AvailabilityZone": "us-east-1b"}
    assert refused(launch, rig, Placement=elsewhere) == "InvalidParameterCombination"
    burstable = {"InstanceType": "t3.micro", "Placement": {"GroupName": "near"}}
    assert refused(launch, rig, **burstable) == "InvalidParameterCombination"
    assert refused(rig.ec2.delete_placement_group, GroupName="near") == "InvalidPlacementGroup.InUse"
    reserved = reserve(1, PlacementGroupArn=group["GroupArn"])
    assert refused(launch, rig, **target(reserved)) == "ReservationCapacityExceeded"
    inside = {"Placement": {"GroupName": "near", "AvailabilityZone": ZONE}}
    other = launch(rig, **target(reserved), **inside)[0]
    rig.end(instance, other)
    rig.ec2.delete_placement_group(GroupName="near")
    assert rig.ec2.describe_placement_groups()["PlacementGroups"] == []
