"""A script that saves its state and can resume survives the loss of its instance, unchanged."""

import re

import pytest
from terminal import TIMEOUT_S, wait_until

SCRIPT = """\
import os, pathlib, time
folder = pathlib.Path(os.environ["DLCLOUD_CHECKPOINTS"])
last, total, step = folder / "last", 0, 0
if last.exists():
    step, total = map(int, last.read_text().split())
print("begins at", step, os.environ.get("DLCLOUD_RESUME"), flush=True)
is_first_life = not step
while step < 60:
    time.sleep(0.1)
    if is_first_life and step == 40:
        continue  # it ends on another instance only
    step += 1
    total += step * step
    if step % 10 == 0:
        path = folder / f"step-{step}.txt"
        with path.open("w") as file:  # not atomic
            file.write(f"{step} ")
            file.flush()
            time.sleep(0.2)
            file.write(f"{total}")
        link = folder / "last.new"
        link.symlink_to(path.name)
        link.replace(last)
        for old in folder.glob("step-*.txt"):  # only the newest file is kept
            if old != path:
                old.unlink()
pathlib.Path("result.txt").write_text(str(total))
"""
RECIPE = """\
name: {name}
cloud: local
instances: {{types: [c5.xlarge, c5.2xlarge], market: spot}}
workload:
  command: python3 train.py
  files: train.py
  checkpoints: [ckpt/]
  resume: auto
  {more}
budget: {{max_hours: 1}}
"""


def begin(user, name, *, script=SCRIPT, more=""):
    """Start an `up`; return its process once a checkpoint was copied."""
    (user.home / "train.py").write_text(script)
    path = user.home / f"{name}.yaml"
    path.write_text(RECIPE.format(name=name, more=more))
    process = user.begin("up", str(path), "--name", name)
    wait_until(lambda: list((user.home / ".dlcloud/checkpoints").glob(f"{name}-*/0/state-*.json")))
    return process


@pytest.mark.parametrize("grace", ["0", "40"])
def test_a_script_resumes_on_the_replacement_with_and_without_a_notice(user, grace):
    name = f"resumes{grace}"
    process = begin(user, name)
    (first,) = user.alive()
    user.run("local", "interrupt", first, "--grace", grace)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    assert re.search(r"restoring checkpoint \d+", err), err
    (result,) = (user.home / ".dlcloud/runs").glob(f"{name}-*/files/result.txt")
    assert result.read_text() == str(sum(step * step for step in range(61)))
