# needs: lightgbm
"""LightGBM with evaluations recorded, early stopping and a schedule."""

import hashlib
import json
import time

import lightgbm
import numpy as np

chance = np.random.default_rng(1)
x = chance.normal(size=(600, 12))
y = x[:, 0] * x[:, 1] + chance.normal(size=600)


def write(model, *others):
    with open("result.json", "w") as file:
        json.dump([hashlib.sha256(model).hexdigest(), *others], file, sort_keys=True)


rounds = []


class Steps:
    order = 5

    def __init__(self):
        self.rounds = []

    def __call__(self, env):
        time.sleep(0.01)
        self.rounds.append([env.iteration, env.begin_iteration])
        print("tree", env.iteration, flush=True)


steps = Steps()

log = {}
train = lightgbm.Dataset(x[:500], y[:500])
booster = lightgbm.train(
    {"verbosity": -1, "num_threads": 1, "deterministic": True, "num_leaves": 7},
    train,
    60,
    valid_sets=[train.create_valid(x[500:], y[500:])],
    callbacks=[
        steps,
        lightgbm.record_evaluation(log),
        lightgbm.early_stopping(20, verbose=False),
        lightgbm.reset_parameter(learning_rate=lambda number: 0.1 * 0.99**number),
    ],
)
write(booster.predict(x).tobytes(), log, booster.best_iteration, steps.rounds)
