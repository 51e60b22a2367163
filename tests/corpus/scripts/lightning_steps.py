# needs: torch pytorch_lightning
"""pytorch_lightning by steps: validations within an epoch, a scheduler per step, loaders with workers."""

import json
import time

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1))
        self.seen, self.validated = [], []

    def training_step(self, batch, batch_idx):
        time.sleep(0.01)
        loss = nn.functional.mse_loss(self.body(batch[0]).squeeze(-1), batch[1])
        self.seen.append([batch_idx, loss.item(), self.optimizers().param_groups[0]["lr"]])
        print("step", self.global_step, flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.validated.append(nn.functional.mse_loss(self.body(batch[0]).squeeze(-1), batch[1]).item())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=70)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


pl.seed_everything(5)
x = torch.randn(200, 16)
data = TensorDataset(x, x.sum(1))
model = Net()
trainer = pl.Trainer(
    max_steps=70,
    accelerator="cpu",
    val_check_interval=7,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(
    model,
    DataLoader(data, batch_size=10, shuffle=True, num_workers=1, persistent_workers=True),
    DataLoader(data, batch_size=100),
)
weights = sum(parameter.double().sum().item() for parameter in model.parameters())
with open("result.json", "w") as file:
    json.dump([weights, model.seen, model.validated, trainer.current_epoch], file)
