"""What storing checkpoints in S3 costs the steps of a training: with and without, in turn, in one run.

    python3 tests/performance/uploads.py                      # 30 pairs of 10 s each, ten minutes
    python3 tests/performance/uploads.py --pairs 10 --mb 16

One worker on this machine trains a network of `--mb` MB whose steps take a good tenth of a second, and
writes a checkpoint every `--every` seconds. After every other one the uploader stores it in a bucket of a
local EC2; after the others the uploader is stopped by a signal. A pair is the mean time of a step in an
interval with an upload over that in its neighbour without one. The bucket's server shares the processors
here, unlike S3: printed is how much processor time it and the uploader take. The goal is 1.01 at most.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import boto3
from pairs import interval

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dlcloud.launch.data_access import TOOL  # noqa: E402
from dlcloud.local.site import LocalSite  # noqa: E402
from tests.environments import python_with  # noqa: E402
from tests.fakes.training import free_port  # noqa: E402

GOAL = 1.01
BUCKET = "uploads"
SCRIPT = """
import sys
import torch
from trainer.training import train

torch.manual_seed(0)
torch.set_num_threads(1)
width = int((float(sys.argv[1]) * 250_000) ** 0.5)
model = torch.nn.Linear(width, width)
data = torch.utils.data.TensorDataset(torch.randn(4096, width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
train(model, optimizer, data, lambda m, b: m(b[0]).square().mean(), batch=256, steps=1_000_000)
"""


def main():
    options = parse()
    python = python_with(ROOT / "dlcloud" / "trainer" / "requirements" / "elastic.txt")
    with tempfile.TemporaryDirectory() as folder:
        site = LocalSite(Path(folder) / "site")
        endpoint = site.start()
        try:
            variables = endpoint.environment() | {"S3_ENDPOINT_URL": endpoint.url}
            tool = make_bucket(Path(folder), variables)
            with training(python, Path(folder), tool, variables, options) as (process, records):
                report(list(pairs(process, records, endpoint.pid, options)))
        finally:
            site.stop()


def report(measured):
    ratios = [pair.ratio for pair in measured]
    low, high = interval(ratios)
    ratio = statistics.median(ratios)
    print(
        f"a step with an upload over one without: {ratio:.4f} ({low:.4f} to {high:.4f}), {len(ratios)} pairs;"
        f" goal {GOAL}: {'met' if ratio <= GOAL else 'MISSED'}"
    )
    uploads = statistics.fmean(pair.upload_cpu_s for pair in measured)
    server = statistics.fmean(pair.server_cpu_s for pair in measured)
    print(f"processor time an upload: {uploads:.2f} s of the uploader, {server:.2f} s of the bucket's server")


def make_bucket(folder, variables):
    """Make the bucket; return the path of s5cmd."""
    s3 = boto3.client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
    )
    s3.create_bucket(Bucket=BUCKET)
    (folder / "tool.txt").write_text(TOOL)
    python = python_with(folder / "tool.txt")
    program = "import pathlib, s5cmd; print(pathlib.Path(s5cmd.__file__).parent / 'bin' / 's5cmd')"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Pair:
    """A step's time with an upload over that without; processor seconds of both sides of the upload."""

    ratio: float
    upload_cpu_s: float
    server_cpu_s: float


@contextlib.contextmanager
def training(python, folder, tool, variables, options):
    """Train with an uploader; yield its process and the path of the records."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "work").mkdir()
    shutil.copytree(ROOT / "dlcloud" / "trainer", place / "trainer")
    (place / "work" / "script.py").write_text(SCRIPT)
    (place / "control.json").write_text('{"coordinates": true}')
    uploader = ["-m", "trainer.uploader", "--folder", "..", "--run", "r", "--worker", "w", "--tool", tool]
    uploader += ["--to", f"s3://{BUCKET}/run", "--variables", json.dumps(variables), "--"]
    agent = ["-m", "trainer.agent", "--folder", "..", "--run", "r", "--worker", "w"]
    agent += ["--coordinator", "127.0.0.1", "--port", str(free_port()), "--lighthouse", "--workers", "1"]
    agent += ["--checkpoint-seconds", str(options.every), "--metadata", "http://127.0.0.1:1"]
    command = [python, *uploader, str(python), *agent, "--", python, "script.py", str(options.mb)]
    process = subprocess.Popen(
        command, cwd=place / "work", env={**os.environ, "PYTHONPATH": ".."}, stderr=subprocess.DEVNULL
    )
    try:
        yield process, place / "records.jsonl"
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


def pairs(process, path, server, options):
    """Store every other checkpoint; yield a pair for each two intervals between checkpoints."""
    wait_for_checkpoints(process, path, 1)
    for number in range(options.pairs):
        means, stored = {}, None
        for uploads in (True, False) if number % 2 else (False, True):
            process.send_signal(signal.SIGCONT if uploads else signal.SIGSTOP)
            before = cpu_s(process.pid), cpu_s(server), count(path, "checkpoint_stored")
            begun = count(path, "checkpoint")
            wait_for_checkpoints(process, path, begun + 1)
            means[uploads] = statistics.fmean(steps_between(path, begun))
            if uploads:
                stored = count(path, "checkpoint_stored") - before[2]
                spent = cpu_s(process.pid) - before[0], cpu_s(server) - before[1]
        if stored != 1:
            print(f"  {stored} uploads in an interval: left out")
            continue
        pair = Pair(means[True] / means[False], *spent)
        print(f"  {means[False] * 1e3:.2f} ms, with an upload {means[True] * 1e3:.2f} ms: {pair.ratio:.4f}")
        yield pair


def cpu_s(pid):
    """Return the processor seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def wait_for_checkpoints(process, path, number):
    """Wait until so many have been written."""
    while not path.exists() or count(path, "checkpoint") < number:
        if process.poll() is not None:
            sys.exit("the training ended early")
        time.sleep(0.2)


def count(path, event):
    return path.read_text().count(f'"event":"{event}"')


def steps_between(path, number):
    """Return the seconds of the steps between the checkpoint of a number and the next."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    places = [i for i, record in enumerate(records) if record.get("event") == "checkpoint"]
    between = records[places[number - 1] : places[number]]
    return [record["seconds"] for record in between if record["record"] == "step"]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between checkpoints")
    parser.add_argument("--mb", type=float, default=64.0, help="of the state")
    return parser.parse_args()


if __name__ == "__main__":
    main()
