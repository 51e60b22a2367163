"""A training by torchrun over several nodes continues after one of them was reclaimed."""

import json
import re

import pytest
from terminal import TIMEOUT_S, wait_until

from dlcloud.elastic.agents import PACKAGE
from tests.environments import python_with

SCRIPT = """\
import json, time
import torch, torch.distributed as dist
from torch import nn
import dlcloud_report

STEPS = 400

def begin():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    torch.manual_seed(7 + rank)
    model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.Adam(model.parameters())

def advance(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()

def weights(model):
    return [parameter.double().sum().item() for parameter in model.parameters()]

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model, optimizer = begin()
first = dlcloud_report.checkpoint(model, optimizer)
for step in range(first, STEPS):
    time.sleep(0 if first else 0.5)  # the first life lasts until it is interrupted
    advance(model, optimizer)
    if not rank and step % 10 == 0:
        print("step", step, flush=True)
    dlcloud_report.checkpoint(step=step + 1)
interrupted = weights(model)
model, optimizer = begin()
for step in range(STEPS):
    advance(model, optimizer)
if not rank:
    with open("result.json", "w") as file:
        json.dump({"first": first, "is_equal": interrupted == weights(model)}, file)
dist.destroy_process_group()
"""
RECIPE = """\
name: torchrun
cloud: local
instances: {{types: [c5.xlarge, c5.2xlarge], market: spot, count: 2}}
workload:
  nodes: all
  command: {python} -m torch.distributed.run --nproc-per-node 1 train.py
  files: train.py
  checkpoints: [checkpoints/]
  resume: auto
budget: {{max_hours: 1}}
"""


@pytest.mark.long
def test_torchrun_over_two_nodes_resumes_after_the_notice_of_one(user):
    """The ranks draw different random numbers: the result is that of an undisturbed run.

    With more than two, DistributedDataParallel adds up its first step after a restart in another order.
    """
    python = python_with(PACKAGE / "requirements" / "elastic.txt")
    (user.home / "train.py").write_text(SCRIPT)
    path = user.home / "torchrun.yaml"
    path.write_text(RECIPE.format(python=python))
    process = user.begin("up", str(path), "--name", "torchrun")
    wait_until(lambda: "step 10" in user.run("logs", "torchrun", expect=None).stdout)
    (lost,) = user.store("SELECT instance_id FROM runs WHERE cluster_name = 'torchrun' AND rank = 1")
    user.run("local", "interrupt", lost[0], "--grace", "60")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    assert "an interruption notice of rank 1" in err
    assert re.search(r"the program starts again [0-9.]+ s after the notice: ", err)
    assert re.search(r"restoring checkpoint \d+", err), err
    (result,) = (user.home / ".dlcloud/runs").glob("torchrun-*/files/result.json")
    result = json.loads(result.read_text())
    assert result["first"] >= 10
    assert result["is_equal"]
