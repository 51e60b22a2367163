"""How long all workers stop when one is lost and when one joins, by the bytes of model and optimizer state.

    python tests/performance/changeovers.py --mb 10 60 300

For each size a training of two instances runs on a local EC2 of its own; one instance ends without a notice,
and another one takes its place. All are processes of this machine: the state goes over the loopback
interface, and they share its processors. Most of the state is a frozen parameter of the model, which a
newcomer copies like weights and moments; steps that sum as many gradients, or as large a buffer, would need
longer than the training on a busy machine.
"""

import json
import subprocess
import sys
from itertools import pairwise

from common import DLCLOUD, local_home, parser_of, trainer_folder

PROGRAM = """
import time
import torch
from torch.utils.data import Dataset
from trainer.training import train

STEPS, SAMPLE_S = 600, 0.002  # 96 samples: 0.1 s on two workers, so that the replacement joins before the end

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
    with local_home() as (home, _):
        numbers = megabytes * 1_000_000 // 4  # of float32
        (home / "train.py").write_text(PROGRAM.replace("NUMBERS", str(numbers)))
        (home / "recipe.yaml").write_text(RECIPE)
        command = [DLCLOUD, "up", "recipe.yaml", "--output", "json"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    changes = [
        f"{before['world_size']} to {after['world_size']} workers {after['pause_s']:.2f} s"
        for before, after in pairwise(json.loads(done.stdout)["result"]["world_sizes"])
    ]
    print(f"{megabytes} MB of state: {', '.join(changes)}", flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 60, 300], help="10^6 bytes of state")
    options = parser.parse_args()
    with trainer_folder():  # so that the first measurement does not build the environment
        for megabytes in options.mb:
            measure(megabytes)


if __name__ == "__main__":
    main()
