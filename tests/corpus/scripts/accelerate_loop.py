# needs: torch accelerate
"""Accelerate's loop."""

import json
import time

import torch
from torch import nn

import dlcloud_report

torch.manual_seed(2)
torch.set_num_threads(1)
x = torch.randn(200, 16)
y = x.sum(1) + torch.randn(200)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1))


def loss_of(rows):
    return nn.functional.mse_loss(model(x[rows]).squeeze(-1), y[rows])


def write(*others):
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    with open("result.json", "w") as file:
        json.dump([weights.double().sum().item(), *others], file, sort_keys=True)


from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for step in range(dlcloud_report.checkpoint(model, optimizer), 60):
    time.sleep(0.01)
    loss = loss_of(torch.randint(200, (8,)))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    print("step", step, flush=True)
    dlcloud_report.checkpoint(step=step + 1)
write()
