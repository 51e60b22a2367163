"""DryRun on every action that dlcloud changes something with: an answer, and no change."""

import pytest

from tests.fakes.local_ec2 import UBUNTU, refusal

RUN = {"ImageId": UBUNTU, "InstanceType": "c7i.large", "MinCount": 1, "MaxCount": 1}
DISK = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}
WRONG = {
    "InvalidAMIID.NotFound": {"ImageId": "ami-0123456789abcdef0"},
    "InvalidBlockDeviceMapping": {"BlockDeviceMappings": [DISK]},
    "InvalidParameterValue": {"InstanceType": "c7g.large"},
    "InvalidSubnetID.NotFound": {"SubnetId": "subnet-0123456789abcdef0"},
}


def counts(rig):
    ec2 = rig.ec2
    return {
        "instances": len(ec2.describe_instances()["Reservations"]),
        "groups": len(ec2.describe_security_groups()["SecurityGroups"]),
        "rules": sum(len(g["IpPermissions"]) for g in ec2.describe_security_groups()["SecurityGroups"]),
        "templates": len(ec2.describe_launch_templates()["LaunchTemplates"]),
        "volumes": len(ec2.describe_volumes()["Volumes"]),
        "interfaces": len(ec2.describe_network_interfaces()["NetworkInterfaces"]),
        "tags": len(ec2.describe_tags()["Tags"]),
    }


@pytest.fixture(scope="module")
def parts(rig):
    """One of each thing, by the parameter that names it."""
    ec2 = rig.ec2
    subnet = ec2.describe_subnets()["Subnets"][0]
    template = ec2.create_launch_template(
        LaunchTemplateName="one", LaunchTemplateData={"InstanceType": "c7i.large"}
    )
    instance = rig.up()
    interface = ec2.create_network_interface(SubnetId=subnet["SubnetId"])["NetworkInterface"]
    return {
        "group": ec2.create_security_group(GroupName="one", Description="one")["GroupId"],
        "template": template["LaunchTemplate"]["LaunchTemplateName"],
        "volume": ec2.describe_volumes()["Volumes"][0]["VolumeId"],
        "interface": interface["NetworkInterfaceId"],
        "instance": instance["InstanceId"],
    }


def calls(ec2, parts):
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}
    fleet = {
        "Type": "instant",
        "LaunchTemplateConfigs": [
            {"LaunchTemplateSpecification": {"LaunchTemplateName": "none-yet", "Version": "$Latest"}}
        ],
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1},
    }
    return [
        (ec2.run_instances, RUN),
        (ec2.create_fleet, fleet),
        (ec2.create_security_group, {"GroupName": "two", "Description": "two"}),
        (
            ec2.create_launch_template,
            {"LaunchTemplateName": "two", "LaunchTemplateData": {"ImageId": UBUNTU}},
        ),
        (ec2.create_tags, {"Resources": [parts["instance"]], "Tags": [{"Key": "a", "Value": "b"}]}),
        (ec2.authorize_security_group_ingress, {"GroupId": parts["group"], "IpPermissions": [rule]}),
        (ec2.revoke_security_group_ingress, {"GroupId": parts["group"], "IpPermissions": [rule]}),
        (ec2.terminate_instances, {"InstanceIds": [parts["instance"]]}),
        (ec2.delete_fleets, {"FleetIds": ["fleet-1"], "TerminateInstances": True}),
        (ec2.delete_launch_template, {"LaunchTemplateName": parts["template"]}),
        (ec2.delete_security_group, {"GroupId": parts["group"]}),
        (ec2.delete_volume, {"VolumeId": parts["volume"]}),
        (ec2.delete_network_interface, {"NetworkInterfaceId": parts["interface"]}),
    ]


def test_a_dry_run_of_a_change_answers_and_changes_nothing(rig, parts):
    before = counts(rig)
    for call, arguments in calls(rig.ec2, parts):
        assert refusal(call, DryRun=True, **arguments) == "DryRunOperation", call.__name__
    assert counts(rig) == before
    assert rig.state(parts["instance"]) == "running"


@pytest.mark.parametrize("code", WRONG)
def test_a_dry_run_of_a_launch_checks_its_parameters(rig, code):
    assert refusal(rig.ec2.run_instances, DryRun=True, **{**RUN, **WRONG[code]}) == code
