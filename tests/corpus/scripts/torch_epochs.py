# needs: torch
"""A loop over epochs of a shuffled DataLoader, with an average of the weights."""

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


from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
loader = DataLoader(TensorDataset(torch.arange(200)), batch_size=20, shuffle=True)
best = {"loss": 1e9}
for epoch in range(dlcloud_report.checkpoint(model, optimizer, average, best), 12):
    for (rows,) in loader:
        time.sleep(0.005)
        loss = loss_of(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        best["loss"] = min(best["loss"], loss.item())
        print("epoch", epoch, flush=True)
    dlcloud_report.checkpoint(step=epoch + 1)
write(best, sum(parameter.double().sum().item() for parameter in average.parameters()))
