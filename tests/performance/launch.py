"""What a launch costs: API calls and round trips of `up` until the first SSH command; SSH beside its floor.

On a warm account (the price table is bundled on the local EC2). Round trips are found by making each API call
take three seconds longer: what `up` then takes longer is the number of calls in series. The floor of SSH is a
raw paramiko loop over as many threads and connections, in turn with ours, in the same run.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
from pairs import compare, heading

from dlcloud.app.context import SystemClock
from dlcloud.local.site import LocalSite
from dlcloud.model.remote import Endpoint
from dlcloud.ssh.dial import Dialer
from dlcloud.store.home import Paths
from dlcloud.system.parallel import all_or_raise, fan_out

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.fakes.control import HarnessControl, control_of

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
SIZES = (1, 4, 16, 64)
WIDTH = 32
RECIPE = """
name: size{count}
cloud: local
instances: {{types: [c5.large], count: {count}}}
workload: {{command: sleep 2, repeats: 1}}
"""
REACHED = "proving their host keys"
SLOW_S = 3.0
MOST_CALLS, MOST_ROUND_TRIPS = 8, 4
"""Of a launch that EC2 allowed within the last hour; another makes two dry runs in the same round trips."""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        control = control_of(site.start())
        try:
            print(f"API calls of up until the first SSH command, goal: {MOST_CALLS} in {MOST_ROUND_TRIPS}")
            for count in SIZES:
                report(home, control, count)
            ssh_beside_its_floor(home)
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


def report(home: str, control: HarnessControl, count: int) -> None:
    """Print the calls and round trips of one size."""
    took = {}
    for latency_s in (0.0, SLOW_S, 0.15):
        control.set_latency(latency_s)
        took[latency_s], calls = reach(home, control, count)
    control.set_latency(0)
    round_trips = (took[SLOW_S] - took[0.0]) / SLOW_S
    met = sum(calls.values()) <= MOST_CALLS and round(round_trips) <= MOST_ROUND_TRIPS
    listed = ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))
    print(
        f"{count:4} instances: {sum(calls.values())} calls in {round_trips:.1f} round trips,"
        f" {'met' if met else 'MISSED'}; {took[0.15]:.2f} s at 150 ms a call, {took[0.0]:.2f} s at none"
        f" ({listed})"
    )
    sys.stdout.flush()


def reach(home: str, control: HarnessControl, count: int) -> tuple[float, dict[str, int]]:
    """Run `up` and return the seconds from its first call to its first SSH command, and the calls made."""
    recipe = Path(home, f"size{count}.yaml")
    recipe.write_text(RECIPE.format(count=count))
    control.reset_calls()
    process = subprocess.Popen(
        [DLCLOUD, "up", str(recipe)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    started = ended = 0.0
    for line in process.stderr:
        if not started:
            started = time.perf_counter()
        if REACHED in line and "done in" in line:
            ended = time.perf_counter()
            calls = dict(control.calls())
            break
    process.send_signal(signal.SIGINT)  # the calls are counted: it cleans up
    process.stderr.read()
    process.wait()
    if not ended:
        sys.exit(f"up failed with {process.returncode}")
    return ended - started, calls


def ssh_beside_its_floor(home: str) -> None:
    """Print the ratio of a command on each of 64 instances, cold and pooled, to the floor."""
    recipe = Path(home, "size64.yaml")
    subprocess.run([DLCLOUD, "up", str(recipe), "--keep", "--name", "all"], check=True, capture_output=True)
    status = subprocess.run([DLCLOUD, "status", "-o", "json"], check=True, capture_output=True, text=True)
    records = json.loads(status.stdout)["result"]["records"]
    cluster = records[0]["cluster_id"]
    endpoints = [
        Endpoint(instance_id=record["instance_id"], host=record["host"], port=record["ssh_port"])
        for record in records
    ]
    paths = Paths(Path(home))
    key = paramiko.Ed25519Key.from_private_key_file(str(paths.key(cluster)))
    print(
        f"a command on each of {len(endpoints)} instances, beside raw paramiko on {WIDTH} threads (goal: 2)"
    )
    heading()
    compare(
        "cold: connect and run",
        lambda: ours_cold(paths, cluster, endpoints),
        lambda: raw_cold(key, endpoints),
        goal=2.0,
        pairs=7,
    )
    dialer = dialer_of(paths, cluster)
    transports = connect_all(key, endpoints)
    compare(
        "warm: over pooled connections",
        lambda: ours_warm(dialer, endpoints),
        lambda: raw_warm(transports),
        goal=2.0,
        pairs=15,
    )
    dialer.close()
    for transport in transports:
        transport.close()


def dialer_of(paths: Paths, cluster: str) -> Dialer:
    """Return our own way to connect."""
    return Dialer(
        key_path=paths.key(cluster),
        known_hosts=paths.known_hosts(cluster),
        secret=lambda _: None,
        clock=SystemClock(),
    )


def ours_warm(dialer: Dialer, endpoints: list[Endpoint]) -> float:
    """Run a command everywhere, by our own means."""
    started = time.perf_counter()
    all_or_raise(fan_out(lambda endpoint: dialer.dial(endpoint).check("true"), endpoints, width=WIDTH))
    return time.perf_counter() - started


def ours_cold(paths: Paths, cluster: str, endpoints: list[Endpoint]) -> float:
    """Connect, then run a command everywhere, by our own means."""
    dialer = dialer_of(paths, cluster)
    took = ours_warm(dialer, endpoints)
    dialer.close()
    return took


def raw_warm(transports: list[paramiko.Transport]) -> float:
    """Run a command over bare transports."""
    started = time.perf_counter()
    with ThreadPoolExecutor(WIDTH) as pool:
        list(pool.map(execute, transports))
    return time.perf_counter() - started


def raw_cold(key: paramiko.PKey, endpoints: list[Endpoint]) -> float:
    """Connect bare transports and run a command over each."""
    started = time.perf_counter()
    with ThreadPoolExecutor(WIDTH) as pool:
        transports = list(pool.map(lambda endpoint: execute(connect(key, endpoint)), endpoints))
    took = time.perf_counter() - started
    for transport in transports:
        transport.close()
    return took


def connect_all(key: paramiko.PKey, endpoints: list[Endpoint]) -> list[paramiko.Transport]:
    """Connect bare transports to all."""
    with ThreadPoolExecutor(WIDTH) as pool:
        return list(pool.map(lambda endpoint: connect(key, endpoint), endpoints))


def connect(key: paramiko.PKey, endpoint: Endpoint) -> paramiko.Transport:
    """Connect one bare transport; the floor pays for TCP_NODELAY, too, and proves nothing."""
    opened = socket.create_connection((endpoint.host, endpoint.port))
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(opened)
    transport.start_client()
    transport.auth_publickey(endpoint.user, key)
    return transport


def execute(transport: paramiko.Transport) -> paramiko.Transport:
    """Run one command to its end."""
    channel = transport.open_session()
    channel.exec_command("true")
    channel.makefile("rb").read()
    channel.recv_exit_status()
    channel.close()
    return transport


if __name__ == "__main__":
    main()
