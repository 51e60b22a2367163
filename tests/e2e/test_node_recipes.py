"""The recipes over several nodes, rehearsed as they stand by `up --cloud local`.

Their environments are heavy, so they run only where all is asked for.
"""

import os

import pytest

from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names, recipe_text

OVER_NODES = [name for name in recipe_names() if read_recipe(recipe_text(name)[0], name).workload.nodes]


@pytest.mark.timeout(1200)  # environments of up to 1.5 GB, and Java
@pytest.mark.skipif(os.environ.get("DLCLOUD_TEST_RECIPES") != "all", reason="DLCLOUD_TEST_RECIPES=all")
@pytest.mark.parametrize("name", OVER_NODES)
def test_a_recipe_over_nodes_is_rehearsed(user, name):
    rows = user.json("up", name, "--cloud", "local")["result"]["records"]
    assert {row["nodes"] for row in rows} == {read_recipe(recipe_text(name)[0], name).instances.maximum}
    assert all(row["throughput"] > 0 for row in rows)
    assert user.alive() == []
