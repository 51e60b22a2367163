"""The standard library alone."""

import json
import random
import time

import dlcloud_report

random.seed(8)
walk = [0.0]
for step in range(dlcloud_report.checkpoint(walk), 80):
    time.sleep(0.01)
    walk.append(walk[-1] + random.gauss(0, 1))
    print("step", step, flush=True)
    dlcloud_report.checkpoint(step=step + 1)
json.dump(walk, open("result.json", "w"))
