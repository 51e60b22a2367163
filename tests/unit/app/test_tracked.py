"""A recipe without a tracker imports nothing of one."""

import subprocess
import sys

PROGRAM = """
import sys
import dlcloud.app.clusters.up, dlcloud.app.clusters.hand_over, dlcloud.app.results.export
from dlcloud.app.results.tracking import tracked
from dlcloud.recipe.recipe import read_recipe
recipe = read_recipe("name: a\\ninstances: {types: [c5.large]}\\nworkload: {command: x}", "a")
with tracked(None, recipe, lambda: 1 / 0):
    pass
ours = ("dlcloud.trackers", "dlcloud.app.results.tracking", "mlflow")
print([name for name in sys.modules if name.startswith(ours)])
"""


def test_nothing_of_a_tracker_is_imported_where_none_is_named():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
