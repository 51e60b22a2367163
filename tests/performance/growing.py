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

import argparse
import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dlcloud.elastic.agents import PACKAGE  # noqa: E402
from dlcloud.local.site import LocalSite  # noqa: E402
from tests.environments import SHARED, python_with  # noqa: E402
from tests.fakes.control import control_of  # noqa: E402

GOAL_S = 30.0
PARTS = ["index", "peer", "torn", "image"]
MB = 1_000_000
INDEX_MB_S = 50
PIECE = 1 << 18
WAIT_S = 900.0
GRACE_S = 600.0
REQUIREMENTS = PACKAGE / "requirements" / "elastic.txt"
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
DLCLOUD = [sys.executable, "-c", "from dlcloud.cli.main import main; main()"]
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
ALONE = [
    sys.executable,
    "-c",
    (
        "from dlcloud.elastic.agents import Agents; Agents._peers_of = lambda *_: []\n"
        "from dlcloud.cli.main import main; main()"
    ),
]
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


class Home:
    """A home of dlcloud with a local EC2 whose instances share nothing."""

    def __init__(self, folder, index):
        self.folder, self.index = folder, index
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PIP_"))}
        url = f"http://127.0.0.1:{index.server_address[1]}/simple/"
        own = {"HOME": str(folder), "DLCLOUD_HOME": str(folder / "dlcloud")}
        source = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url, "PYTHONPATH": str(ROOT)}
        self.environment = {**kept, **own, **source}

    def __enter__(self):
        subprocess.run([*DLCLOUD, "local", "start"], env=self.environment, check=True, capture_output=True)
        self.control = control_of(LocalSite(self.folder / "dlcloud/local").find())
        self.control.set_cache(shared=False)
        return self

    def __exit__(self, *_):
        subprocess.run([*DLCLOUD, "local", "stop"], env=self.environment, check=False, capture_output=True)

    def write_recipe(self, image="auto"):
        path = self.folder / "growing.yaml"
        path.write_text(RECIPE.format(image=image))
        return path

    def steps(self):
        """Return the time of each step, in seconds since 1970, and how long it took."""
        select = "SELECT line FROM records WHERE kind = 'step'"
        with contextlib.closing(sqlite3.connect(self.folder / "dlcloud/store.sqlite")) as store:
            lines = [json.loads(line) for (line,) in store.execute(select)]
        return [(datetime.fromisoformat(line["time"]).timestamp(), line["seconds"]) for line in lines]

    def kill_peer(self):
        """Kill the process that offers an environment, during the copy."""
        instances = self.control.status()["instances"]
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

    def __init__(self, home, command, recipe):
        self.home, self.lines = home, []
        self.process = subprocess.Popen(
            [*command, "up", str(recipe)],
            env=home.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
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


def measure(name, home, command=DLCLOUD, *, image="auto", meanwhile=lambda: None):
    """Interrupt an instance of a training; print the phases until another one has joined."""
    print(f"\n{name} (load {os.getloadavg()[0]:.1f}): ", end="", flush=True)
    recipe = home.write_recipe(image)
    begun, begun_at = time.monotonic(), time.time()
    with Training(home, command, recipe) as training:
        training.await_line(r", 2 worker")
        print(f"two instances train after {time.monotonic() - begun:.0f} s", flush=True)
        time.sleep(10)  # a baseline of steps
        (old,) = [entry["instance_id"] for entry in home.control.status()["instances"] if entry["spot"]]
        noticed, noticed_at = time.monotonic(), time.time()
        home.control.interrupt(old, grace_s=GRACE_S)
        _, first = training.await_line(r"c7i\.xlarge spot in", noticed)
        meanwhile()
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
        asked = sum(noticed < moment <= joined for moment, _ in home.index.asked)
        print(f"\n  the index was asked {asked} times; load {os.getloadavg()[0]:.1f}")
        steps = home.steps()
        usual = statistics.median(seconds for at, seconds in steps if begun_at < at <= noticed_at)
        during = statistics.median(seconds for at, seconds in steps if at > noticed_at)
        print(f"  steps meanwhile: {during * 1000:.0f} ms, {usual * 1000:.0f} ms before", flush=True)
        return joined - noticed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--gb", type=float, default=4.0, help="size of the download, in GB (default: %(default)s)"
    )
    parser.add_argument("--folder", help="where instances lie; default: a temporary folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and nothing is left behind
    parts = [options.only] if options.only else PARTS
    results = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "wheels").mkdir()
        collect_wheels(folder / "wheels", options.gb)
        index = Index(folder / "wheels", INDEX_MB_S * MB)
        threading.Thread(target=index.serve_forever, daemon=True).start()
        with Home(folder, index) as home:
            if "index" in parts:
                results["from the index, as it was"] = measure("index", home, ALONE)
            if "peer" in parts:
                results["from a peer"] = measure("peer", home)
            if "torn" in parts:
                results["from the index, after a torn peer"] = measure("torn", home, meanwhile=home.kill_peer)
            if "image" in parts:
                recipe = home.write_recipe()
                begun = time.monotonic()
                subprocess.run([*DLCLOUD, "image", str(recipe)], env=home.environment, check=True)
                print(f"\nthe image took {time.monotonic() - begun:.0f} s")
                results["in a prepared image"] = measure("image", home, image="dlcloud-growing")
    print(
        f"\nseconds from the notice until a replacement trains; environment of {options.gb:g} GB of packages"
    )
    for name, seconds in results.items():
        verdict = (
            "" if "index" in name else f"   goal {GOAL_S:.0f}: {'met' if seconds <= GOAL_S else 'MISSED'}"
        )
        print(f"{name:<34} {seconds:6.1f} s{verdict}")


if __name__ == "__main__":
    main()
