# needs: torch
"""A loop over steps with a scheduler and a list of its own."""

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


optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=80)
losses = []
first = dlcloud_report.checkpoint(model, optimizer, scheduler, losses)
for step in range(first, 80):
    time.sleep(0.01)
    loss = loss_of(torch.randint(200, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    print("step", step, flush=True)
    dlcloud_report.checkpoint(step=step + 1)
write(losses)
