# needs: torch lightning
"""Lightning with two optimizers that the module steps itself, over a stream of samples."""

import json
import random
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(90):
            x = torch.randn(16) * random.random()
            yield x, x.sum()


class Net(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        time.sleep(0.01)
        loss = nn.functional.mse_loss(self.head(self.body(batch[0])).squeeze(-1), batch[1])
        self.manual_backward(loss)
        head, body = self.optimizers()
        head.step()
        head.zero_grad()
        if batch_idx % 3 == 2:  # the body's gradients accumulate
            body.step()
            body.zero_grad()
        self.seen.append(loss.item())
        print("step", batch_idx, flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.head.parameters()), torch.optim.Adam(self.body.parameters())


lightning.seed_everything(7)
model = Net()
trainer = lightning.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(model, DataLoader(Stream(), batch_size=5))
weights = sum(parameter.double().sum().item() for parameter in model.parameters())
with open("result.json", "w") as file:
    json.dump([weights, model.seen], file)
