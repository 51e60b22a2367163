"""The recipes over several nodes, made small, on three instances.

Their environments are heavy, so they run only where all is asked for.
"""

import os

import pytest

from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names, recipe_text

SMALL = {
    "torchrun-ddp": {"--steps 100": "--steps 10 --width 4 --size 32 --batch 4"},
    "spark-bigdl": {"--copies 200": "--copies 2"},
    "mpi": {"--steps 300": "--steps 20 --batch 16"},
    "ray-data": {"--copies 500": "--copies 2"},
    "multi-worker-mirrored": {"--steps 100": "--steps 10 --width 4 --size 32 --batch 4"},
}
OVER_NODES = [name for name in recipe_names() if read_recipe(recipe_text(name)[0], name).workload.nodes]


def test_every_recipe_over_nodes_has_a_small_form():
    assert sorted(SMALL) == OVER_NODES


@pytest.mark.timeout(1200)  # environments of up to 1.5 GB, and Java
@pytest.mark.skipif(os.environ.get("DLCLOUD_TEST_RECIPES") != "all", reason="DLCLOUD_TEST_RECIPES=all")
@pytest.mark.parametrize("name", OVER_NODES)
def test_a_recipe_over_nodes_runs_small_on_three_instances(user, name):
    text = recipe_text(name)[0]
    for of_aws, of_here in {**SMALL[name], "repeats: 6": "repeats: 1", "count: 4": "count: 3"}.items():
        assert of_aws in text or of_aws == "count: 4"
        text = text.replace(of_aws, of_here)
    path = user.home / f"{name}.yaml"
    path.write_text(text)
    rows = user.json("bench", "--recipe", str(path), "--cloud", "local", "-i", "c7i.large")["result"][
        "records"
    ]
    assert {row["nodes"] for row in rows} == {3}
    assert all(row["throughput"] > 0 for row in rows)
    assert user.alive() == []
