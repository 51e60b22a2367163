"""A quick part of the corpus; DLCLOUD_TEST_CORPUS=10 interrupts every script at ten moments."""

import os
from pathlib import Path

import pytest

from dlcloud.benchmarks.resume import install
from tests.corpus.run import Forks, examine, lacks, scripts

MOMENTS = int(os.environ.get("DLCLOUD_TEST_CORPUS", "0"))
QUICK = {"standard_library.py", "catches_everything.py", "ignores_sigterm.py", "seeded_by_time.py"}


@pytest.fixture
def forks(tmp_path: Path):
    install(tmp_path)
    forks = Forks(tmp_path)
    yield forks
    forks.close()


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.name)
def test_an_interrupted_script_has_the_result_of_an_undisturbed_run(script, forks):
    if not MOMENTS and script.name not in QUICK:
        pytest.skip("only with DLCLOUD_TEST_CORPUS=10")
    if missing := lacks(script, forks.python):
        pytest.skip(f"not installed: {', '.join(missing)}")
    verdict = examine(script, forks, moments=MOMENTS or 2, seed=1)
    assert verdict.wrong == []
    assert verdict.refused == 0
