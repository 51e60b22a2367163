"""A quick part of the corpus; DLCLOUD_TEST_CORPUS=10 interrupts every script at ten moments."""

import os
from pathlib import Path

import pytest

from tests.corpus.run import Instances, examine, lacks, scripts

MOMENTS = int(os.environ.get("DLCLOUD_TEST_CORPUS", "0"))
QUICK = {"catches_everything.py", "ignores_sigterm.py", "seeded_by_time.py"}


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    instances = Instances(tmp_path_factory.mktemp("corpus"))
    yield instances
    instances.close()


@pytest.mark.long
@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.name)
def test_an_interrupted_script_has_the_result_of_an_undisturbed_run(script: Path, instances):
    if not MOMENTS and script.name not in QUICK:
        pytest.skip("only with DLCLOUD_TEST_CORPUS=10")
    if missing := lacks(script, instances.python):
        pytest.skip(f"not installed: {', '.join(missing)}")
    verdict = examine(script, instances, moments=MOMENTS or 2, seed=1)
    assert verdict.wrong == []
    assert verdict.refused == 0
