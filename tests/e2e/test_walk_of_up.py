"""The way from the use case to AWS is short, and a plain `up` takes no detour."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_FRAMES, MOST_FILES = 8, 5


@pytest.fixture(scope="module")
def walk(user):
    """What a plain `up` called and imported."""
    path = user.home / "walk.json"
    walker = replace(
        user,
        command=(sys.executable, str(Path(__file__).with_name("walk.py"))),
        variables={"WALK_FILE": str(path), "PYTHONPATH": str(ROOT)},
    )
    walker.run("up", walker.recipe())
    return json.loads(path.read_text())


@pytest.mark.parametrize("operation", ["GetCallerIdentity", "RunInstances"])
def test_from_the_use_case_to_boto3_it_is_not_far(walk, operation):
    frames = next(frames for name, frames in walk["calls"] if name == operation)
    names = [f"{path}: {name}" for path, name in frames]
    way = names[names.index("app/clusters/up.py: run") :]
    files = {step.partition(":")[0] for step in way}
    assert len(way) <= MOST_FRAMES, way
    assert len(files) <= MOST_FILES, files


def test_the_first_call_of_up_is_one_of_preflight(walk):
    _, frames = walk["calls"][0]
    assert ["launch/preflight.py", "run_preflight"] in frames


def test_a_plain_up_imports_nothing_of_the_detached_mode(walk):
    assert [name for name in walk["modules"] if "detach" in name and name.startswith("dlcloud")] == []
