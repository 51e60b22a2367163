"""How long a training waits for a replacement that trains, by where its environment comes from.

    python3 tests/performance/growing.py                  # index, peer, torn and image: about ten minutes
    python3 tests/performance/growing.py --only peer      # one of: index, peer, torn, image
    python3 tests/performance/growing.py --gb 1           # a smaller environment

A training of two instances runs on a local EC2 whose instances share nothing, as on EC2. One of them receives
an interruption notice; printed are the seconds from then until another one has joined, phase by phase, and
how often the package index was asked, which is this program, throttled to 50 MB/s. In `torn` the peer is
killed during the copy. The environment is that of elastic training with PyTorch for CPUs, and a package of
incompressible bytes that makes the download as large as with PyTorch for GPUs. All instances share the
processors and the disk of this machine, and a boot takes 0.2 s instead of EC2's 20 to 40; an instance of an
image copies it at boot, where EC2 loads a volume's blocks as they are read.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

from common import PYTHON, ROOT, parser_of, verdict

from tests.e2e.terminal import User
from tests.environments import SHARED, python_with

GOAL_S = 30.0
MB = 1_000_000
INDEX_MB_S = 50
PIECE = 1 << 18
WAIT_S = 900.0
GRACE_S = 600.0
REQUIREMENTS = ROOT / "dlcloud" / "trainer" / "requirements" / "elastic.txt"
RECIPE = """\
name: growing
cloud: local
instances: {{types: [c7i.xlarge], count: 2, market: spot, on_demand_base: 1, image: {image}}}
setup: {{requirements: [ballast==1.0]}}
workload:
  command: python3 -m trainer.examples.digits --epochs 100000 --delay-ms 50
  elastic: {{}}
budget: {{max_hours: 1}}
"""
PHASES = {
    "notice": "{old}.* is interrupted",
    "launch": "done in .*: launching what",
    "boot": "done in .*: connecting to",
    "environment": "{new}.*done in .*: building the environment",
    "join": "{new}.* has joined at step",
}
"""The line that ends each phase of the replacement of an instance by a new one."""
COPY_S = 0.5
"""So long a peer copies before it is killed."""
NO_PEERS = "from dlcloud.elastic.agents import Agents; Agents._peers_of = lambda *_: []\n"
ALONE = (PYTHON, "-c", f"{NO_PEERS}from dlcloud.cli.main import main; main()")
"""dlcloud that asks no peer, as it was."""


def write_ballast(folder, size):
    """Write a wheel of so many bytes that cannot be compressed."""
    block = os.urandom(64 * MB)
    left = size
    with zipfile.ZipFile(folder / "ballast-1.0-py3-none-any.whl", "w", zipfile.ZIP_STORED) as wheel:
        names = []
        while left > 0:
            name, content = f"ballast/{len(names)}.bin", block[: min(left, len(block))]
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            names.append(f"{name},sha256={digest},{len(content)}")
            wheel.writestr(name, content)
            left -= len(content)
        info = "ballast-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ballast\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "\n".join([*names, f"{info}/RECORD,,"]))


def collect_wheels(folder, gigabytes):
    """Download what elastic training needs, once, and add the ballast."""
    kept = SHARED.with_name("wheels")
    if not kept.exists():
        pip = [str(python_with(REQUIREMENTS)), "-m", "pip", "download", "-q"]
        with tempfile.TemporaryDirectory(dir=kept.parent) as unfinished:
            subprocess.run([*pip, "-d", unfinished, "-r", str(REQUIREMENTS)], check=True)
            shutil.copytree(unfinished, kept)
    for wheel in kept.iterdir():
        (folder / wheel.name).symlink_to(wheel)
    size = sum(wheel.stat().st_size for wheel in folder.iterdir())
    write_ballast(folder, max(MB, int(gigabytes * 1000 * MB) - size))


class Index(http.server.ThreadingHTTPServer):
    """A package index of a folder that sends so many bytes a second, to all clients together."""

    daemon_threads = True

    def __init__(self, folder, bytes_s):
        super().__init__(("127.0.0.1", 0), IndexRequest)
        self.folder, self.bytes_s = folder, bytes_s
        self.asked = []  # when, and for what
        self._lock, self._free_at = threading.Lock(), 0.0

    def await_turn(self, count):
        """Wait until so many bytes may be sent."""
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + count / self.bytes_s
        time.sleep(max(0.0, start - time.monotonic()))


class IndexRequest(http.server.BaseHTTPRequestHandler):
    """Answers of PEP 503."""

    def do_GET(self):
        self.server.asked.append((time.monotonic(), self.path))
        kind, _, name = unquote(self.path).strip("/").partition("/")
        wheels = {wheel.name: wheel for wheel in self.server.folder.iterdir()}
        self.send_response(200)
        self.send_header("Cache-Control", "no-store")
        if kind == "files":
            self.send_header("Content-Length", str(wheels[name].stat().st_size))
            self.end_headers()
            self._send(wheels[name])
            return
        links = [f'<a href="/files/{wheel}">{wheel}</a>' for wheel in wheels if normal(wheel) == normal(name)]
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write("\n".join(links).encode())

    def _send(self, wheel):
        with wheel.open("rb") as content, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while piece := content.read(PIECE):
                self.server.await_turn(len(piece))
                self.wfile.write(piece)

    def log_message(self, *_):
        """Keep the terminal for the figures."""


def normal(name):
    return re.sub(r"[-_.]+", "-", name.split("-")[0] if name.endswith(".whl") else name).lower()


@contextlib.contextmanager
def home_of(folder, index):
    """Give a user with a local EC2 whose instances share nothing and install from an index."""
    url = f"http://127.0.0.1:{index.server_address[1]}/simple/"
    user = User(folder, variables={"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url})
    user.run("local", "start")
    try:
        user.control.set_cache(shared=False)
        yield user
    finally:
        user.run("local", "stop")


def write_recipe(user, image="auto"):
    path = user.home / "growing.yaml"
    path.write_text(RECIPE.format(image=image))
    return str(path)


def kill_peer(user):
    """Kill the process that offers an environment, during the copy."""
    instances = user.control.status()["instances"]
    own = [f"http://{entry['host']}:{entry['metadata_port']}".encode() for entry in instances]
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                is_peer = words[-2:-1] == [b"serve"] and words[-3].endswith(b"/peer.py")
                if is_peer and any(url in (process / "environ").read_bytes() for url in own):
                    time.sleep(COPY_S)
                    os.kill(int(process.name), signal.SIGKILL)
                    return
        time.sleep(0.02)
    raise SystemExit("no instance offered its environment")


class Training:
    """`dlcloud up` in the background, with what it prints and when."""

    def __init__(self, user, recipe):
        self.lines, self.process = [], user.begin("up", recipe)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def await_line(self, pattern, after=0.0):
        """Return when it printed a line, the first one after a time."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for moment, line in list(self.lines):
                if moment > after and re.search(pattern, line):
                    return moment, line
            time.sleep(0.02)
        raise SystemExit(f"no {pattern!r}:\n" + "\n".join(line for _, line in self.lines[-20:]))


def measure(name, user, index, *, image="auto", meanwhile=lambda _user: None):
    """Interrupt an instance of a training; print the phases until another one has joined."""
    print(f"\n{name} (load {os.getloadavg()[0]:.1f}): ", end="", flush=True)
    begun, begun_at = time.monotonic(), time.time()
    with Training(user, write_recipe(user, image)) as training:
        training.await_line(r", 2 worker")
        print(f"two instances train after {time.monotonic() - begun:.0f} s", flush=True)
        time.sleep(10)  # a baseline of steps
        (old,) = [entry["instance_id"] for entry in user.control.status()["instances"] if entry["spot"]]
        noticed, noticed_at = time.monotonic(), time.time()
        user.control.interrupt(old, grace_s=GRACE_S)
        _, first = training.await_line(r"c7i\.xlarge spot in", noticed)
        meanwhile(user)
        new = re.search(r"i-[0-9a-f]+", first)[0]
        joined, _ = training.await_line(PHASES["join"].format(new=new), noticed)
        for moment, line in list(training.lines):
            if noticed < moment <= joined and "worker(s)" not in line:
                print(f"  {moment - noticed:6.1f} s  {line[:160]}")
        before = noticed
        for phase, pattern in PHASES.items():
            after, _ = training.await_line(pattern.format(old=old, new=new), noticed)
            print(f"  {phase} {after - before:.1f} s", end="")
            before = after
        asked = sum(noticed < moment <= joined for moment, _ in index.asked)
        print(f"\n  the index was asked {asked} times; load {os.getloadavg()[0]:.1f}")
        lines = [json.loads(line) for (line,) in user.store("SELECT line FROM records WHERE kind = 'step'")]
        steps = [(datetime.fromisoformat(line["time"]).timestamp(), line["seconds"]) for line in lines]
        usual = statistics.median(seconds for at, seconds in steps if begun_at < at <= noticed_at)
        during = statistics.median(seconds for at, seconds in steps if at > noticed_at)
        print(f"  steps meanwhile: {during * 1000:.0f} ms, {usual * 1000:.0f} ms before", flush=True)
        return joined - noticed


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=["index", "peer", "torn", "image"])
    parser.add_argument("--gb", type=float, default=4.0, help="size of the download (default: %(default)s)")
    parser.add_argument("--folder", help="where instances lie; default: a temporary folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and nothing is left behind
    results = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "wheels").mkdir()
        collect_wheels(folder / "wheels", options.gb)
        index = Index(folder / "wheels", INDEX_MB_S * MB)
        threading.Thread(target=index.serve_forever, daemon=True).start()
        with home_of(folder, index) as user:
            if options.only in {None, "index"}:
                asks_nobody = replace(user, command=ALONE)
                results["from the index, as it was"] = measure("index", asks_nobody, index)
            if options.only in {None, "peer"}:
                results["from a peer"] = measure("peer", user, index)
            if options.only in {None, "torn"}:
                torn = measure("torn", user, index, meanwhile=kill_peer)
                results["from the index, after a torn peer"] = torn
            if options.only in {None, "image"}:
                begun = time.monotonic()
                user.run("image", write_recipe(user))
                print(f"\nthe image took {time.monotonic() - begun:.0f} s")
                results["in a prepared image"] = measure("image", user, index, image="dlcloud-growing")
    print(f"\nseconds from the notice until a replacement trains; {options.gb:g} GB of packages")
    for name, seconds in results.items():
        goal = "" if "index" in name else f"   goal {GOAL_S:.0f}: {verdict(seconds <= GOAL_S)}"
        print(f"{name:<34} {seconds:6.1f} s{goal}")


if __name__ == "__main__":
    main()
