"""A running local EC2 as a test drives it: over its API, its control page, SSH and the metadata service."""

import contextlib
import io
import os
import time
import urllib.error
import urllib.request

import boto3
import paramiko
import psutil
from botocore.config import Config
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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

    def client(self, service, region="us-east-1", **config):
        return boto3.client(
            service,
            endpoint_url=self.endpoint.url,
            region_name=region,
            aws_access_key_id=self.endpoint.access_key.key_id,
            aws_secret_access_key=self.endpoint.access_key.secret,
            config=Config(retries={"total_max_attempts": 1}, **config),
        )

    def allow_ssh(self, ec2, cidr="127.0.0.1/32"):
        """Let a network reach port 22 of the instances in a region's default group."""
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": cidr}
        with contextlib.suppress(ec2.exceptions.ClientError):  # a second rig of the same site
            ec2.authorize_security_group_ingress(GroupName="default", **rule)

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
