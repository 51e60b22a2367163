"""How long all workers stop when one is lost and when one joins, by the bytes of model and optimizer state.

    python3 tests/performance/changeovers.py --mb 10 100

For each size a training of two instances runs on a local EC2 of its own; one instance ends without a notice,
and another one takes its place. All are processes of this machine: the state goes over the loopback
interface, and they share its processors.
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

from dlcloud.elastic.training_program import PACKAGE  # noqa: E402  the path comes first
from tests.environments import python_with  # noqa: E402

BYTES_PER_PARAMETER = 12
"""A parameter and two moments of Adam, of 4 bytes each."""
STEPS = 400
TIMEOUT_S = 600
PROGRAM = """
import torch
from torch.utils.data import Dataset
from trainer.training import train

class Ones(Dataset):
    def __len__(self):
        return 96 * STEPS

    def __getitem__(self, index):
        return torch.ones(1), torch.ones(1)

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(PARAMETERS))

    def forward(self, batch):
        return batch * self.weights[:1]

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
        parameters = megabytes * 1_000_000 // BYTES_PER_PARAMETER
        text = PROGRAM.replace("PARAMETERS", str(parameters)).replace("STEPS", str(STEPS))
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
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 100], help="10^6 bytes of state")
    options = parser.parse_args()
    python_with(PACKAGE / "requirements" / "elastic.txt")
    for megabytes in options.mb:
        measure(megabytes)


if __name__ == "__main__":
    main()
