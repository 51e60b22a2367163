"""What an instance costs the launcher, up to a thousand of them: CPU seconds, memory, bytes, open files.

    python tests/performance/thousand.py [SIZE ...]

`up` of a plain command, with a folder of files of a megabyte, on instances that are SSH servers in one
process (`light_ec2.py` says what of them is real). The launcher is dlcloud's own command in a process that
counts what it sends. Afterwards, on the same instances: `status`, next to a bare boto3 program that lists
them; and the floor, a bare paramiko program that logs in and runs one command on each, on as many threads as
dlcloud dials with.

CPU seconds and memory are those of the launcher alone. Other programs on the machine make them larger, too.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import DLCLOUD, PYTHON, cpu_s, family, verdict

SIZES = (10, 100, 300, 1000)
MOST_CPU_S, MOST_MIB, MOST_STATUS_S = 60.0, 1024.0, 2.0
WIDTH = 32
STATUS_RUNS = 3
RECIPE = """
name: light{count}
cloud: local
instances: {{types: [c5.large], count: {count}}}
workload: {{command: "true", repeats: 1, files: files}}
"""
BARE_STATUS = """
import boto3, sys
ec2 = boto3.client("ec2")
pages = ec2.get_paginator("describe_instances").paginate(
    Filters=[{"Name": "tag:dlcloud:managed", "Values": ["true"]}])
print(sum(len(r["Instances"]) for page in pages for r in page["Reservations"]))
"""


def used() -> dict[str, float]:
    """Return what this process has taken so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": own.ru_utime + own.ru_stime, "peak_mib": own.ru_maxrss / 1024}


def launch_inside(report: str, words: list[str]) -> None:
    """Be dlcloud, and write down what it took."""
    from paramiko.packet import Packetizer  # noqa: PLC0415 - only in this process

    from dlcloud.cli import main as command_line  # noqa: PLC0415

    began, counts, lock, write_all = time.monotonic(), {"bytes": 0, "files": 0}, threading.Lock(), None

    def write_counted(packetizer: Any, out: Any) -> Any:
        with lock:
            counts["bytes"] += len(out)
        return write_all(packetizer, out)

    def watch() -> None:
        while True:
            counts["files"] = max(counts["files"], len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            time.sleep(0.5)

    write_all, Packetizer.write_all = Packetizer.write_all, write_counted
    threading.Thread(target=watch, daemon=True).start()
    sys.argv = [DLCLOUD, *words]
    status = command_line.run()
    Path(report).write_text(json.dumps({**used(), **counts, "wall_s": time.monotonic() - began}))
    sys.exit(status)


def connect_bare(key_path: str) -> None:
    """Log in to all endpoints on stdin with bare paramiko, run a command on each, and print what it took."""
    import socket  # noqa: PLC0415 - only in this process
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    import paramiko  # noqa: PLC0415

    key = paramiko.Ed25519Key.from_private_key_file(key_path)

    def execute(where: tuple[str, int, str]) -> paramiko.Transport:
        opened = socket.create_connection(where[:2])
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(opened)
        transport.start_client()
        transport.auth_publickey(where[2], key)
        channel = transport.open_session()
        channel.exec_command('cat "$DLCLOUD_ROOT/var/lib/dlcloud/host-proof"')
        channel.makefile("rb").read()
        channel.recv_exit_status()
        channel.close()
        return transport

    with ThreadPoolExecutor(WIDTH) as pool:
        transports = list(pool.map(execute, map(tuple, json.load(sys.stdin))))
    print(json.dumps(used()), flush=True)
    del transports
    os._exit(0)


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        launch_inside(sys.argv[2], sys.argv[3:])
        return
    if sys.argv[1:2] == ["--bare"]:
        connect_bare(sys.argv[2])
        return
    if "--help" in sys.argv:
        print(__doc__)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        os.environ["DLCLOUD_HOME"] = name
        (home / "files").mkdir()
        (home / "files" / "data.bin").write_bytes(os.urandom(1 << 20))
        with light_site(home) as site:
            for count in sizes:
                measure(home, site, count)


@contextlib.contextmanager
def light_site(home: Path) -> Iterator[Any]:
    """Run a local EC2 with light instances in a home."""
    from dlcloud.local.site import LocalSite  # noqa: PLC0415 - the other processes need none of it
    from dlcloud.store.home import Paths  # noqa: PLC0415

    folder = Paths(home).local_site
    folder.mkdir(parents=True, mode=0o700)
    records = home / "records.jsonl"
    program = [PYTHON, "-m", "dlcloud.benchmarks.command", "--run", "true", "--repeats", "1"]
    subprocess.run([*program, "--output", str(records), "--host", "@HOST@"], check=True, capture_output=True)
    daemon = subprocess.Popen(
        [PYTHON, str(Path(__file__).with_name("light_ec2.py")), str(folder)],
        env={**os.environ, "LIGHT_RECORDS": str(records)},
        start_new_session=True,
    )
    try:
        while (site := LocalSite(folder).find()) is None:
            if daemon.poll() is not None:
                sys.exit(f"the local EC2 ended with {daemon.returncode}")
            time.sleep(0.1)
        yield site
    finally:
        daemon.terminate()
        daemon.wait()


def run(command: list[str], text: str = "") -> str:
    """Run a program and return what it prints, or end with what it complains of."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def measure(home: Path, site: Any, count: int) -> None:
    """Print what one size takes."""
    from dlcloud.store.home import Paths  # noqa: PLC0415 - as above

    recipe, report, is_goal = home / f"light{count}.yaml", home / "report.json", count >= SIZES[-1]
    recipe.write_text(RECIPE.format(count=count))
    words = ["up", str(recipe), "--keep", "--name", "light", "--yes"]
    run([PYTHON, __file__, "--inside", str(report), *words])
    took = json.loads(report.read_text())
    met = verdict(took["cpu_s"] < MOST_CPU_S and took["peak_mib"] < MOST_MIB)
    goal = f" (goal {MOST_CPU_S:.0f} s, {MOST_MIB:.0f} MiB: {met})" if is_goal else ""
    print(
        f"{count} instances\n"
        f"  up: {took['cpu_s']:.1f} CPU s, {1000 * took['cpu_s'] / count:.1f} ms an instance,"
        f" {took['peak_mib']:.0f} MiB, {took['wall_s']:.1f} s{goal}\n"
        f"  {took['bytes'] / count / 1024:.0f} KiB sent to an instance; at most {took['files']} open files"
    )
    records = json.loads(run([DLCLOUD, "status", "-o", "json"]))["result"]["records"]
    endpoints = [[record["host"], record["ssh_port"], "ubuntu"] for record in records]
    key = Paths(home).key(records[0]["cluster_id"])
    floor = json.loads(run([PYTHON, __file__, "--bare", str(key)], json.dumps(endpoints)))
    print(
        f"  floor, paramiko's login and one command: {floor['cpu_s']:.1f} CPU s,"
        f" {1000 * floor['cpu_s'] / count:.1f} ms an instance, {floor['peak_mib']:.0f} MiB;"
        f" up takes {took['cpu_s'] / floor['cpu_s']:.1f} of it"
    )
    show_status(site, is_goal=is_goal)
    run([DLCLOUD, "down", "light"])


def show_status(site: Any, *, is_goal: bool) -> None:
    """Print what `status` takes, next to a bare program's list of the instances."""
    daemon = family(site.pid)[:1]
    before = cpu_s(daemon)
    ours = [timed([DLCLOUD, "status", "light"], {}) for _ in range(STATUS_RUNS)]
    answers_s = (cpu_s(daemon) - before) / STATUS_RUNS
    bare = [timed([PYTHON, "-c", BARE_STATUS], site.environment()) for _ in range(STATUS_RUNS)]
    (wall_s, status_cpu_s), (bare_s, bare_cpu_s) = min(ours), min(bare)
    goal = f" (goal {MOST_STATUS_S:.0f} s: {verdict(wall_s < MOST_STATUS_S)})" if is_goal else ""
    print(
        f"  status: {wall_s:.2f} s, {status_cpu_s:.2f} CPU s{goal};"
        f" bare boto3 {bare_s:.2f} s, {bare_cpu_s:.2f} CPU s; ratio {wall_s / bare_s:.2f};"
        f" the local EC2's answer {answers_s:.2f} CPU s",
        flush=True,
    )


def timed(command: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Run a program; return its seconds and its CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | variables)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
