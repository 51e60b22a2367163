# needs: torch
"""A loop over a DataLoader with workers, an epoch at a time."""

import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dlcloud_report

torch.manual_seed(2)
torch.set_num_threads(1)
x = torch.randn(160, 16)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=20, shuffle=True, num_workers=2)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
losses = []
for epoch in range(dlcloud_report.checkpoint(model, optimizer, losses), 8):
    for inputs, targets in loader:
        time.sleep(0.01)
        loss = nn.functional.mse_loss(model(inputs).squeeze(-1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print("step", len(losses), flush=True)
    dlcloud_report.checkpoint(step=epoch + 1)
with open("result.json", "w") as file:
    json.dump(losses, file)
