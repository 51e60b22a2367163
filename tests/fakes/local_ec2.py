"""A running local EC2 as a test drives it: over its API, its control page, SSH and the metadata service."""

import contextlib
import http.client
import io
import json
import os
import secrets
import time
import urllib.error
import urllib.request

import boto3
import paramiko
import psutil
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dlcloud.cloud.api.clients import Clients
from tests.fakes.control import control_of

UBUNTU = "ami-0d1c10cd000002404"
# Reached by a test that fails only: no figure for how fast a machine is.
WAIT_S = 600.0


def wait_for(check, goal, limit_s=WAIT_S):
    """Poll until `check` returns a true value, and return it; between, leave the processor to others."""
    began = time.monotonic()
    deadline = began + limit_s
    while not (value := check()):
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {limit_s} s: {goal}")
        time.sleep(min(1.0, max(0.02, 2 * (now - began))))
        began = time.monotonic()
    return value


def refused(code, text=""):
    """Expect a refusal of EC2 with a code, and with a text in its message."""
    return pytest.raises(ClientError, match=rf"\({code}\).*{text}")


def refusal(call, *arguments, **options):
    """Return the code that a call is refused with."""
    with pytest.raises(ClientError) as caught:
        call(*arguments, **options)
    return caught.value.response["Error"]["Code"]


def processes_of(roots):
    """Return the processes with one of these instance folders in their environment, or that work below it."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            folder = process.cwd()
            is_below = any(folder == root or folder.startswith(f"{root}/") for root in roots)
            if is_below or process.environ().get("DLCLOUD_ROOT") in roots:
                found.add(process.pid)
    return found - {os.getpid()}


class Rig:
    """One running local EC2, with shortcuts for tests."""

    def __init__(self, site, endpoint):
        self.site = site
        self.endpoint = endpoint
        self.control = control_of(endpoint)
        self.key = Ed25519PrivateKey.generate()
        self.ec2 = self.client("ec2")
        self.allow_ssh(self.ec2)

    def client(self, service, region="us-east-1", *, key=None, **config):
        """Return a client of the account's owner, or of a key: its id, its secret and a session's token."""
        key_id, secret, *token = key or self.endpoint.owner_key()
        return boto3.client(
            service,
            endpoint_url=self.endpoint.url,
            region_name=region,
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
            aws_session_token=token[0] if token else None,
            config=Config(**{"retries": {"total_max_attempts": 1}, **config}),
        )

    def clients(self, region="us-east-1", *, key=None, **options):
        """Return the clients of dlcloud."""
        key = key or self.endpoint.owner_key()
        return Clients(region=region, endpoint_url=self.endpoint.url, access_key=key, **options)

    def user(self, *statements):
        """Make a user with a policy of these statements; return the key's id and secret."""
        iam, name = self.client("iam"), f"user-{secrets.token_hex(4)}"
        iam.create_user(UserName=name)
        document = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=document)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def fleet(self, template, overrides=(), target=1, *, market="on-demand", ec2=None, **more):
        """Ask for a fleet of type instant, of a template's name or of what it is to contain."""
        if not isinstance(template, str):
            name = f"template-{secrets.token_hex(4)}"
            self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=template)
            template = name
        specification = {"LaunchTemplateName": template, "Version": "$Latest"}
        config = {"LaunchTemplateSpecification": specification, "Overrides": list(overrides)}
        return (ec2 or self.ec2).create_fleet(
            Type="instant",
            LaunchTemplateConfigs=[config],
            TargetCapacitySpecification={"TotalTargetCapacity": target, "DefaultTargetCapacityType": market},
            **more,
        )

    def allow_ssh(self, ec2, cidr="127.0.0.1/32"):
        """Let a network reach port 22 of the instances in a region's default group."""
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": cidr}
        with contextlib.suppress(ec2.exceptions.ClientError):  # a second rig of the same site
            ec2.authorize_security_group_ingress(GroupName="default", **rule)

    def send(self, path, *, method="GET", body=b"", headers=None, key=None, service="s3", auth=S3SigV4Auth):
        """Send a request that is signed by an id and a secret: (status, text)."""
        address = self.endpoint.url.removeprefix("http://")
        headers = {"Host": address, **(headers or {})}
        request = AWSRequest(method, self.endpoint.url + path, headers, body)
        auth(Credentials(*(key or self.endpoint.owner_key())), service, "us-east-1").add_auth(request)
        with contextlib.closing(http.client.HTTPConnection(address, timeout=600)) as connection:
            connection.request(method, path, body, dict(request.headers))
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    @property
    def private_key(self):
        text = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        return paramiko.Ed25519Key.from_private_key(io.StringIO(text.decode()))

    @property
    def public_key(self):
        return f"ssh-ed25519 {self.private_key.get_base64()}"

    def user_data(self, more=""):
        return f"#cloud-config\nssh_authorized_keys:\n  - {self.public_key}\n{more}"

    def run(self, count=1, **options):
        options = {"ImageId": UBUNTU, "InstanceType": "c7i.large", "UserData": self.user_data(), **options}
        reply = self.ec2.run_instances(MinCount=count, MaxCount=count, **options)
        return [instance["InstanceId"] for instance in reply["Instances"]]

    def describe(self, instance_id):
        reply = self.ec2.describe_instances(InstanceIds=[instance_id])
        return reply["Reservations"][0]["Instances"][0]

    def state(self, instance_id):
        return self.describe(instance_id)["State"]["Name"]

    def await_state(self, instance_id, state):
        wait_for(lambda: self.state(instance_id) == state, f"{instance_id} is {state}")
        return self.describe(instance_id)

    def up(self, **options):
        """Launch one instance and return its description once it runs."""
        return self.await_state(self.run(**options)[0], "running")

    def end(self, *instance_ids):
        """Terminate instances, and wait until they are."""
        self.ec2.terminate_instances(InstanceIds=list(instance_ids))
        for instance_id in instance_ids:
            self.await_state(instance_id, "terminated")

    def console(self, instance_id):
        return self.ec2.get_console_output(InstanceId=instance_id).get("Output", "")

    def entry(self, instance_id):
        return next(e for e in self.control.status()["instances"] if e["instance_id"] == instance_id)

    @contextlib.contextmanager
    def ssh(self, instance, user="ubuntu"):
        port = next(int(tag["Value"]) for tag in instance["Tags"] if tag["Key"] == "dlcloud:ssh-port")
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(
            instance["PublicIpAddress"],
            port,
            user,
            pkey=self.private_key,
            allow_agent=False,
            look_for_keys=False,
        )
        try:
            yield client
        finally:
            client.close()

    def on(self, instance, command, stdin=b"", *, user="ubuntu"):
        """Run a command on an instance: (exit status, stdout, stderr)."""
        with self.ssh(instance, user) as client:
            feed, out, err = client.exec_command(command)
            feed.write(stdin)
            feed.channel.shutdown_write()
            return out.channel.recv_exit_status(), out.read().decode(), err.read().decode()

    def metadata(self, instance, path, *, method="GET", headers=None):
        """Ask the metadata service: (status, text)."""
        entry = self.entry(instance["InstanceId"])
        url = f"http://{entry['host']}:{entry['metadata_port']}/{path}"
        request = urllib.request.Request(url, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metadata_v2(self, instance, path):
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        _, token = self.metadata(instance, "latest/api/token", method="PUT", headers=ttl)
        return self.metadata(instance, path, headers={"X-aws-ec2-metadata-token": token})
