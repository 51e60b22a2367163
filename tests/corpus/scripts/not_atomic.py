# resume: none
"""A script that overwrites its one checkpoint in place, and cannot read one that was cut off."""

import json
import os
import random
import time

random.seed(8)
walk, first = [0.0], 0
if os.path.exists("ckpt/state.json"):
    walk, first, state = json.load(open("ckpt/state.json"))
    random.setstate((state[0], tuple(state[1]), state[2]))
    print("resumes", flush=True)
for step in range(first, 60):
    time.sleep(0.01)
    walk.append(walk[-1] + random.gauss(0, 1))
    if step % 10 == 9:
        text = json.dumps([walk, step + 1, random.getstate()])
        with open("ckpt/state.json", "w") as file:
            for start in range(0, len(text), 1000):
                file.write(text[start : start + 1000])
                file.flush()
                time.sleep(0.002)
    print("step", step, flush=True)
json.dump(walk, open("result.json", "w"))
