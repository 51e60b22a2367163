"""How long all workers stop when one is lost and when one joins, by the bytes of model and optimizer state.

    python3 tests/performance/changeovers.py --mb 10 60 300

For each size a training of two instances runs on a local EC2 of its own; one instance ends without a notice,
and another one takes its place. All are processes of this machine: the state goes over the loopback
interface, and they share its processors. Most of the state is a frozen parameter of the model, which a
newcomer copies like weights and moments; steps that sum as many gradients, or as large a buffer, would need
longer than the training on a busy machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dlcloud.elastic.agents import PACKAGE  # noqa: E402  the path comes first
from tests.environments import python_with  # noqa: E402

BYTES_PER_NUMBER = 4
STEPS = 600
SAMPLE_S = 0.002
"""A step takes 96 samples: 0.1 s on two workers, so that the replacement joins before the last one."""
TIMEOUT_S = 900
PROGRAM = """
import time
import torch
from torch.utils.data import Dataset
from trainer.training import train

class Ones(Dataset):
    def __len__(self):
        return 96 * STEPS

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return torch.ones(1), torch.ones(1)

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(1))
        self.rest = torch.nn.Parameter(torch.ones(NUMBERS), requires_grad=False)

    def forward(self, batch):
        return batch * self.weights

torch.manual_seed(0)
model = Wide()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
train(model, optimizer, Ones(), loss, batch=96, epochs=1)
"""
RECIPE = """\
name: changeovers
cloud: local
instances: {types: [c7i.xlarge], count: {min: 1, max: 2}, market: spot, on_demand_base: 1}
workload:
  command: python3 train.py
  files: ./train.py
  elastic: {checkpoint_seconds: 600}
rehearsal: [{after: 4, kill: 0}]
budget: {max_hours: 1}
"""


def measure(megabytes: int) -> None:
    """Print the pauses of one training."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        numbers = {
            "NUMBERS": str(megabytes * 1_000_000 // BYTES_PER_NUMBER),
            "STEPS": str(STEPS),
            "SAMPLE_S": str(SAMPLE_S),
        }
        text = PROGRAM
        for name_in_text, number in numbers.items():
            text = text.replace(name_in_text, number)
        (home / "train.py").write_text(text)
        (home / "recipe.yaml").write_text(RECIPE)
        try:
            done = call(home, "up", "recipe.yaml", "--output", "json")
        finally:
            call(home, "local", "stop")
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    periods = json.loads(done.stdout)["result"]["world_sizes"]
    changes = [
        f"{before['world_size']} to {after['world_size']} workers {after['pause_s']:.2f} s"
        for before, after in pairwise(periods)
    ]
    print(f"{megabytes} MB of state: {', '.join(changes)}", flush=True)


def call(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run dlcloud in a home."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("dlcloud")), *words],
        cwd=home,
        env={**os.environ, "DLCLOUD_HOME": str(home / ".dlcloud")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 60, 300], help="10^6 bytes of state")
    options = parser.parse_args()
    python_with(PACKAGE / "requirements" / "elastic.txt")
    for megabytes in options.mb:
        measure(megabytes)


if __name__ == "__main__":
    main()
