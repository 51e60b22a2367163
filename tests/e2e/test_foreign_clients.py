"""Clients of EC2 that are not ours, end to end: the AWS CLI, boto3's resources, waiters, and ec2-metadata."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import UBUNTU, Rig, wait_for
from tests.prefork import Daemons

SPOT_FLEET = "IamFleetRole=arn:aws:iam::123456789012:role/fleet,TargetCapacity=1"

AWS = Path(sys.executable).with_name("aws")


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """A local EC2 whose instances see this machine's files, as they run clients that are installed here."""
    site = LocalSite(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLCLOUD_LOCAL_ISOLATION", "none")
        endpoint = Daemons.of_this_process().start(site)
    yield Rig(site, endpoint)
    site.stop()


@pytest.fixture(scope="module")
def aws(rig, tmp_path_factory):
    """The AWS CLI as its user has it after pasting what `dlcloud local start` prints."""
    home = tmp_path_factory.mktemp("home")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "AWS_PAGER": "", **rig.endpoint.environment()}

    def run(*words, ok=True):
        done = subprocess.run([AWS, *words], env=env, capture_output=True, text=True, check=False, cwd=home)
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return json.loads(done.stdout or "null") if ok else done.stderr

    run.home = home
    return run


@pytest.fixture(scope="module")
def aws_s3(rig, aws):
    """The AWS CLI's `s3` commands, whose output is text."""
    env = {"PATH": os.environ["PATH"], "HOME": str(aws.home), **rig.endpoint.environment()}

    def run(*words):
        done = subprocess.run([AWS, "s3", *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def ec2(rig):
    variables = rig.endpoint.environment()
    session = boto3.Session(
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_DEFAULT_REGION"],
    )
    return session.resource("ec2", endpoint_url=variables["AWS_ENDPOINT_URL"])


def ids_of(described):
    return [i["InstanceId"] for entry in described["Reservations"] for i in entry["Instances"]]


@pytest.mark.long
def test_the_aws_command_from_key_to_terminated(rig, aws):
    public = aws.home / "key.pub"
    public.write_text(rig.public_key, encoding="utf-8")
    aws("ec2", "import-key-pair", "--key-name", "cli", "--public-key-material", f"fileb://{public}")
    data = aws.home / "user-data"
    data.write_text("#!/bin/sh\necho hello from the boot\n", encoding="utf-8")
    run = ["run-instances", "--image-id", UBUNTU, "--instance-type", "c5.large", "--key-name", "cli"]
    tags = "ResourceType=instance,Tags=[{Key=Name,Value=cli}]"
    more = ["--count", "6", "--user-data", f"file://{data}", "--tag-specifications", tags]
    launched = [entry["InstanceId"] for entry in aws("ec2", *run, *more)["Instances"]]
    named = ["--filters", "Name=tag:Name,Values=c?i", "Name=instance-type,Values=c5.*"]
    # The CLI's waiters poll every 15 s: by now all of them run.
    wait_for(lambda: all(rig.state(name) == "running" for name in launched), "all run")
    aws("ec2", "wait", "instance-running", "--instance-ids", *launched)
    aws("ec2", "wait", "instance-status-ok", "--instance-ids", *launched)
    assert sorted(ids_of(aws("ec2", "describe-instances", *named, "--page-size", "5"))) == sorted(launched)
    page = aws("ec2", "describe-instances", *named, "--max-results", "5")
    assert (len(ids_of(page)), bool(page["NextToken"])) == (5, True)
    [first, *_] = launched
    wait_for(lambda: "hello" in console_of(aws, first), "the console shows the boot")
    instance = rig.describe(first)
    assert rig.on(instance, "whoami > /dev/null; echo in")[1] == "in\n"
    aws("ec2", "terminate-instances", "--instance-ids", *launched)
    wait_for(lambda: all(rig.state(name) == "terminated" for name in launched), "all have ended")
    aws("ec2", "wait", "instance-terminated", "--instance-ids", *launched)


def console_of(aws, instance_id):
    return aws("ec2", "get-console-output", "--instance-id", instance_id, "--latest")["Output"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["describe-instances", "--filters", "Name=none,Values=1"], "UnsupportedOperation"),
        (["describe-instances", "--instance-ids", "i-1"], "InvalidInstanceID.Malformed"),
        (["describe-instances", "--max-results", "2"], "InvalidParameterValue"),
        (["run-instances", "--image-id", UBUNTU, "--instance-type", "c7g.large"], "InvalidParameterValue"),
        (["allocate-address"], "UnsupportedOperation"),
        (["request-spot-fleet", "--spot-fleet-request-config", SPOT_FLEET], "UnsupportedOperation"),
    ],
)
def test_the_aws_command_shows_the_errors_of_ec2(aws, words, code):
    assert f"({code})" in aws("ec2", *words, ok=False)


@pytest.mark.long
def test_resources_and_waiters_of_boto3(rig, ec2):
    key_pair = ec2.create_key_pair(KeyName="resources", KeyType="ed25519")
    assert "PRIVATE KEY" in key_pair.key_material
    group = ec2.create_security_group(GroupName="resources", Description="ssh")
    group.authorize_ingress(IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="127.0.0.1/32")
    [instance] = ec2.create_instances(
        ImageId=UBUNTU,
        InstanceType="c5.large",
        MinCount=1,
        MaxCount=1,
        KeyName="resources",
        SecurityGroupIds=[group.id],
        UserData=rig.user_data(),
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 16}}],
    )
    rig.await_state(instance.id, "running")
    instance.wait_until_running()
    instance.reload()
    assert instance.security_groups == [{"GroupId": group.id, "GroupName": "resources"}]
    assert [volume.size for volume in instance.volumes.all()] == [16]
    wait_for(lambda: "status: done" in instance.console_output().get("Output", ""), "the boot is over")
    tagged = instance.create_tags(Tags=[{"Key": "Name", "Value": "resource"}])
    assert [tag.key for tag in tagged] == ["Name"]
    found = ec2.instances.filter(Filters=[{"Name": "tag:Name", "Values": ["resource"]}])
    assert [one.id for one in found] == [instance.id]
    assert instance.vpc.id == ec2.Subnet(instance.subnet_id).vpc_id
    volume_ids = [volume.id for volume in instance.volumes.all()]
    instance.terminate()
    rig.await_state(instance.id, "terminated")
    instance.wait_until_terminated()
    assert not [volume for volume in ec2.volumes.all() if volume.id in volume_ids]
    group.delete()
    key_pair.delete()


@pytest.mark.long
def test_a_launch_by_a_template_and_pages_of_types(rig, ec2):
    client = ec2.meta.client
    data = {
        "ImageId": UBUNTU,
        "InstanceType": "c5.large",
        "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
    }
    client.create_launch_template(LaunchTemplateName="foreign", LaunchTemplateData=data)
    [instance] = ec2.create_instances(
        LaunchTemplate={"LaunchTemplateName": "foreign"}, MinCount=1, MaxCount=1
    )
    rig.await_state(instance.id, "running")
    pages = client.get_paginator("describe_instance_types").paginate()
    sizes = [len(page["InstanceTypes"]) for page in pages]
    assert len(sizes) > 5
    assert max(sizes) == 100
    with pytest.raises(ClientError, match="DryRunOperation"):
        instance.terminate(DryRun=True)
    instance.terminate()


def test_ec2_metadata_on_an_instance(rig, tmp_path):
    ec2_metadata = pytest.importorskip("ec2_metadata")
    instance = rig.up(MetadataOptions={"InstanceMetadataTags": "enabled"})
    program = tmp_path / "read.py"
    program.write_text(READER, encoding="utf-8")
    # The package is this machine's; the process is the instance's.
    path = f"{Path(ec2_metadata.__file__).parents[1]}"
    status, out, err = rig.on(instance, f"PYTHONPATH={path} {sys.executable} {program}")
    assert status == 0, err
    shown = json.loads(out)
    assert shown["instance_id"] == instance["InstanceId"]
    assert shown["mac"] == instance["NetworkInterfaces"][0]["MacAddress"]
    assert shown["region"] == "us-east-1"
    assert "dlcloud:ssh-port" in shown["tags"]


READER = """
import json, os
import urllib3
from ec2_metadata import EC2Metadata

class Redirected(urllib3.PoolManager):
    def request(self, method, url, *arguments, **options):
        url = url.replace("http://169.254.169.254", os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"])
        return super().request(method, url, *arguments, **options)

metadata = EC2Metadata(Redirected())
names = ("instance_id", "mac", "region", "reservation_id", "security_groups", "domain")
print(json.dumps({name: getattr(metadata, name) for name in names} | {"tags": list(metadata.tags)}))
"""


def make_profile(rig, name, *statements):
    """Make an instance profile whose role has these statements; return its name."""
    iam = rig.client("iam")
    trust = {"Version": "2012-10-17", "Statement": []}
    document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
    iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=document)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return name


@pytest.mark.long
def test_an_instance_asks_ec2_with_its_role(rig):
    allow = {"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}
    instance = rig.up(IamInstanceProfile={"Name": make_profile(rig, "reader", allow)})
    # Credentials and region come from the metadata service, as on EC2.
    describe = f"{AWS} --endpoint-url {rig.endpoint.url} --region us-east-1 ec2 describe-instances"
    status, out, err = rig.on(instance, f"{describe} --instance-ids {instance['InstanceId']} --output json")
    assert status == 0, err
    assert ids_of(json.loads(out)) == [instance["InstanceId"]]


@pytest.mark.long
def test_the_aws_command_copies_and_syncs_a_bucket(aws_s3, tmp_path):
    folder, copy = tmp_path / "data", tmp_path / "copy"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "small").write_bytes(b"small")
    (folder / "large").write_bytes(os.urandom(9 * 1024 * 1024))  # above 8 MB, it goes in parts
    aws_s3("mb", "s3://cli-data")
    assert "cli-data" in aws_s3("ls")
    aws_s3("sync", str(folder), "s3://cli-data/set")
    assert "deep/small" in aws_s3("ls", "--recursive", "s3://cli-data/set/")
    aws_s3("sync", "s3://cli-data/set", str(copy))
    assert (copy / "large").read_bytes() == (folder / "large").read_bytes()
    assert aws_s3("sync", "s3://cli-data/set", str(copy)) == ""
    assert aws_s3("cp", "s3://cli-data/set/deep/small", "-") == "small"
    aws_s3("mv", "s3://cli-data/set/deep/small", "s3://cli-data/other")
    aws_s3("rb", "--force", "s3://cli-data")
    assert "cli-data" not in aws_s3("ls")


@pytest.mark.long
def test_an_instance_reads_a_bucket_with_its_role(rig):
    s3 = rig.client("s3")
    s3.create_bucket(Bucket="for-role")
    s3.put_object(Bucket="for-role", Key="in/a", Body=b"from the bucket")
    allow = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::for-role/in/*"}
    instance = rig.up(IamInstanceProfile={"Name": make_profile(rig, "bucket", allow)})
    command = f"{AWS} --endpoint-url {rig.endpoint.url} --region us-east-1 s3 cp"
    status, out, err = rig.on(instance, f"{command} s3://for-role/in/a -")
    assert (status, out) == (0, "from the bucket"), err
    status, _, err = rig.on(instance, f"echo x | {command} - s3://for-role/in/b")
    assert status != 0
    assert "s3:PutObject" in err


CLIENTS = Path(os.environ.get("DLCLOUD_TEST_CLIENTS") or "/nonexistent") / "bin"
BUCKETS = """
import pandas, s3fs
files = s3fs.S3FileSystem()
files.mkdir("tables")
frame = pandas.DataFrame({"x": range(1000), "y": [f"row {i}" for i in range(1000)]})
frame.to_csv("s3://tables/a/frame.csv", index=False)
assert pandas.read_csv("s3://tables/a/frame.csv").equals(frame)
with files.open("tables/large", "wb", block_size=5 << 20) as stream:
    for _ in range(12):
        stream.write(bytes(1 << 20))
assert files.info("tables/large")["size"] == 12 << 20
assert files.ls("tables") == ["tables/a", "tables/large"]
files.rm("tables", recursive=True)
"""


@pytest.mark.skipif(not (CLIENTS / "python").exists(), reason="DLCLOUD_TEST_CLIENTS names no environment")
def test_pandas_and_s3fs_write_and_read_buckets(rig, tmp_path):
    """They need a botocore of their own: `.ci/run` makes an environment, and names it where CI is set."""
    environ = {"PATH": f"{CLIENTS}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environ |= {**rig.endpoint.environment(), "TMPDIR": str(tmp_path)}
    (tmp_path / "program.py").write_text(BUCKETS)
    command = [CLIENTS / "python", "program.py"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
