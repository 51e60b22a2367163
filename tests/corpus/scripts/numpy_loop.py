# needs: numpy
"""NumPy alone, with a generator of its own."""

import json
import sys
import time

import numpy as np

import dlcloud_report

x = np.random.default_rng(0).normal(size=(100, 8))
y = x.sum(1)
state = {"weights": np.zeros(8), "losses": []}
chance = np.random.default_rng(int(sys.argv[1]) if sys.argv[1:] else 6)


def advance(step):
    time.sleep(0.01)
    rows = chance.integers(100, size=4)
    error = x[rows] @ state["weights"] - y[rows]
    state["weights"] = state["weights"] - 0.02 * x[rows].T @ error
    state["losses"].append(float((error**2).mean()))
    print("step", step, flush=True)


def write(name="result.json"):
    with open(name, "w") as file:
        json.dump([state["weights"].tolist(), state["losses"]], file)


for step in range(dlcloud_report.checkpoint(state, chance), 60):
    advance(step)
    dlcloud_report.checkpoint(step=step + 1, of=60)
write()
