"""`network` in a recipe, and what a plan makes of the network that it turns out to be."""

import pytest

from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.planning.networks import FoundNetwork, Subnet, describe_network, plan_network, usable_subnets
from dlcloud.recipe.network import Network, read_network
from dlcloud.recipe.recipe import read_recipe

RECIPE = 'name: x\ninstances: {types: c7i.large}\nworkload: {command: "true"}\n'
PUBLIC = Subnet(zone_id="use1-az1", subnet_id="subnet-1", assigns_addresses=True, reaches_internet=True)
CLOSED = Subnet(zone_id="use1-az2", subnet_id="subnet-2", assigns_addresses=False, reaches_internet=False)
NAT = Subnet(
    zone_id="use1-az3", subnet_id="subnet-3", assigns_addresses=False, reaches_internet=False, has_nat=True
)


def network(**values):
    return Network(**values)


def endpoint_network():
    return network(subnets=["subnet-2"], access="instance-connect-endpoint", public_ip=False)


def found(**values):
    subnets = values.pop("subnets", {"us-east-1a": PUBLIC, "us-east-1b": CLOSED})
    return FoundNetwork(vpc_id="vpc-1", subnets=subnets, **values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{access: bastion}", "bastion and access: bastion belong together"),
        ("{bastion: {host: b}}", "bastion and access: bastion belong together"),
        ("{public_ip: false}", "without public_ip, access is one of instance-connect-endpoint"),
        ("{subnets: private}", "'private' is neither subnet-… nor tag:KEY=VALUE"),
        ("{security_groups: [web]}", "'web' is neither sg-… nor tag:KEY=VALUE"),
        ("{vpc: main}", "network.vpc"),
        ("{access: vpn}", "network.access"),
    ],
)
def test_a_network_that_makes_no_sense_is_a_fault(text, message):
    with pytest.raises(RecipeError) as refused:
        read_recipe(f"{RECIPE}network: {text}\n", "r.yaml")
    assert message in refused.value.message


def test_a_recipe_without_network_keeps_its_hash():
    assert read_recipe(f"{RECIPE}network:\n", "r").hash == read_recipe(RECIPE, "r").hash
    assert read_recipe(f"{RECIPE}network: {{vpc: vpc-1}}\n", "r").hash != read_recipe(RECIPE, "r").hash


def test_a_stored_network_is_read_again():
    stored = endpoint_network()
    assert read_network(stored.model_dump_json()) == stored
    assert not read_network("").is_private


def test_public_access_takes_the_subnets_with_a_gateway():
    assert list(usable_subnets(network(vpc="vpc-1"), found(), [])) == ["us-east-1a"]
    with pytest.raises(CloudError, match="subnet-2: no route to an internet gateway") as refused:
        usable_subnets(network(vpc="vpc-1"), found(), ["us-east-1b"])
    assert "network.access" in refused.value.hint


def test_a_private_network_needs_its_endpoint():
    with pytest.raises(CloudError, match="no EC2 Instance Connect Endpoint") as refused:
        usable_subnets(endpoint_network(), found(), ["us-east-1b"])
    assert refused.value.hint == "aws ec2 create-instance-connect-endpoint --subnet-id subnet-2"
    ready = found(endpoints=("eice-1",))
    assert list(usable_subnets(endpoint_network(), ready, ["us-east-1b"])) == ["us-east-1b"]


def test_a_zone_without_a_subnet_is_named():
    with pytest.raises(CloudError, match=r"no subnet in us-east-1f, but in us-east-1a, us-east-1b"):
        usable_subnets(network(vpc="vpc-1"), found(), ["us-east-1f"])


@pytest.mark.parametrize(
    ("chosen", "subnet", "public_ip"),
    [
        (network(vpc="vpc-1"), PUBLIC, None),
        (network(vpc="vpc-1"), NAT, True),
        (network(vpc="vpc-1", public_ip=True), PUBLIC, True),
        (endpoint_network(), CLOSED, False),
    ],
)
def test_an_address_is_asked_for_where_access_needs_it(chosen, subnet, public_ip):
    planned = plan_network(chosen, found(), {"us-east-1a": subnet})
    assert planned.public_ip is public_ip
    assert planned.subnets == {"us-east-1a": subnet.subnet_id}


def test_a_subnet_without_a_way_out_is_warned_of():
    closed = describe_network(endpoint_network(), {"us-east-1b": CLOSED}, count=30, profile="")
    assert closed[0].startswith("no route from subnet-2 to the internet")
    assert closed[-1] == "an endpoint carries 20 connections at the same time; 30 instances need more"
    assert len(describe_network(endpoint_network(), {"us-east-1c": NAT}, count=2, profile="")) == 1
    sessions = network(access="session-manager", public_ip=False)
    (line,) = describe_network(sessions, {"us-east-1c": NAT}, count=1, profile="")
    assert "AmazonSSMManagedInstanceCore" in line
