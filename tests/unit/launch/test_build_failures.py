"""One sentence says why an environment was not built."""

import pytest

from dlcloud.launch.setup import name_failure
from dlcloud.model.errors import RemoteCommandError

COMMAND = "i-1: `python3 dlcloud/environment.py ab` ended with status 1:\ninstalling numpy==9\n"
RETRY = (
    "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by "
    "'NewConnectionError(...: Failed to establish a new connection')': /numpy/\n"
)
PIP = """\
ERROR: Ignored the following versions: 2.5.0rc1 Requires-Python >=3.13; 2.5.0 Requires-Python >=3.12
ERROR: Could not find a version that satisfies the requirement {0} (from versions: 1.0, 2.4.6)
ERROR: No matching distribution found for {0}

[notice] A new release of pip is available: 23.2.1 -> 26.3
"""
UV = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of numpy==99.4 and you require numpy==99.4,
         we can conclude that your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (PIP.format("numpy==99.4"), "the package index has no numpy==99.4"),
        (UV, "the package index has no numpy==99.4"),
        ("Because nosuch was not found in the package registry", "the package index has no nosuch"),
        (PIP.format("numpy==2.5.0"), "numpy==2.5.0 needs Python >=3.12"),
        (5 * RETRY + PIP.format("numpy==1"), "the package index does not answer for numpy==1"),
        ("error: Failed to fetch: `https://index/simple/numpy/`", "the package index does not answer"),
        (
            "Cannot install a==1 and b==2 because these package versions have conflicting dependencies.",
            "a==1 and b==2 need versions of others that exclude each other",
        ),
    ],
)
def test_known_causes_are_one_sentence(output, sentence):
    named = name_failure(RemoteCommandError(COMMAND + output), "i-1")
    assert named.message == f"i-1: the environment was not built: {sentence}"
    assert named.hint


def test_other_causes_keep_their_output_without_the_noise_of_pip():
    output = "WARNING: Retrying (x)\nerror: command 'gcc' failed\n\n[notice] A new release of pip\n"
    named = name_failure(RemoteCommandError(COMMAND + output), "i-1")
    assert named.message == f"{COMMAND}error: command 'gcc' failed"
