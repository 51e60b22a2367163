"""What storing checkpoints in S3 costs the steps of a training: with and without uploads, in turn.

    python3 tests/performance/uploads.py                      # five pairs of 60 s, ten minutes
    python3 tests/performance/uploads.py --pairs 3 --seconds 20 --mb 16

One worker on this machine trains a network of `--mb` MB whose steps take a good tenth of a second, and
writes a checkpoint every `--every` seconds in both runs of a pair; in one of them the uploader stores each in
a bucket of a local EC2, which shares the processors here, unlike S3. The ratio is that of the mean times of a
step, from the first checkpoint to the end. The goal is 1.01 at most.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dlcloud.launch.storage import TOOL  # noqa: E402
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
            ratios = [pair(python, Path(folder), tool, variables, options) for _ in range(options.pairs)]
        finally:
            site.stop()
    spread = f"{min(ratios):.4f} to {max(ratios):.4f}, n={len(ratios)}"
    print(f"a step with uploads over one without: {statistics.median(ratios):.4f} ({spread}); goal {GOAL}")


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


def pair(python, folder, tool, variables, options):
    """Return the ratio of the times of a step, with uploads over without."""
    without = step_s(python, folder, [], options)
    uploader = ["-m", "trainer.uploader", "--folder", "..", "--run", "r", "--worker", "w", "--tool", tool]
    uploader += ["--to", f"s3://{BUCKET}/{time.monotonic_ns()}", "--variables", json.dumps(variables), "--"]
    stored = step_s(python, folder, [*uploader, str(python)], options)
    print(f"without {without * 1e3:.2f} ms, with uploads {stored * 1e3:.2f} ms: {stored / without:.4f}")
    return stored / without


def step_s(python, folder, uploader, options):
    """Train for a while; return the mean seconds of a step after the first checkpoint."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "work").mkdir()
    shutil.copytree(ROOT / "dlcloud" / "trainer", place / "trainer")
    (place / "work" / "script.py").write_text(SCRIPT)
    (place / "control.json").write_text('{"coordinates": true}')
    agent = ["-m", "trainer.agent", "--folder", "..", "--run", "r", "--worker", "w"]
    agent += ["--coordinator", "127.0.0.1", "--port", str(free_port()), "--lighthouse", "--workers", "1"]
    agent += ["--checkpoint-seconds", str(options.every), "--metadata", "http://127.0.0.1:1"]
    command = [python, *uploader, *agent, "--", python, "script.py", str(options.mb)]
    process = subprocess.Popen(
        command, cwd=place / "work", env={**os.environ, "PYTHONPATH": ".."}, stderr=subprocess.DEVNULL
    )
    try:
        return measured(place / "records.jsonl", process, options.seconds)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        shutil.rmtree(place, ignore_errors=True)


def measured(path, process, seconds):
    begun = None
    while begun is None or time.monotonic() - begun < seconds:
        if process.poll() is not None:
            sys.exit("the training ended early")
        has_checkpoint = path.exists() and '"event":"checkpoint"' in path.read_text()
        begun = time.monotonic() if begun is None and has_checkpoint else begun
        time.sleep(0.5)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(i for i, record in enumerate(records) if record.get("event") == "checkpoint")
    steps = [record["seconds"] for record in records[first:] if record["record"] == "step"]
    stored = sum(record.get("event") == "checkpoint_stored" for record in records)
    print(f"  {len(steps)} steps, {stored} checkpoints stored")
    return statistics.fmean(steps)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between checkpoints")
    parser.add_argument("--mb", type=float, default=64.0, help="of the state")
    return parser.parse_args()


if __name__ == "__main__":
    main()
