"""A script of your own, whole: what a plain PyTorch loop has, handed to `train`. Copy it and change it.

    python3 own_script.py                                          # alone, to try it
    python3 -m trainer.agent --run my-run --worker first --coordinator 10.0.0.5 --lighthouse \
        --folder state -- python3 own_script.py                    # on the first machine, 10.0.0.5
    python3 -m trainer.agent --run my-run --worker second --coordinator 10.0.0.5 \
        --folder state -- python3 own_script.py                    # on any other, at any time

Workers may come and go at every step. Ctrl-C or SIGTERM lets one leave; kill -9 costs the others one step.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dlcloud.trainer import device, train

BATCH, EPOCHS, WARM_UP_STEPS = 64, 5, 20


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean loss over the samples of a batch, however many they are."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def schedule(step: int) -> float:
    """Return the factor of the learning rate: a function of the step alone, not of the workers."""
    return min(1.0, (step + 1) / WARM_UP_STEPS)


def main() -> None:
    """Train a small network to add its inputs up."""
    # Seeded, so that all workers begin with the same parameters and samples.
    torch.manual_seed(0)
    inputs = torch.rand(2000, 8)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    outcome = train(
        model,
        optimizer,
        dataset,
        loss,
        batch=BATCH,  # over all workers: it stays the same when they come and go
        epochs=EPOCHS,
        schedule=schedule,
        before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )

    # Only where training has ended, and there only on one worker.
    if outcome.first:
        torch.save(model.state_dict(), "model.pt")
        print(f"{outcome.steps} steps, loss {outcome.loss:.5f}")  # noqa: T201


if __name__ == "__main__":
    main()
