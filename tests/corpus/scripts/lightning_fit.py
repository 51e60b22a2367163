# needs: torch lightning
"""Lightning with validation, the best model, early stopping, accumulation, metrics of an epoch, a CSV log."""

import json
import time

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError


class Steps(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        time.sleep(0.01)
        self.seen.append(trainer.global_step)
        print("step", trainer.global_step, flush=True)


class Net(lightning.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 1)
        )
        self.error = MeanAbsoluteError()
        self.losses = []

    def loss_of(self, batch):
        return nn.functional.mse_loss(self.body(batch[0]).squeeze(-1), batch[1])

    def training_step(self, batch, batch_idx):
        loss = self.loss_of(batch)
        self.losses.append(loss.detach())
        self.error(self.body(batch[0]).squeeze(-1), batch[1])
        self.log("error", self.error, on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss_of(batch))

    def on_train_epoch_end(self):
        self.log("mean", torch.stack(self.losses).mean())
        self.losses.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


lightning.seed_everything(3)
x = torch.randn(203, 16)
data = TensorDataset(x, x.sum(1) + torch.randn(203))
steps, best = Steps(), ModelCheckpoint(monitor="val_loss", save_last=True)
trainer = lightning.Trainer(
    max_epochs=6,
    accelerator="cpu",
    accumulate_grad_batches=2,
    log_every_n_steps=3,
    gradient_clip_val=1.0,
    callbacks=[steps, best, EarlyStopping("val_loss", patience=2)],
    logger=CSVLogger("."),
    enable_progress_bar=False,
)
model = Net()
trainer.fit(model, DataLoader(data, batch_size=12, shuffle=True), DataLoader(data, batch_size=50))
test = trainer.validate(model, DataLoader(data, batch_size=50), ckpt_path="best", verbose=False)
log = open(trainer.logger.experiment.metrics_file_path).read()
weights = sum(parameter.double().sum().item() for parameter in model.parameters())
with open("result.json", "w") as file:
    json.dump([weights, test, steps.seen, best.best_model_score.item(), log], file, sort_keys=True)
