# needs: torch transformers accelerate
"""Trainer whose samples are loaded by processes."""

import json
import time

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1))

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.body(x).squeeze(-1), labels)}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(0.01)
        print("step", state.global_step, flush=True)


set_seed(3)
data = [{"x": torch.randn(16), "labels": torch.randn(())} for _ in range(160)]
arguments = TrainingArguments(
    output_dir="out",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    num_train_epochs=4,
    per_device_train_batch_size=8,
    dataloader_num_workers=2,
    save_strategy="no",
    logging_steps=7,
)
trainer = Trainer(Net(), arguments, train_dataset=data, callbacks=[Steps()])
trainer.train()
log = [entry.get("loss") for entry in trainer.state.log_history]
weights = sum(parameter.double().sum().item() for parameter in trainer.model.parameters())
with open("result.json", "w") as file:
    json.dump([weights, log], file)
