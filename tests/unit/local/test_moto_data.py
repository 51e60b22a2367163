"""What the daemon loads of moto's tables is what moto loads, and all regions are there."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
if sys.argv[1] == "less":
    from dlcloud.local.moto_data import RegionOfferings, load_less
    load_less()
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
for kind, regions in INSTANCE_TYPE_OFFERINGS.items():
    if sys.argv[1] == "less":
        assert not any(regions.values())
        INSTANCE_TYPE_OFFERINGS[kind] = RegionOfferings(kind, list(regions), ["p3.2xlarge"])
shown = {kind: regions.get("eu-west-1", []) for kind, regions in INSTANCE_TYPE_OFFERINGS.items()}
places = {kind: sorted(regions) for kind, regions in INSTANCE_TYPE_OFFERINGS.items()}
added = [entry for entries in shown.values() for entry in entries if entry["InstanceType"] == "p3.2xlarge"]
shown = {kind: [e for e in entries if e not in added] for kind, entries in shown.items()}
print(json.dumps([INSTANCE_TYPES, shown, places, len(added)], sort_keys=True))
"""


def load(how):
    words = [sys.executable, "-c", PROGRAM, how]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_types_and_offerings_are_those_of_moto_and_retired_types_are_added():
    less, moto = load("less"), load("moto")
    assert less[:3] == moto[:3]
    assert less[1]["region"]
    assert less[3] == 7  # three zones by name and by id, and the region
