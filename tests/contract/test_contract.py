"""What dlcloud counts on EC2 to do, asked of each cloud through dlcloud's own boto3 calls."""

import secrets
import time

import pytest

from dlcloud.launch.down import gc
from dlcloud.model.cluster import CLUSTER_TAG, CONTROLLER_TAG, MANAGED_TAG, NAME_TAG
from dlcloud.model.instance import Market
from dlcloud.planning.launch_request import FleetRequest
from dlcloud.planning.quotas import CODES
from tests.fakes import samples

TYPE = "c5.large"
WAIT_S = 300


@pytest.fixture
def cluster(there):
    """A cluster id whose every trace is removed afterwards."""
    cluster_id = f"contract{secrets.token_hex(4)}"
    yield cluster_id
    gc(left(there, cluster_id), cloud=there.cloud, clock=there.clock, emit=lambda _: None)
    assert not left(there, cluster_id)


def left(there, cluster_id):
    """Return what is there; moto cannot delete a fleet whose instances are gone."""
    found = [each for each in there.cloud.leftovers.find() if each.cluster_id == cluster_id]
    return [each for each in found if not (there.is_moto and each.kind == "fleet")]


def tags(cluster_id):
    return {MANAGED_TAG: "true", CLUSTER_TAG: cluster_id, NAME_TAG: "dlcloud contract test"}


def image(there):
    if there.is_moto:  # it has none of the public parameters that name images
        found = there.clients.get("ec2").describe_images(
            Filters=[{"Name": "architecture", "Values": ["x86_64"]}]
        )
        return there.cloud.images.resolve(found["Images"][0]["ImageId"], gpu=False)
    return there.cloud.images.resolve("auto", gpu=False)


def request(there, cluster_id, **other):
    values = {
        "instance_type": TYPE,
        "image": image(there),
        "disk_gib": 8 if there.is_moto else 10,
        "security_group_id": there.cloud.network.create_group(cluster_id, tags(cluster_id)),
        "user_data": "#cloud-config\nruncmd:\n  - [shutdown, -P, '+10']\n",
        "client_token": secrets.token_hex(16),
        "tags": tags(cluster_id),
    }
    return samples.request(**{**values, **other})


def until(true):
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(1)


def test_the_caller_is_known(there):
    assert there.cloud.caller.identity().account.isdigit()


def test_zones_offer_types_and_a_type_that_does_not_exist_is_absent(there):
    zones = there.cloud.types.zones([TYPE, "c99.large"])
    assert zones[TYPE] == tuple(sorted(zones[TYPE]))
    assert zones[TYPE]
    assert "c99.large" not in zones


def test_the_network_has_a_subnet_in_a_zone_that_offers_the_type(there):
    assert set(there.account.subnets()) & set(there.cloud.types.zones([TYPE])[TYPE])


def test_limits_and_usage_are_returned(there):
    if there.is_moto:
        pytest.skip("moto knows no quotas of EC2")
    code = CODES["Standard (A, C, D, H, I, M, R, T, Z)", Market.ON_DEMAND]
    assert there.account.limits([code])[code] >= 0
    assert isinstance(there.account.usage(), list)


def test_prices_have_dates_and_sources(there):
    if there.is_moto:
        pytest.skip("moto's spot prices are of 2006")
    found = there.cloud.prices.find([TYPE], [Market.ON_DEMAND, Market.SPOT])
    assert {price.market for price in found} == {Market.ON_DEMAND, Market.SPOT}
    assert all(price.hourly_usd > 0 and price.source and price.as_of for price in found)


def test_a_group_is_made_once_opened_once_closed_and_deleted(there, cluster):
    cloud = there.cloud
    group = cloud.network.create_group(cluster, tags(cluster))
    assert cloud.network.create_group(cluster, tags(cluster)) == group
    for _ in range(2):
        cloud.network.allow_ssh(group, "192.0.2.1/32")
    for _ in range(2):
        cloud.network.revoke_ssh(cluster)
    answer = there.clients.get("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    assert answer["IpPermissions"] == []
    assert cloud.network.delete_groups(cluster) == []
    assert cloud.network.delete_groups(cluster) == []


def test_an_instance_is_launched_once_tagged_hardened_and_ended(there, cluster):
    wanted = request(there, cluster)
    (first,) = there.cloud.instances.launch(wanted)
    if not there.is_moto:  # it forgets tokens
        assert [each.instance_id for each in there.cloud.instances.launch(wanted)] == [first.instance_id]
    until(lambda: [each for each in there.cloud.instances.find(cluster) if each.host])
    (seen,) = there.cloud.instances.find(cluster)
    assert seen.tags[CLUSTER_TAG] == cluster
    answer = there.clients.get("ec2").describe_instances(InstanceIds=[first.instance_id])
    answer = answer["Reservations"][0]["Instances"][0]
    assert answer["MetadataOptions"]["HttpTokens"] == "required"
    volume = answer["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    (disk,) = there.clients.get("ec2").describe_volumes(VolumeIds=[volume])["Volumes"]
    assert disk["Encrypted"] is True
    assert {"Key": CLUSTER_TAG, "Value": cluster} in disk["Tags"]
    for _ in range(2):
        there.cloud.instances.terminate([first.instance_id])
    until(lambda: all(each.ended for each in there.cloud.instances.find(cluster)))


@pytest.mark.parametrize("market", [Market.ON_DEMAND, Market.SPOT])
def test_a_fleet_launches_from_many_pools_and_leaves_nothing(there, cluster, market):
    wanted = request(there, cluster, market=market)
    template = there.cloud.fleets.create_template(wanted)
    assert there.cloud.fleets.create_template(wanted) == template
    zones = there.cloud.types.zones([TYPE])[TYPE]
    launched = there.cloud.fleets.launch(
        FleetRequest(
            template=template,
            pools=tuple((TYPE, zone) for zone in zones if zone in there.account.subnets()),
            spot_count=int(market is Market.SPOT),
            on_demand_count=int(market is Market.ON_DEMAND),
            client_token=secrets.token_hex(16),
            tags=tags(cluster),
            requested_at=there.clock.now(),
        )
    )
    assert len(launched.instances) == 1, launched.refusals
    assert launched.fleet_id.startswith("fleet-")
    until(lambda: there.cloud.instances.find(cluster))
    (seen,) = there.cloud.instances.find(cluster)
    if not there.is_moto:  # its fleets ignore the market
        assert seen.market is market
    assert seen.instance_id == launched.instances[0].instance_id


def test_a_role_is_made_attached_found_and_deleted(there, cluster):
    cloud = there.cloud
    (instance,) = cloud.instances.launch(request(there, cluster))
    try:
        for _ in range(2):
            profile = cloud.roles.put_control(cluster, tags(cluster))
        for _ in range(2):
            cloud.instances.attach_profile(instance.instance_id, profile)
        cloud.instances.put_tags([instance.instance_id], {CONTROLLER_TAG: "ubuntu"})
        until(lambda: [each for each in cloud.instances.find(cluster) if CONTROLLER_TAG in each.tags])
        assert "iam-role" in {each.kind for each in left(there, cluster)}
    finally:
        for _ in range(2):
            cloud.roles.delete(cluster)
    until(lambda: "iam-role" not in {each.kind for each in left(there, cluster)})


def test_tagged_resources_are_found_by_the_tag_alone(there, cluster):
    there.cloud.network.create_group(cluster, tags(cluster))
    kinds = {each.kind for each in there.cloud.leftovers.find() if each.cluster_id == cluster}
    assert kinds == {"security-group"}
