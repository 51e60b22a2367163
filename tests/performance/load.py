"""Up, a command on each, down: at 1, 8, 64 and 256 local instances, beside the floor of the same run.

    python tests/performance/load.py [SIZE ...]

The floor does the same with bare boto3 and paramiko: one RunInstances, one describe at a time until there
are addresses, a login and a command on 32 threads, one TerminateInstances, a wait until all is gone. It
installs nothing, stores nothing, proves no host key. Both meet the same local EC2, in turn. Last, one size is
run again with a third of all API calls refused as RequestLimitExceeded.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import boto3
import paramiko

from dlcloud.local.control import ControlClient
from dlcloud.local.site import LocalSite
from dlcloud.resources.texts import user_data
from dlcloud.ssh.hostproof import new_secret
from dlcloud.ssh.keys import create_key
from dlcloud.store.paths import Paths

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
SIZES = (1, 8, 64, 256)
THROTTLED_SIZE = 8
WIDTH = 32
IMAGE = "ami-0d1c10cd000002404"
RECIPE = """
name: load{count}
cloud: local
instances: {{types: [c5.large], count: {count}}}
workload: {{command: "true", repeats: 1}}
"""


@dataclass
class Took:
    """Seconds of each part, API calls in all, and the launcher's peak memory in MiB."""

    up: float
    each: float
    down: float
    calls: int
    peak_mib: float


def main() -> int:
    """Measure and print; returns 1 where throttling broke something."""
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        endpoint = site.start()
        try:
            print("seconds; up includes set-up and a run of `true` on each, which the floor does not have")
            print("instances         up   each   down  calls  launcher MiB  daemon MiB")
            for count in sizes:
                show(count, "ours", ours(home, endpoint.control, count), endpoint.pid)
                show(count, "floor", floor(home, endpoint.url, endpoint.control, count), endpoint.pid)
            return throttled(home, endpoint.control, endpoint.pid)
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


def show(count: int, who: str, took: Took, pid: int) -> None:
    """Print a line."""
    print(
        f"{count:9} {who:6} {took.up:6.2f} {took.each:6.2f} {took.down:6.2f} {took.calls:6}"
        f" {took.peak_mib:13.0f} {resident_mib(pid):11.0f}",
        flush=True,
    )


def ours(home: str, control: ControlClient, count: int) -> Took:
    """Do it with the command line."""
    recipe = Path(home, f"load{count}.yaml")
    recipe.write_text(RECIPE.format(count=count))
    control.reset_calls()
    up = command("up", str(recipe), "--keep", "--name", "load", "--yes")
    each = command("exec", "load", "--output", "json", "--", "true")
    down = command("down", "load")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Took(up=up, each=each, down=down, calls=sum(control.calls().values()), peak_mib=peak)


def command(*words: str) -> float:
    """Run dlcloud and return its seconds."""
    began = time.monotonic()
    done = subprocess.run([DLCLOUD, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dlcloud {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.monotonic() - began


def floor(home: str, url: str, control: ControlClient, count: int) -> Took:
    """Do the least that does it."""
    control.reset_calls()
    key_path = Path(home, f"floor-key-{count}")
    text = user_data(public_key=create_key(key_path), secret=new_secret(), life_minutes=60)
    key = paramiko.Ed25519Key.from_private_key_file(str(key_path))
    ec2 = boto3.client(
        "ec2", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    began = time.monotonic()
    launched = ec2.run_instances(
        ImageId=IMAGE, InstanceType="c5.large", MinCount=count, MaxCount=count, UserData=text
    )
    ids = [each["InstanceId"] for each in launched["Instances"]]
    addresses = []
    while len(addresses) < count:
        addresses = [address(each) for each in described(ec2, ids) if each.get("PublicIpAddress")]
    with ThreadPoolExecutor(WIDTH) as pool:
        clients = list(pool.map(lambda where: login(*where, key), addresses))
        up = time.monotonic()
        list(pool.map(run_true, clients))
    each = time.monotonic()
    for client in clients:
        client.close()
    ec2.terminate_instances(InstanceIds=ids)
    while any(instance["State"]["Name"] != "terminated" for instance in described(ec2, ids)):
        time.sleep(0.25)
    down = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Took(
        up=up - began,
        each=each - up,
        down=down - each,
        calls=sum(control.calls().values()),
        peak_mib=peak,
    )


def described(ec2, ids: list[str]) -> list[dict]:
    """Return what EC2 tells of instances."""
    pages = ec2.get_paginator("describe_instances").paginate(Filters=[{"Name": "instance-id", "Values": ids}])
    return [each for page in pages for group in page["Reservations"] for each in group["Instances"]]


def address(instance: dict) -> tuple[str, int]:
    """Return where an instance's SSH server answers."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    return instance["PublicIpAddress"], int(tags.get("dlcloud:ssh-port", 22))


def login(host: str, port: int, key: paramiko.PKey) -> paramiko.SSHClient:
    """Log in as soon as the server answers."""
    deadline = time.monotonic() + 120
    while True:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        try:
            client.connect(host, port, "ubuntu", pkey=key, allow_agent=False, look_for_keys=False)
        except (OSError, paramiko.SSHException):
            client.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return client


def run_true(client: paramiko.SSHClient) -> None:
    """Run a command to its end."""
    _, stdout, _ = client.exec_command("true")
    stdout.channel.recv_exit_status()


def throttled(home: str, control: ControlClient, pid: int) -> int:
    """Run one size with a third of all calls refused, and check that nothing is left."""
    control.add_fault("*", "RequestLimitExceeded", rate=1 / 3, status=503)
    took = ours(home, control, THROTTLED_SIZE)
    control.clear_faults()
    show(THROTTLED_SIZE, "1/3 no", took, pid)
    left = control.status()["instances"]
    print(f"throttled: everything ended well, {len(left)} instances left" if not left else f"LEFT: {left}")
    return 1 if left else 0


def resident_mib(pid: int) -> float:
    """Return the memory of the local EC2's process; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


if __name__ == "__main__":
    sys.exit(main())
