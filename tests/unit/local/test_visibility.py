"""New resources that EC2 does not show at once, on the local EC2 and to dlcloud's own calls."""

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from dlcloud.model.cluster import CLUSTER_TAG
from dlcloud.model.instance import Market
from tests.fakes.local_ec2 import UBUNTU
from tests.fakes.samples import cluster
from tests.unit.local.test_instance_roles import cloud_of, fleet, request

LONG_S = 3600.0  # far longer than any test takes: what is hidden appears when the switch is set to 0
RULE = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}


@pytest.fixture
def late(rig):
    rig.control.set_visibility(LONG_S, seed=1)
    return rig


def appearing(rig, pauses=2):
    """Return dlcloud's cloud, to whose calls all appears after so many pauses, and the pauses."""
    slept = []

    def pause(seconds):
        slept.append(seconds)
        rig.control.set_visibility(0.0 if len(slept) % pauses == 0 else LONG_S, seed=1)

    return cloud_of(replace(rig.clients(), pause=pause), pause=pause), slept


def test_what_was_just_made_is_not_found(late):
    ec2 = late.ec2
    group = ec2.create_security_group(GroupName="late", Description="late")["GroupId"]
    (instance,) = late.run()
    ec2.create_launch_template(LaunchTemplateName="late", LaunchTemplateData={"ImageId": UBUNTU})
    config = {"LaunchTemplateSpecification": {"LaunchTemplateName": "late", "Version": "$Latest"}}
    target = {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"}
    calls = {
        "InvalidGroup.NotFound": (
            ec2.authorize_security_group_ingress,
            {"GroupId": group, "IpPermissions": [RULE]},
        ),
        "InvalidInstanceID.NotFound": (ec2.terminate_instances, {"InstanceIds": [instance]}),
        "InvalidLaunchTemplateName.NotFoundException": (
            ec2.create_fleet,
            {"Type": "instant", "LaunchTemplateConfigs": [config], "TargetCapacitySpecification": target},
        ),
    }
    for code, (call, arguments) in calls.items():
        with pytest.raises(ClientError, match=code):
            call(**arguments)
    named = [{"Name": "group-name", "Values": ["late"]}]
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]

    def listed():
        return [
            len(ec2.describe_security_groups(Filters=named)["SecurityGroups"]),
            len(ec2.describe_launch_templates()["LaunchTemplates"]),
            len(ec2.describe_instances(Filters=alive)["Reservations"]),
        ]

    assert listed() == [0, 0, 0]
    late.control.set_visibility(0.0)
    assert listed() == [1, 1, 1]
    for call, arguments in calls.values():
        call(**arguments)


def test_a_group_is_not_waited_for_before_it_is_used(late):
    cloud, slept = appearing(late)
    group_id = cloud.network.create_group("seen", cluster().tags | {CLUSTER_TAG: "seen"})
    assert slept == []
    cloud.network.allow_ssh(group_id, "192.0.2.1/32")
    assert slept == [0.5, 1.0]
    assert cloud.network.delete_groups("seen") == []
    filters = [{"Name": "group-id", "Values": [group_id]}]
    assert late.ec2.describe_security_groups(Filters=filters)["SecurityGroups"] == []


def test_a_group_that_exists_unseen_is_found_when_it_appears(late):
    owner = cloud_of(replace(late.clients(), pause=lambda _: None))
    group_id = owner.network.create_group("unseen", {CLUSTER_TAG: "unseen"})
    assert owner.network.revoke_ssh("unseen") == []
    cloud, slept = appearing(late)
    assert cloud.network.create_group("unseen", {CLUSTER_TAG: "unseen"}) == group_id
    assert slept == [0.5, 1.0]


def test_launches_are_repeated_under_their_token(late):
    late.control.set_visibility(0.0)
    cloud, slept = appearing(late)
    wanted = request(late, cloud, "again")
    template = cloud.fleets.create_template(wanted)
    late.control.set_visibility(LONG_S, seed=1)
    hidden = late.ec2.create_security_group(GroupName="hidden", Description="hidden")["GroupId"]
    (launched,) = cloud.instances.launch(replace(wanted, security_group_id=hidden))
    assert slept == [0.5, 1.0]
    assert launched.market is Market.ON_DEMAND
    assert len(fleet(cloud, template, "again").instances) == 1


def test_tags_are_put_on_an_instance_that_appears_late(late):
    (instance_id,) = late.run()
    cloud, slept = appearing(late)
    cloud.instances.put_tags([instance_id], {"role": "first"})
    assert slept == [0.5, 1.0]
