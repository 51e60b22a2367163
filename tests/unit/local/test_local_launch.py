"""RunInstances on the local EC2: what it gives, what it refuses, and how what it launched begins and ends."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.instance import boot_timeout_s
from tests.fakes.local_ec2 import UBUNTU, refusal, refused, wait_for

UNKNOWN = "i-0123456789abcdef0"
RUN = {"ImageId": UBUNTU, "InstanceType": "c7i.large", "MinCount": 1, "MaxCount": 1}
AWS_TAG = [{"Key": "aws:x", "Value": "1"}]


def root_disk(**ebs):
    return {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": ebs}]}


def spot(**options):
    return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"UserData": "x" * 16385}, "InvalidParameterValue", "User data is limited to 16384 bytes"),
        ({"InstanceType": "c7g.large"}, "InvalidParameterValue", "does not match the architecture 'x86_64'"),
        ({"ImageId": "ami-nothing"}, "InvalidAMIID.Malformed", ""),
        ({"IamInstanceProfile": {"Name": "none"}}, "InvalidParameterValue", "Instance Profile name"),
        (
            {"IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/none"}},
            "InvalidParameterValue",
            "Instance Profile ARN",
        ),
        ({"InstanceType": "c99.huge"}, "InvalidInstanceType|InvalidParameterValue", ""),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound", ""),
        ({"ImageId": ""}, "MissingParameter", ""),
        ({"KeyName": "missing"}, "InvalidKeyPair.NotFound", ""),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound", ""),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": AWS_TAG}]}, "InvalidParameterValue", ""),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound", ""),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue", ""),
        ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown", ""),
        ({"LaunchTemplate": {"LaunchTemplateName": "none"}}, "InvalidLaunchTemplateName.NotFound.*", ""),
        (root_disk(VolumeSize=4), "InvalidBlockDeviceMapping", "smaller than snapshot"),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {}}]}, "MissingParameter", ""),
        ({"MinCount": 3}, "InvalidParameterValue", "minCount"),
        ({"MinCount": 0}, "InvalidParameterValue", ""),
        (spot(MaxPrice="0.001"), "SpotMaxPriceTooLow", "price of 0.001 is lower than the minimum"),
        (spot(InstanceInterruptionBehavior="stop"), "UnsupportedOperation", ""),
        (spot(SpotInstanceType="persistent"), "UnsupportedOperation", ""),
        ({"CreditSpecification": {"CpuCredits": "standard"}}, "InstanceCreditSpecification.*", ""),
    ],
)
def test_a_launch_is_refused_with_the_code_of_ec2(rig, options, code, text):
    before = len(rig.control.status()["instances"])
    with refused(code, text):
        rig.ec2.run_instances(**{**RUN, **options})
    assert len(rig.control.status()["instances"]) == before


def test_the_most_user_data_and_a_dry_run_are_taken(rig):
    assert rig.run(UserData="#" * 16384)
    with refused("DryRunOperation"):
        rig.run(DryRun=True)
    wrong = {"InvalidAMIID.NotFound": {"ImageId": "ami-0123456789abcdef0"}}
    wrong |= {"InvalidParameterValue": {"InstanceType": "c7g.large"}}
    wrong |= {"InvalidSubnetID.NotFound": {"SubnetId": "subnet-0123456789abcdef0"}}
    for code, options in {**wrong, "InvalidBlockDeviceMapping": root_disk(VolumeSize=1)}.items():
        assert refusal(rig.run, DryRun=True, **options) == code


def counts(ec2):
    groups = ec2.describe_security_groups()["SecurityGroups"]
    return {
        "instances": len(ec2.describe_instances()["Reservations"]),
        "groups": len(groups),
        "rules": sum(len(group["IpPermissions"]) for group in groups),
        "templates": len(ec2.describe_launch_templates()["LaunchTemplates"]),
        "volumes": len(ec2.describe_volumes()["Volumes"]),
        "interfaces": len(ec2.describe_network_interfaces()["NetworkInterfaces"]),
        "tags": len(ec2.describe_tags()["Tags"]),
    }


def test_a_dry_run_of_a_change_answers_and_changes_nothing(rig):
    ec2, instance = rig.ec2, rig.up()
    ids = [instance["InstanceId"]]
    group = ec2.create_security_group(GroupName="one", Description="one")["GroupId"]
    ec2.create_launch_template(LaunchTemplateName="one", LaunchTemplateData={"InstanceType": "c7i.large"})
    interface = ec2.create_network_interface(SubnetId=instance["SubnetId"])["NetworkInterface"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "none-yet", "Version": "$Latest"}}
    target = {"TotalTargetCapacity": 1}
    fleet = {"LaunchTemplateConfigs": [template], "TargetCapacitySpecification": target}
    calls = [
        (ec2.run_instances, RUN),
        (ec2.create_fleet, {"Type": "instant", **fleet}),
        (ec2.create_security_group, {"GroupName": "two", "Description": "two"}),
        (
            ec2.create_launch_template,
            {"LaunchTemplateName": "two", "LaunchTemplateData": {"ImageId": UBUNTU}},
        ),
        (ec2.create_tags, {"Resources": ids, "Tags": [{"Key": "a", "Value": "b"}]}),
        (ec2.authorize_security_group_ingress, {"GroupId": group, "IpPermissions": [rule]}),
        (ec2.revoke_security_group_ingress, {"GroupId": group, "IpPermissions": [rule]}),
        (ec2.terminate_instances, {"InstanceIds": ids}),
        (ec2.delete_fleets, {"FleetIds": ["fleet-1"], "TerminateInstances": True}),
        (ec2.delete_launch_template, {"LaunchTemplateName": "one"}),
        (ec2.delete_security_group, {"GroupId": group}),
        (ec2.delete_volume, {"VolumeId": ec2.describe_volumes()["Volumes"][0]["VolumeId"]}),
        (ec2.delete_network_interface, {"NetworkInterfaceId": interface["NetworkInterfaceId"]}),
    ]
    before = counts(ec2)
    for call, arguments in calls:
        assert refusal(call, DryRun=True, **arguments) == "DryRunOperation", call.__name__
    assert counts(ec2) == before
    assert rig.state(*ids) == "running"


def test_malformed_and_absent_ids_are_distinguished(rig):
    for call in (rig.ec2.describe_instances, rig.ec2.terminate_instances):
        assert refusal(call, InstanceIds=["i-wrong"]) == "InvalidInstanceID.Malformed"
        assert refusal(call, InstanceIds=[UNKNOWN]) == "InvalidInstanceID.NotFound"


def test_tags_are_of_what_exists_and_groups_in_use_are_kept(rig):
    instance, tag = rig.up(), {"Key": "kept", "Value": "1"}
    volume = rig.ec2.describe_volumes()["Volumes"][0]["VolumeId"]
    group = instance["SecurityGroups"][0]["GroupId"]
    ids = [instance["InstanceId"], volume, group, instance["SubnetId"], instance["VpcId"]]
    rig.ec2.create_tags(Resources=ids, Tags=[tag])
    tags = rig.ec2.describe_tags(Filters=[{"Name": "key", "Values": ["kept"]}])["Tags"]
    assert {tag["ResourceId"] for tag in tags} == set(ids)
    assert refusal(rig.ec2.create_tags, Resources=ids, Tags=AWS_TAG) == "InvalidParameterValue"
    assert refusal(rig.ec2.create_tags, Resources=[UNKNOWN], Tags=[tag]) == "InvalidInstanceID.NotFound"
    assert refusal(rig.ec2.delete_security_group, GroupId=group) == "DependencyViolation"


def volumes(rig, instance_id):
    filters = [{"Name": "attachment.instance-id", "Values": [instance_id]}]
    return rig.ec2.describe_volumes(Filters=filters)["Volumes"]


@pytest.mark.parametrize(
    ("mappings", "left"),
    [
        ({"BlockDeviceMappings": []}, []),
        (root_disk(VolumeSize=20), []),
        (root_disk(VolumeSize=20, DeleteOnTermination=False), ["available"]),
    ],
)
def test_a_root_disk_outlives_its_instance_only_where_asked_to(rig, mappings, left):
    instance_id = rig.up(**mappings)["InstanceId"]
    (volume,) = volumes(rig, instance_id)
    rig.end(instance_id)
    shown = [one for one in rig.ec2.describe_volumes()["Volumes"] if one["VolumeId"] == volume["VolumeId"]]
    assert [one["State"] for one in shown] == left


def test_instance_stores_and_further_disks_are_accepted(rig):
    (image,) = rig.ec2.describe_images(ImageIds=[UBUNTU])["Images"]
    (root,) = mappings = image["BlockDeviceMappings"]
    assert root["DeviceName"] == image["RootDeviceName"]
    assert (root["Ebs"].pop("Encrypted"), root["Ebs"]["DeleteOnTermination"]) == (False, True)
    mappings += [{"VirtualName": "ephemeral0", "DeviceName": "/dev/sdb"}]
    mappings += [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 5}}]
    instance = rig.up(BlockDeviceMappings=mappings)
    assert sorted(volume["Size"] for volume in volumes(rig, instance["InstanceId"])) == [5, 8]


def test_a_deep_learning_image_takes_no_volume_below_its_snapshot(rig):
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    (parameter,) = rig.client("ssm").get_parameters(Names=[name])["Parameters"]
    (image,) = rig.ec2.describe_images(ImageIds=[parameter["Value"]])["Images"]
    (root,) = image["BlockDeviceMappings"]
    assert root["Ebs"]["VolumeSize"] == 75
    with refused("InvalidBlockDeviceMapping", "expect size >= 75GB"):
        rig.run(ImageId=image["ImageId"], **root_disk(VolumeSize=50))


def test_every_instance_of_a_launch_has_the_profile(rig):
    iam = rig.client("iam")
    trust = {"Version": "2012-10-17", "Statement": []}
    iam.create_role(RoleName="all", AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(InstanceProfileName="all")
    iam.add_role_to_instance_profile(InstanceProfileName="all", RoleName="all")
    ids = rig.run(3, IamInstanceProfile={"Name": "all"})
    associations = rig.ec2.describe_iam_instance_profile_associations()["IamInstanceProfileAssociations"]
    assert set(ids) <= {association["InstanceId"] for association in associations}


def test_an_instance_is_pending_for_the_boot_delay(rig):
    rig.control.set_boot_delay(600.0)
    [slow] = rig.run()
    assert rig.state(slow) == "pending"
    rig.ec2.terminate_instances(InstanceIds=[slow])
    rig.control.set_boot_delay(1.0)
    began = time.monotonic()
    rig.up()
    assert time.monotonic() - began >= 1.0


def test_a_client_token_makes_one_launch(rig):
    first = rig.run(2, ClientToken="one-launch")
    assert rig.run(2, ClientToken="one-launch") == first
    with refused("IdempotentParameterMismatch"):
        rig.run(1, ClientToken="one-launch")
    with ThreadPoolExecutor(4) as pool:
        launched = list(pool.map(lambda _: tuple(rig.run(ClientToken="race")), range(4)))
    assert len(set(launched)) == 1
    rig.control.add_fault("RunInstances", "VcpuLimitExceeded", times=1)
    with refused("VcpuLimitExceeded"):
        rig.run(ClientToken="again")
    assert rig.run(ClientToken="again"), "a refused launch may be repeated with its token"


def test_max_count_is_honoured_as_far_as_capacity_goes(rig):
    def launch():
        options = {**RUN, "InstanceType": "c7i.xlarge", "MaxCount": 3}
        return [one["InstanceId"] for one in rig.ec2.run_instances(**options)["Instances"]]

    first = launch()
    assert len(first) == 3
    rig.control.set_capacity("c7i.xlarge", 5)
    assert len(launch()) == 2
    with refused("InsufficientInstanceCapacity") as caught:
        launch()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    rig.end(*first[:2])
    assert len(launch()) == 2
    rig.control.set_capacity("c7i.xlarge", None)
    assert len(launch()) == 3


def test_capacity_of_one_zone_sends_launches_to_another(rig):
    rig.control.set_capacity("m7i.large", 0, zone="us-east-1a")
    with refused("InsufficientInstanceCapacity"):
        rig.run(InstanceType="m7i.large", Placement={"AvailabilityZone": "us-east-1a"})
    [instance_id] = rig.run(InstanceType="m7i.large")
    assert rig.describe(instance_id)["Placement"]["AvailabilityZone"] != "us-east-1a"


def test_a_launch_template_is_applied_whole(rig):
    tag = {"Key": "from", "Value": "template"}
    data = {
        "ImageId": UBUNTU,
        "InstanceType": "c7i.large",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "InstanceMarketOptions": {"MarketType": "spot"},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [tag]}],
    }
    rig.ec2.create_launch_template(LaunchTemplateName="whole", LaunchTemplateData=data)
    reply = rig.ec2.run_instances(MinCount=1, MaxCount=1, LaunchTemplate={"LaunchTemplateName": "whole"})
    instance = rig.describe(reply["Instances"][0]["InstanceId"])
    assert (instance["InstanceLifecycle"], instance["MetadataOptions"]["HttpTokens"]) == ("spot", "required")
    assert tag in instance["Tags"]
    behavior = rig.ec2.describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert behavior["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def port_is_open(rig, instance_id):
    entry = rig.entry(instance_id)
    with socket.socket() as client:
        return client.connect_ex((entry["host"], entry["ssh_port"])) == 0


def test_the_time_to_boot_covers_the_slowest_boot_of_every_type():
    """Source: published measurements: metal types 531 to 792 s, others 23 s from running to SSH."""
    for hardware in Catalog():
        measured_s = 792.0 if ".metal" in hardware.name else 23.0
        assert boot_timeout_s(hardware.name) > 1.3 * measured_s


def test_boots_fail_on_demand(rig):
    rig.control.fail_boots("no-key")
    ended = rig.await_state(rig.run()[0], "terminated")
    assert ended["StateReason"]["Code"] == "Client.InternalError"
    rig.control.fail_boots("ends")
    rig.control.fail_boots("silent")
    ended, silent, usual = rig.run(3)
    shown = rig.await_state(ended, "terminated")
    assert shown["StateReason"]["Message"].startswith("Server.InternalError")
    rig.await_state(silent, "running")
    wait_for(lambda: port_is_open(rig, usual), "it answers")
    assert not port_is_open(rig, silent)
    rig.end(silent, usual)


def test_terminating_shows_shutting_down_then_terminated(rig):
    instance_id = rig.up()["InstanceId"]
    reply = rig.ec2.terminate_instances(InstanceIds=[instance_id])
    assert reply["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    ended = rig.await_state(instance_id, "terminated")
    assert ended["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    again = rig.ec2.terminate_instances(InstanceIds=[instance_id])
    assert again["TerminatingInstances"][0]["CurrentState"]["Name"] == "terminated"
    # No program ignored SIGTERM, so nothing waited to be killed.
    assert "after SIGTERM" not in rig.site._paths.log.read_text()


def test_an_instance_that_shuts_down_stops_or_terminates_as_its_launch_says(rig):
    kept, gone = (rig.up(InstanceInitiatedShutdownBehavior=end) for end in ("stop", "terminate"))
    for instance, state, command in ((kept, "stopped", "poweroff"), (gone, "terminated", "shutdown now")):
        rig.on(instance, f"sudo {command}")
        ended = rig.await_state(instance["InstanceId"], state)
        assert ended["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


UNSUPPORTED = {
    "allocate_address": {},
    "attach_volume": {"Device": "/dev/sdf", "InstanceId": UNKNOWN, "VolumeId": "vol-1"},
    "create_ipam": {},
    "create_launch_template_version": {"LaunchTemplateName": "one", "LaunchTemplateData": {}},
    "create_volume": {"AvailabilityZone": "us-east-1a", "Size": 1},
    "describe_fast_launch_images": {},
    "describe_spot_instance_requests": {},
    "purchase_capacity_block": {"CapacityBlockOfferingId": "cb-1", "InstancePlatform": "Linux/UNIX"},
    "register_image": {"Name": "image"},
    "request_spot_instances": {"LaunchSpecification": {}},
    "start_instances": {"InstanceIds": [UNKNOWN]},
    "stop_instances": {"InstanceIds": [UNKNOWN]},
}


def test_what_is_not_supported_is_refused_by_name_and_once(rig):
    for action, arguments in UNSUPPORTED.items():
        rig.control.reset_calls()
        with refused("UnsupportedOperation") as caught:
            getattr(rig.ec2, action)(**arguments)
        assert action.replace("_", "") in str(caught.value).lower()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert sum(rig.control.calls().values()) == 1


def test_sixty_four_instances(rig):
    ids = rig.run(64, InstanceType="c5.large")

    def running():
        reply = rig.ec2.describe_instance_status(InstanceIds=ids)
        return len(reply["InstanceStatuses"]) == 64

    wait_for(running, "64 run", 30.0)
    rig.ec2.terminate_instances(InstanceIds=ids)
    left = {f"{rig.folder}/instances/{instance_id}" for instance_id in ids}
    wait_for(lambda: not left & {e["folder"] for e in rig.control.status()["instances"]}, "64 are gone", 30.0)
