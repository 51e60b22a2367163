# needs: torch transformers accelerate
"""Trainer that saves nothing, with an evaluation each epoch."""

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
    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **_):
        time.sleep(0.01)
        self.seen.append(state.global_step)
        print("step", state.global_step, flush=True)


def write(*trainers):
    results = []
    for trainer in trainers:
        log = [
            {k: v for k, v in entry.items() if "per_second" not in k and "runtime" not in k}
            for entry in trainer.state.log_history
        ]
        weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
        results.append([weights.double().sum().item(), weights.abs().double().sum().item(), log])
    with open("result.json", "w") as file:
        json.dump([results, steps.seen], file, sort_keys=True)


set_seed(3)
steps = Steps()
data = [{"x": torch.randn(16), "labels": torch.randn(())} for _ in range(203)]
COMMON = dict(output_dir="out", report_to=[], disable_tqdm=True, use_cpu=True)

arguments = TrainingArguments(
    num_train_epochs=3,
    per_device_train_batch_size=8,
    logging_strategy="epoch",
    eval_strategy="epoch",
    save_strategy="no",
    **COMMON,
)
trainer = Trainer(model=Net(), args=arguments, train_dataset=data, eval_dataset=data[:40], callbacks=[steps])
trainer.train()
write(trainer)
