"""A recipe without a tracker imports nothing of one."""

import subprocess
import sys

PROGRAM = """
import sys
import dlcloud.app.clusters.up, dlcloud.app.clusters.hand_over, dlcloud.app.results.export
ours = ("dlcloud.trackers", "dlcloud.app.results.tracking", "mlflow")
print([name for name in sys.modules if name.startswith(ours)])
"""


def test_nothing_of_a_tracker_is_imported_where_none_is_named():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
