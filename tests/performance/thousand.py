"""What an instance costs the launcher, up to a thousand of them: CPU seconds, memory, sessions, open files.

    python tests/performance/thousand.py [SIZE ...]

`up` of a plain command, with a folder of files of a megabyte, on instances that are SSH servers in one
process (`light_ec2.py` says what of them is real). The launcher is dlcloud's own command in a process of its
own, whose methods are wrapped to count: CPU seconds of its threads by phase, sessions, SSH messages, bytes
sent. Afterwards, on the same instances: `status`, beside a bare boto3 program that lists them; and the floor,
a bare paramiko program that logs in and runs one command on each, on as many threads as dlcloud dials with.

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
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
HERE = Path(__file__)
SIZES = (10, 100, 300, 1000)
MOST_CPU_S, MOST_MIB, MOST_STATUS_S = 60.0, 1024.0, 2.0
FILES_BYTES = 1 << 20
WIDTH = 32
MOST_BARE_S = 300.0
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


class Counter:
    """Counts within the launcher."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.local = threading.local()
        self.cpu: dict[str, float] = defaultdict(float)
        self.sessions: dict[str, int] = defaultdict(int)
        self.messages = self.bytes = self.most_files = self.most_threads = 0
        self.stages: list[tuple[str, float, float]] = []
        self.began = time.monotonic()

    def phase(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also charges its thread's CPU time to a phase."""

        def counted(*arguments: Any, **options: Any) -> Any:
            outer, self.local.phase = getattr(self.local, "phase", "other"), name
            started = time.thread_time()
            try:
                return work(*arguments, **options)
            finally:
                self.local.phase = outer
                with self.lock:
                    self.cpu[name] += time.thread_time() - started

        return counted

    def session(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also counts a session of the phase."""

        def counted(*arguments: Any, **options: Any) -> Any:
            with self.lock:
                self.sessions[getattr(self.local, "phase", "other")] += 1
            return work(*arguments, **options)

        return counted

    def written(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also counts the messages and bytes that are sent."""

        def counted(packetizer: Any, out: Any) -> Any:
            with self.lock:
                self.messages += 1
                self.bytes += len(out)
            return work(packetizer, out)

        return counted

    def emitted(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also takes the time at each event of the whole cluster."""

        def counted(console: Any, event: Any) -> Any:
            if not event.instance_id:
                now = time.monotonic() - self.began
                self.stages.append((f"{type(event).__name__} {event.message}", now, time.process_time()))
            return work(console, event)

        return counted

    def watch(self) -> None:
        """Take the most open files and threads, now and then."""
        while True:
            self.most_files = max(self.most_files, len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            self.most_threads = max(self.most_threads, threading.active_count())
            time.sleep(0.5)

    def report(self) -> dict[str, Any]:
        """Return everything, for the process that prints it."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "wall_s": time.monotonic() - self.began,
            "peak_mib": used.ru_maxrss / 1024,
            "phases": dict(self.cpu),
            "sessions": dict(self.sessions),
            "messages": self.messages,
            "bytes": self.bytes,
            "files": self.most_files,
            "threads": self.most_threads,
            "stages": self.stages,
        }


def launch_inside(report: str, words: list[str]) -> None:
    """Be dlcloud, and write down what it took."""
    from paramiko import Transport  # noqa: PLC0415 - only in this process
    from paramiko.packet import Packetizer  # noqa: PLC0415

    from dlcloud.app.terminal.console import PlainConsole  # noqa: PLC0415
    from dlcloud.cli import main as command_line  # noqa: PLC0415
    from dlcloud.launch.remote_jobs import RemoteJobs  # noqa: PLC0415
    from dlcloud.runs.run import Runner  # noqa: PLC0415
    from dlcloud.ssh.dial import Dialer  # noqa: PLC0415

    counter = Counter()
    wraps: list[tuple[Any, str, Callable[..., Any]]] = [
        (Dialer, "_open", lambda work: counter.phase("connect", work)),
        (Runner, "_send", lambda work: counter.phase("set up", work)),
        (RemoteJobs, "start", lambda work: counter.phase("start", work)),
        (RemoteJobs, "follow", lambda work: counter.phase("follow", work)),
        (RemoteJobs, "fetch_results", lambda work: counter.phase("collect", work)),
        (Transport, "run", lambda work: counter.phase("paramiko's threads", work)),
        (Transport, "open_session", counter.session),
        (Packetizer, "write_all", counter.written),
        (PlainConsole, "emit", counter.emitted),
    ]
    for owner, name, wrap in wraps:
        setattr(owner, name, wrap(getattr(owner, name)))
    threading.Thread(target=counter.watch, daemon=True).start()
    sys.argv = [DLCLOUD, *words]
    try:
        command_line.main()
    finally:
        Path(report).write_text(json.dumps(counter.report()))


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
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}))
    sys.stdout.flush()
    del transports
    os._exit(0)


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--inside"]:
        launch_inside(sys.argv[2], sys.argv[3:])
        return
    if sys.argv[1:2] == ["--bare"]:
        connect_bare(sys.argv[2])
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        with light_site(Path(home)):
            for count in sizes:
                measure(Path(home), count)


@contextlib.contextmanager
def light_site(home: Path) -> Any:
    """Run a local EC2 with light instances in a home."""
    from dlcloud.local.site import LocalSite  # noqa: PLC0415 - the other processes need none of it
    from dlcloud.store.home import Paths  # noqa: PLC0415

    folder = Paths(home).local_site
    folder.mkdir(parents=True, mode=0o700)
    records = home / "records.jsonl"
    program = [sys.executable, "-m", "dlcloud.benchmarks.command", "--run", "true", "--repeats", "1"]
    subprocess.run([*program, "--output", str(records), "--host", "@HOST@"], check=True, capture_output=True)
    daemon = subprocess.Popen(
        [sys.executable, str(HERE.with_name("light_ec2.py")), str(folder)],
        env={**os.environ, "LIGHT_RECORDS": str(records)},
        start_new_session=True,
    )
    site = LocalSite(folder)
    try:
        while site.find() is None:
            if daemon.poll() is not None:
                sys.exit(f"the local EC2 ended with {daemon.returncode}")
            time.sleep(0.1)
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def measure(home: Path, count: int) -> None:
    """Print what one size takes."""
    (home / "files").mkdir(exist_ok=True)
    (home / "files" / "data.bin").write_bytes(os.urandom(FILES_BYTES))
    recipe, report = home / f"light{count}.yaml", home / "report.json"
    recipe.write_text(RECIPE.format(count=count))
    words = ["up", str(recipe), "--keep", "--name", "light", "--yes"]
    done = subprocess.run(
        [sys.executable, str(HERE), "--inside", str(report), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"up ended with {done.returncode}:\n{done.stderr[-3000:]}")
    took = json.loads(report.read_text())
    show(count, took)
    show_floor(home, count, took["cpu_s"])
    show_status(count)
    subprocess.run([DLCLOUD, "down", "light"], check=True, capture_output=True)


def show(count: int, took: dict[str, Any]) -> None:
    """Print the launcher's figures."""
    is_goal = count >= SIZES[-1]
    met = "met" if took["cpu_s"] < MOST_CPU_S and took["peak_mib"] < MOST_MIB else "MISSED"
    goal = f" (goal {MOST_CPU_S:.0f} s, {MOST_MIB:.0f} MiB: {met})" if is_goal else ""
    print(f"{count} instances")
    print(
        f"  up: {took['cpu_s']:.1f} CPU s, {1000 * took['cpu_s'] / count:.1f} ms an instance,"
        f" {took['peak_mib']:.0f} MiB, {took['wall_s']:.1f} s{goal}"
    )
    sessions = {name: number / count for name, number in took["sessions"].items()}
    print(
        f"  an instance: {sum(sessions.values()):.1f} sessions, {took['messages'] / count:.0f} messages,"
        f" {took['bytes'] / count / 1024:.0f} KiB sent; at most {took['files']} open files,"
        f" {took['threads']} threads"
    )
    for name, seconds in took["phases"].items():
        print(
            f"    {name:20} {1000 * seconds / count:6.2f} ms CPU an instance,"
            f" {sessions.get(name, 0):.1f} sessions"
        )
    for message, wall_s, cpu_s in took["stages"]:
        print(f"    {wall_s:6.1f} s  {cpu_s:6.1f} CPU s  {message[:90]}")
    sys.stdout.flush()


def show_floor(home: Path, count: int, cpu_s: float) -> None:
    """Print what bare paramiko takes to log in and run one command on each."""
    from dlcloud.store.home import Paths  # noqa: PLC0415 - as above

    status = subprocess.run([DLCLOUD, "status", "-o", "json"], check=True, capture_output=True, text=True)
    records = json.loads(status.stdout)["result"]["records"]
    endpoints = [[record["host"], record["ssh_port"], "ubuntu"] for record in records]
    key = Paths(home).key(records[0]["cluster_id"])
    bare = subprocess.run(
        [sys.executable, str(HERE), "--bare", str(key)],
        input=json.dumps(endpoints),
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_BARE_S,
    )
    if bare.returncode:
        sys.exit(f"the bare program ended with {bare.returncode}:\n{bare.stderr[-2000:]}")
    floor = json.loads(bare.stdout)
    print(
        f"  floor, paramiko's login and one command: {floor['cpu_s']:.1f} CPU s,"
        f" {1000 * floor['cpu_s'] / count:.1f} ms an instance, {floor['peak_mib']:.0f} MiB;"
        f" up takes {cpu_s / floor['cpu_s']:.1f} of it"
    )


def show_status(count: int) -> None:
    """Print what `status` takes, beside a bare program's list of the instances."""
    from dlcloud.local.site import LocalSite  # noqa: PLC0415 - as above
    from dlcloud.store.home import Paths  # noqa: PLC0415

    site = LocalSite(Paths(Path(os.environ["DLCLOUD_HOME"])).local_site).find()
    bare_env = {**os.environ, **(site.environment() if site else {})}
    before = cpu_of(site.pid if site else None)
    ours = [timed([DLCLOUD, "status", "light"], dict(os.environ)) for _ in range(STATUS_RUNS)]
    answers_s = (cpu_of(site.pid if site else None) - before) / STATUS_RUNS
    bare = [timed([sys.executable, "-c", BARE_STATUS], bare_env) for _ in range(STATUS_RUNS)]
    (wall_s, cpu_s), (bare_s, bare_cpu_s) = min(ours), min(bare)
    met = "met" if wall_s < MOST_STATUS_S else "MISSED"
    goal = f" (goal {MOST_STATUS_S:.0f} s: {met})" if count >= SIZES[-1] else ""
    print(
        f"  status: {wall_s:.2f} s, {cpu_s:.2f} CPU s{goal};"
        f" bare boto3 {bare_s:.2f} s, {bare_cpu_s:.2f} CPU s; ratio {wall_s / bare_s:.2f};"
        f" the local EC2's answer {answers_s:.2f} CPU s",
        flush=True,
    )


def cpu_of(pid: int | None) -> float:
    """Return the CPU seconds that a process has used; 0 where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Run a program; return its seconds and its CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, capture_output=True, env=env)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
