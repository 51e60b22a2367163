# needs: xgboost
"""XGBoost with evaluations and early stopping."""

import hashlib
import json
import time

import numpy as np
import xgboost

chance = np.random.default_rng(1)
x = chance.normal(size=(600, 12))
y = x[:, 0] * x[:, 1] + chance.normal(size=600)


def write(model, *others):
    with open("result.json", "w") as file:
        json.dump([hashlib.sha256(model).hexdigest(), *others], file, sort_keys=True)


class Steps(xgboost.callback.TrainingCallback):
    def __init__(self):
        self.rounds = []

    def after_iteration(self, model, epoch, evals_log):
        time.sleep(0.01)
        self.rounds.append(epoch)
        print("tree", epoch, flush=True)
        return False


steps = Steps()

train, held_out = xgboost.DMatrix(x[:500], y[:500]), xgboost.DMatrix(x[500:], y[500:])
log = {}
booster = xgboost.train(
    {"max_depth": 3, "eta": 0.1, "nthread": 1},
    train,
    60,
    evals=[(train, "train"), (held_out, "held_out")],
    early_stopping_rounds=15,
    evals_result=log,
    verbose_eval=10,
    callbacks=[steps],
)
write(booster.save_raw("json"), log, booster.best_iteration, steps.rounds)
