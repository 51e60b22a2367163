"""What moto answers wrongly, as EC2 answers it: the tables `refusals` and `members`, and mended actions."""

import http.client
from urllib.parse import urlencode, urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

UNKNOWN = "i-0123456789abcdef0"


@pytest.fixture(scope="module")
def instance(rig):
    return rig.up()


def run(rig, **options):
    image = {"ImageId": "ami-0d1c10cd000002404", "InstanceType": "c7i.large", "MinCount": 1, "MaxCount": 1}
    return rig.ec2.run_instances(**{**image, **options})


TAG = [{"Key": "aws:x", "Value": "1"}]
LARGE = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 70000}}]
REFUSED = {
    "no instance": ("InvalidParameterValue", lambda rig, _: run(rig, MinCount=0)),
    "behavior": (
        "InvalidParameterValue",
        lambda rig, _: run(rig, InstanceInitiatedShutdownBehavior="explode"),
    ),
    "size": ("InvalidParameterValue", lambda rig, _: run(rig, BlockDeviceMappings=LARGE)),
    "address": ("InvalidParameterValue", lambda rig, _: run(rig, PrivateIpAddress="9.9.9.9")),
    "tags of a launch": (
        "InvalidParameterValue",
        lambda rig, _: run(rig, TagSpecifications=[{"ResourceType": "instance", "Tags": TAG}]),
    ),
    "tags": (
        "InvalidParameterValue",
        lambda rig, instance: rig.ec2.create_tags(Resources=[instance["InstanceId"]], Tags=TAG),
    ),
    "unknown resource": (
        "InvalidInstanceID.NotFound",
        lambda rig, _: rig.ec2.create_tags(Resources=[UNKNOWN], Tags=[{"Key": "x", "Value": "1"}]),
    ),
    "zone": (
        "InvalidZone.NotFound",
        lambda rig, _: rig.ec2.create_volume(Size=1, AvailabilityZone="us-east-1z"),
    ),
    "type": (
        "UnknownVolumeType",
        lambda rig, _: rig.ec2.create_volume(Size=1, AvailabilityZone="us-east-1a", VolumeType="zz9"),
    ),
    "region": ("InvalidParameterValue", lambda rig, _: rig.ec2.describe_regions(RegionNames=["xx-east-1"])),
    "filter": (
        "InvalidParameterValue",
        lambda rig, _: rig.ec2.describe_tags(Filters=[{"Name": "nosuch", "Values": ["1"]}]),
    ),
    "subnet in use": (
        "DependencyViolation",
        lambda rig, instance: rig.ec2.delete_subnet(SubnetId=instance["SubnetId"]),
    ),
    "group in use": (
        "DependencyViolation",
        lambda rig, instance: rig.ec2.delete_security_group(GroupId=instance["SecurityGroups"][0]["GroupId"]),
    ),
    "type of a running instance": (
        "IncorrectInstanceState",
        lambda rig, instance: rig.ec2.modify_instance_attribute(
            InstanceId=instance["InstanceId"], InstanceType={"Value": "c7i.xlarge"}
        ),
    ),
    "unknown type": (
        "InvalidInstanceAttributeValue",
        lambda rig, instance: rig.ec2.modify_instance_attribute(
            InstanceId=instance["InstanceId"], InstanceType={"Value": "nosuch.type"}
        ),
    ),
    "key": (
        "InvalidKey.Format",
        lambda rig, _: rig.ec2.import_key_pair(KeyName="bad", PublicKeyMaterial=b"nokey"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ec2_refuses_is_refused(rig, instance, name):
    code, call = REFUSED[name]
    with pytest.raises(ClientError) as caught:
        call(rig, instance)
    assert caught.value.response["Error"]["Code"] == code


def test_tags_are_kept_of_what_exists(rig, instance):
    volume = rig.ec2.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    group = instance["SecurityGroups"][0]["GroupId"]
    names = [instance["InstanceId"], volume, group, instance["SubnetId"], instance["VpcId"]]
    rig.ec2.create_tags(Resources=names, Tags=[{"Key": "kept", "Value": "1"}])
    tags = rig.ec2.describe_tags(Filters=[{"Name": "key", "Values": ["kept"]}])["Tags"]
    assert {tag["ResourceId"] for tag in tags} == set(names)


def test_versions_of_launch_templates_have_a_source_and_are_deleted(rig):
    name = {"LaunchTemplateName": "versions"}
    rig.ec2.create_launch_template(**name, LaunchTemplateData={"InstanceType": "c5.large", "KeyName": "k"})
    for size in ("xlarge", "2xlarge"):
        made = rig.ec2.create_launch_template_version(
            **name, SourceVersion="1", LaunchTemplateData={"InstanceType": f"c5.{size}"}
        )["LaunchTemplateVersion"]
        assert made["LaunchTemplateData"] == {"InstanceType": f"c5.{size}", "KeyName": "k"}
    answer = rig.ec2.delete_launch_template_versions(**name, Versions=["2", "9"])
    assert [v["VersionNumber"] for v in answer["SuccessfullyDeletedLaunchTemplateVersions"]] == [2]
    assert [v["VersionNumber"] for v in answer["UnsuccessfullyDeletedLaunchTemplateVersions"]] == [9]
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        rig.ec2.delete_launch_template_versions(**name, Versions=["1"])
    rig.ec2.create_launch_template_version(**name, LaunchTemplateData={"InstanceType": "c5.metal"})
    versions = rig.ec2.describe_launch_template_versions(**name)["LaunchTemplateVersions"]
    assert sorted(version["VersionNumber"] for version in versions) == [1, 3, 4]


def test_rules_are_answered_all_and_those_that_end_as_well(rig):
    group = rig.ec2.create_security_group(GroupName="rules", Description="x")["GroupId"]
    ports = [
        {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
        for port in (1, 2)
    ]
    made = rig.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=ports)["SecurityGroupRules"]
    assert [(rule["FromPort"], rule["GroupOwnerId"]) for rule in made] == [
        (1, "123456789012"),
        (2, "123456789012"),
    ]
    revoked = rig.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=ports[:1])
    assert [rule["FromPort"] for rule in revoked["RevokedSecurityGroupRules"]] == [1]
    rig.ec2.delete_security_group(GroupId=group)


def test_user_data_of_a_stopped_instance_changes(rig):
    instance_id = rig.up()["InstanceId"]
    rig.ec2.stop_instances(InstanceIds=[instance_id])
    rig.await_state(instance_id, "stopped")
    rig.ec2.modify_instance_attribute(InstanceId=instance_id, UserData={"Value": b"#!/bin/sh\n"})
    data = rig.ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")["UserData"]
    assert data["Value"] == "IyEvYmluL3NoCg=="


def test_attributes_that_moto_leaves_out_are_there(rig, instance):
    ask, name = rig.ec2.describe_instance_attribute, instance["InstanceId"]
    assert ask(InstanceId=name, Attribute="enaSupport")["EnaSupport"] == {"Value": True}
    (device,) = ask(InstanceId=name, Attribute="blockDeviceMapping")["BlockDeviceMappings"]
    assert (device["DeviceName"], device["Ebs"]["Status"]) == ("/dev/sda1", "attached")
    (attribute,) = rig.ec2.describe_account_attributes(AttributeNames=["max-instances"])["AccountAttributes"]
    assert attribute["AttributeName"] == "max-instances"


def test_what_is_made_is_not_there_at_once(rig):
    volume = rig.ec2.create_volume(Size=1, AvailabilityZone="us-east-1a", VolumeType="gp3")
    shown = ("State", "SnapshotId", "MultiAttachEnabled", "Throughput")
    assert [volume[name] for name in shown] == ["creating", "", False, 125]
    (later,) = rig.ec2.describe_volumes(VolumeIds=[volume["VolumeId"]])["Volumes"]
    assert [later[name] for name in shown] == ["available", "", False, 125]
    snapshot = rig.ec2.create_snapshot(VolumeId=volume["VolumeId"])
    assert snapshot["State"] == "pending"
    own = rig.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert [(entry["SnapshotId"], entry["State"]) for entry in own] == [(snapshot["SnapshotId"], "completed")]
    assert rig.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["State"] == "pending"


def test_members_that_ec2_always_sends_are_there(rig, instance):
    assert instance["CpuOptions"] == {"CoreCount": 1, "ThreadsPerCore": 2}
    zone = rig.ec2.describe_availability_zones()["AvailabilityZones"][0]
    assert (zone["OptInStatus"], zone["GroupName"], zone["NetworkBorderGroup"]) == (
        "opt-in-not-required",
        "us-east-1-zg-1",
        "us-east-1",
    )
    filters = [{"Name": "attachment.instance-id", "Values": [instance["InstanceId"]]}]
    (volume,) = rig.ec2.describe_volumes(Filters=filters)["Volumes"]
    assert volume["Attachments"][0]["DeleteOnTermination"] is True
    assert rig.ec2.describe_route_tables()["RouteTables"][0]["PropagatingVgws"] == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_lists_may_be_counted_from_zero(rig, instance, method):
    """Libcloud does."""
    words = {"Action": "CreateTags", "Version": "2016-11-15", "ResourceId.0": instance["InstanceId"]}
    words |= {"Tag.0.Key": "zero", "Tag.0.Value": method, "Tag.1.Key": "one", "Tag.1.Value": method}
    text, url = urlencode(words), rig.endpoint.url
    request = AWSRequest(method, f"{url}/?{text}" if method == "GET" else f"{url}/")
    if method == "POST":
        request.data = text
        request.headers["Content-Type"] = "application/x-www-form-urlencoded"
    key = rig.endpoint.access_key
    SigV4Auth(Credentials(key.key_id, key.secret), "ec2", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    target = f"/?{text}" if method == "GET" else "/"
    connection.request(method, target, body=request.data or None, headers=dict(request.headers))
    assert connection.getresponse().status == 200
    connection.close()
    tags = {tag["Key"]: tag["Value"] for tag in rig.describe(instance["InstanceId"])["Tags"]}
    assert (tags["zero"], tags["one"]) == (method, method)
