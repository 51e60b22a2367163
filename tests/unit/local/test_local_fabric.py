"""Elastic Fabric Adapters of types with several network cards: what a plan asks for, and what EC2 takes."""

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from dlcloud.cloud.compute.requests import run_instances_arguments
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import NetworkCard
from dlcloud.planning.launch_request import NetworkInterface
from dlcloud.planning.networks import PlannedNetwork
from dlcloud.planning.placement import fabric_interfaces
from tests.fakes.clock import FakeClock
from tests.fakes.local_ec2 import UBUNTU
from tests.fakes.samples import RECIPE, hardware, recipe
from tests.unit.cloud.conftest import request

INSTANCES = recipe(RECIPE.replace("instances:", "instances:\n  efa: true")).instances


class RigClients:
    """The clients of a rig, as `InstanceTypes` calls them."""

    region = "us-east-1"

    def __init__(self, rig):
        self._rig = rig

    def pages(self, service, method, key, **arguments):
        pages = self._rig.client(service).get_paginator(method).paginate(**arguments)
        return [item for page in pages for item in page[key]]


@pytest.fixture(scope="module")
def efa_types(rig):
    """Every type with EFA, as EC2 describes it."""
    types = InstanceTypes(clients=RigClients(rig), catalog=Catalog(), cache=None, clock=FakeClock())
    return {entry.name: entry for entry in types.offered() if entry.efa_interfaces}


def answer(rig, name, interfaces, *, public=None):
    """Return the code of EC2's answer to the dry run of a launch with these interfaces."""
    arguments = run_instances_arguments(
        request(
            instance_type=name,
            interfaces=tuple(interfaces),
            security_group_id="",
            network=PlannedNetwork(public_ip=public),
        )
    )
    architecture = "arm64" if "arm64" in describe(rig, name) else "x86_64"
    arguments["ImageId"] = UBUNTU if architecture == "x86_64" else arm_image(rig)
    del arguments["ClientToken"]
    with pytest.raises(ClientError) as error:
        rig.ec2.run_instances(DryRun=True, **arguments)
    return error.value.response["Error"]["Code"]


def describe(rig, name):
    (entry,) = rig.ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
    return entry["ProcessorInfo"]["SupportedArchitectures"]


def arm_image(rig):
    name = "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id"
    return rig.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]


def test_ec2_takes_the_interfaces_of_every_type_with_several_cards(rig, efa_types):
    several = {name: entry for name, entry in efa_types.items() if len(entry.network_cards) > 1}
    assert {"p4d.24xlarge", "p5.48xlarge", "p6-b300.48xlarge", "hpc6id.32xlarge"} <= several.keys()
    for name, entry in several.items():
        interfaces, notes = fabric_interfaces(INSTANCES, [name], several, is_public=False)
        assert sum(one.is_efa for one in interfaces) == entry.efa_interfaces, name
        assert notes == []
        assert answer(rig, name, interfaces) == "DryRunOperation", name


def test_with_a_public_address_there_is_one_interface(rig, efa_types):
    for name in ("p4d.24xlarge", "p5.48xlarge", "c7i.48xlarge"):
        interfaces, _ = fabric_interfaces(INSTANCES, [name], efa_types, is_public=True)
        assert [one.kind for one in interfaces] == ["efa"]
        assert answer(rig, name, interfaces, public=True) == "DryRunOperation"
    with pytest.raises(CloudError, match="no public address") as refused:
        fabric_interfaces(INSTANCES, ["p6-b300.48xlarge"], efa_types, is_public=True)
    assert "network.access" in refused.value.hint


def test_types_of_one_fleet_have_the_cards_that_all_have(efa_types):
    both = ["p5.48xlarge", "p6-b300.48xlarge"]
    interfaces, _ = fabric_interfaces(INSTANCES, both, efa_types, is_public=False)
    assert interfaces[0].kind == "interface", "the first card of a p6-b300 takes no EFA"
    assert [one.card for one in interfaces] == list(range(17))


def test_a_card_for_one_interface_has_an_efa_without_an_address():
    cards = [NetworkCard(index=index, takes_efa=True, interfaces=1 + (index + 1) % 2) for index in range(4)]
    gb200 = replace(hardware(), efa_interfaces=4, network_cards=tuple(cards))
    interfaces, _ = fabric_interfaces(INSTANCES, [gb200.name], {gb200.name: gb200}, is_public=False)
    assert [(one.device, one.kind) for one in interfaces] == [
        (0, "efa"),
        (0, "efa-only"),
        (1, "efa"),
        (0, "efa-only"),
    ]


@pytest.mark.parametrize(
    ("name", "interfaces", "code"),
    [
        ("p6-b300.48xlarge", [(0, 0, "efa")], "InvalidParameterCombination"),
        ("p6-b300.48xlarge", [(0, 0, "interface"), (17, 1, "efa")], "InvalidParameterValue"),
        ("hpc6id.32xlarge", [(0, 0, "efa"), (1, 1, "efa")], "AttachmentLimitExceeded"),
        ("p5.48xlarge", [(0, 0, "efa-only")], "InvalidParameterCombination"),
    ],
)
def test_ec2_refuses_what_a_network_card_does_not_take(rig, name, interfaces, code):
    made = [NetworkInterface(card=card, device=device, kind=kind) for card, device, kind in interfaces]
    assert answer(rig, name, made) == code


def test_ec2_refuses_a_public_address_beside_several_interfaces(rig):
    cards = [
        {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "InterfaceType": "efa"},
        {"DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa"},
    ]
    with pytest.raises(ClientError, match="one network interface only"):
        rig.ec2.run_instances(
            InstanceType="p4d.24xlarge",
            ImageId=UBUNTU,
            MinCount=1,
            MaxCount=1,
            NetworkInterfaces=cards,
            DryRun=True,
        )
