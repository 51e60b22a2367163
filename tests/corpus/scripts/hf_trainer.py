# needs: torch transformers accelerate
"""Trainer with evaluation, the best model, early stopping and gradient accumulation."""

import json
import time

import torch
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments, set_seed


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
    num_train_epochs=6,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    logging_steps=7,
    eval_strategy="steps",
    eval_steps=10,
    save_steps=20,
    load_best_model_at_end=True,
    lr_scheduler_type="cosine",
    warmup_steps=5,
    **COMMON,
)
trainer = Trainer(
    model=Net(),
    args=arguments,
    train_dataset=data,
    eval_dataset=data[:40],
    callbacks=[steps, EarlyStoppingCallback(30)],
)
assert trainer.train().training_loss > 0
write(trainer)
