# resume: none
"""A script that keeps only its newest file, and finds it by its name."""

import json
import os
import random
import time
from pathlib import Path

folder = Path("ckpt")
random.seed(8)
walk = [0.0]
for path in folder.glob("step-*.json"):
    saved = json.loads(path.read_text())
    if len(saved[0]) > len(walk):
        walk, state = saved
        random.setstate((state[0], tuple(state[1]), state[2]))
        print("resumes", flush=True)
for step in range(len(walk) - 1, 80):
    time.sleep(0.01)
    walk.append(walk[-1] + random.gauss(0, 1))
    if step % 8 == 7:
        (folder / "new").write_text(json.dumps([walk, random.getstate()]))
        os.replace(folder / "new", folder / f"step-{step}.json")
        for path in folder.glob("step-*.json"):
            if path.name != f"step-{step}.json":
                path.unlink()
    print("step", step, flush=True)
json.dump(walk, open("result.json", "w"))
