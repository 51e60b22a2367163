"""Up, a command on each, down: at 1, 8, 64 and 256 local instances, beside the floor of the same run.

    python tests/performance/load.py [SIZE ...]

The floor does the same with bare boto3 and paramiko: one RunInstances, one describe at a time until there
are addresses, on 32 threads a login and a wait until first boot has ended, then a command, one
TerminateInstances, a wait until all is gone. It installs nothing, stores nothing, proves no host key. Both
meet the same local EC2, in turn. Without the wait for the end of first boot, the floor's command would
compete with the boots for the processors and seem slow; ours waits for it, as the proof is written then.

Last, one size is run again with a third of all API calls refused as RequestLimitExceeded.

Seconds depend on this machine and its other programs; CPU seconds, of launcher, daemon (EC2's answers and the
SSH servers) and of the instances' own programs, tell where they went.
"""

import contextlib
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

from dlcloud.local.site import LocalEndpoint, LocalSite
from dlcloud.resources.texts import user_data
from dlcloud.ssh.keys import create_key, new_secret
from dlcloud.store.home import Paths

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.fakes.control import control_of

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
SIZES = (1, 8, 64, 256)
THROTTLED_SIZE = 64
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
    """Seconds of each part, API calls in all, the launcher's peak memory in MiB, CPU seconds of all parts."""

    up: float
    command: float
    down: float
    calls: int
    peak_mib: float
    cpu: "Cpu"


@dataclass
class Cpu:
    """CPU seconds: of the launcher, of the daemon, and of the instances' programs that have ended."""

    launcher: float
    daemon: float
    instances: float

    def since(self, before: "Cpu") -> "Cpu":
        """Return what was used since then."""
        return Cpu(
            self.launcher - before.launcher, self.daemon - before.daemon, self.instances - before.instances
        )


def cpu_now(pid: int, usage_of: int) -> Cpu:
    """Return what was used so far, by us or by our children; zeros where the system does not report it."""
    used = resource.getrusage(usage_of)
    launcher = used.ru_utime + used.ru_stime
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Cpu(launcher, 0.0, 0.0)
    own, own_system, ended, ended_system = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in fields[11:15])
    return Cpu(launcher, own + own_system, ended + ended_system)


def main() -> int:
    """Measure and print; returns 1 where throttling broke something."""
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        endpoint = site.start()
        try:
            print("seconds; up includes set-up and a run of `true` on each, which the floor does not have")
            print(f"{'instances':16} {'seconds':>21} {'':6} {'MiB':>18} {'CPU seconds':>28}")
            print(f"{'':16} {'up':>6} {'command':>7} {'down':>6}  calls  launcher   daemon", end="")
            print("  launcher   daemon  instances")
            for count in sizes:
                mine = ours(home, endpoint, count)
                show(count, "ours", mine, endpoint.pid)
                least = floor(home, endpoint, count)
                show(count, "floor", least, endpoint.pid)
                whole, bare = (took.up + took.command + took.down for took in (mine, least))
                print(f"{count:9} ratio  {whole / bare:.2f} of the floor in all, {whole:.1f} s", flush=True)
            return throttled(home, endpoint)
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


def show(count: int, side: str, took: Took, pid: int) -> None:
    """Print a line."""
    cpu = took.cpu
    print(
        f"{count:9} {side:6} {took.up:6.2f} {took.command:7.2f} {took.down:6.2f} {took.calls:6}"
        f" {took.peak_mib:9.0f} {resident_mib(pid):8.0f}"
        f" {cpu.launcher:9.2f} {cpu.daemon:8.2f} {cpu.instances:10.2f}",
        flush=True,
    )


def ours(home: str, endpoint: LocalEndpoint, count: int) -> Took:
    """Do it with the command line."""
    recipe = Path(home, f"load{count}.yaml")
    recipe.write_text(RECIPE.format(count=count))
    control_of(endpoint).reset_calls()
    before = cpu_now(endpoint.pid, resource.RUSAGE_CHILDREN)
    up = command("up", str(recipe), "--keep", "--name", "load", "--yes")
    executed = command("exec", "load", "--output", "json", "--", "true")
    down = command("down", "load")
    return Took(
        up=up,
        command=executed,
        down=down,
        calls=sum(control_of(endpoint).calls().values()),
        peak_mib=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        cpu=cpu_now(endpoint.pid, resource.RUSAGE_CHILDREN).since(before),
    )


def command(*words: str) -> float:
    """Run dlcloud and return its seconds."""
    began = time.monotonic()
    done = subprocess.run([DLCLOUD, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dlcloud {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.monotonic() - began


def floor(home: str, endpoint: LocalEndpoint, count: int) -> Took:
    """Do the least that does it."""
    control, url = control_of(endpoint), endpoint.url
    control.reset_calls()
    before = cpu_now(endpoint.pid, resource.RUSAGE_SELF)
    key_path = Path(home, f"floor-key-{count}")
    text = user_data(public_key=create_key(key_path), secret=new_secret(), life_minutes=60)
    key = paramiko.Ed25519Key.from_private_key_file(str(key_path))
    ec2 = boto3.client(
        "ec2",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=endpoint.access_key.key_id,
        aws_secret_access_key=endpoint.access_key.secret,
    )
    with contextlib.suppress(ec2.exceptions.ClientError):  # the rule is there since an earlier size
        ec2.authorize_security_group_ingress(
            GroupName="default", IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="127.0.0.1/32"
        )
    began = time.monotonic()
    launched = ec2.run_instances(
        ImageId=IMAGE, InstanceType="c5.large", MinCount=count, MaxCount=count, UserData=text
    )
    ids = [instance["InstanceId"] for instance in launched["Instances"]]
    addresses = []
    while len(addresses) < count:
        addresses = [address(instance) for instance in described(ec2, ids) if instance.get("PublicIpAddress")]
    with ThreadPoolExecutor(WIDTH) as pool:
        clients = list(pool.map(lambda where: login(*where, key), addresses))
        list(pool.map(lambda client: run(client, "cloud-init status --wait"), clients))
        up = time.monotonic()
        list(pool.map(lambda client: run(client, "true"), clients))
    ran = time.monotonic()
    for client in clients:
        client.close()
    ec2.terminate_instances(InstanceIds=ids)
    while any(instance["State"]["Name"] != "terminated" for instance in described(ec2, ids)):
        time.sleep(0.25)
    down = time.monotonic()
    return Took(
        up=up - began,
        command=ran - up,
        down=down - ran,
        calls=sum(control.calls().values()),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        cpu=cpu_now(endpoint.pid, resource.RUSAGE_SELF).since(before),
    )


def described(ec2, ids: list[str]) -> list[dict]:
    """Return the descriptions of instances."""
    pages = ec2.get_paginator("describe_instances").paginate(Filters=[{"Name": "instance-id", "Values": ids}])
    return [instance for page in pages for group in page["Reservations"] for instance in group["Instances"]]


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


def run(client: paramiko.SSHClient, command: str) -> None:
    """Run a command to its end."""
    _, stdout, _ = client.exec_command(command)
    stdout.channel.recv_exit_status()


def throttled(home: str, endpoint: LocalEndpoint) -> int:
    """Run one size with a third of all calls refused, and check that nothing is left."""
    control_of(endpoint).add_fault("*", "RequestLimitExceeded", rate=1 / 3, status=503)
    took = ours(home, endpoint, THROTTLED_SIZE)
    control_of(endpoint).clear_faults()
    show(THROTTLED_SIZE, "1/3 no", took, endpoint.pid)
    left = control_of(endpoint).status()["instances"]
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
