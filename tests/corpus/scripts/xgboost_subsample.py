# needs: xgboost
"""XGBoost with subsample, whose random numbers it does not save: what does not depend on them is compared."""

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

log = {}
train = xgboost.DMatrix(x, y)
booster = xgboost.train(
    {"subsample": 0.7, "nthread": 1},
    train,
    50,
    evals=[(train, "train")],
    evals_result=log,
    callbacks=[steps],
    verbose_eval=False,
)
write(
    b"", booster.num_boosted_rounds(), len(log["train"]["rmse"]), log["train"]["rmse"][-1] < 0.5, steps.rounds
)
