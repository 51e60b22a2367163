# needs: xgboost sklearn
"""XGBoost as an estimator of scikit-learn's kind, with a schedule of learning rates."""

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

rates = xgboost.callback.LearningRateScheduler(lambda number: 0.3 * 0.97**number)
model = xgboost.XGBRegressor(n_estimators=60, max_depth=3, n_jobs=1, callbacks=[steps, rates])
model.fit(x[:500], y[:500], eval_set=[(x[500:], y[500:])], verbose=False)
write(model.get_booster().save_raw("json"), model.evals_result(), steps.rounds)
