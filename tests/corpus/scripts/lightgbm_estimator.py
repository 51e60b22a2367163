# needs: lightgbm sklearn
"""LightGBM as an estimator of scikit-learn's kind."""

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

model = lightgbm.LGBMRegressor(n_estimators=50, num_leaves=7, verbosity=-1, n_jobs=1, deterministic=True)
model.fit(x[:500], y[:500], eval_set=[(x[500:], y[500:])], callbacks=[steps])
write(model.predict(x).tobytes(), model.evals_result_, steps.rounds)
