"""What holds for every test."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests import leftovers
from tests.programs import COREUTILS, OF_PYTHON, OF_THE_PRODUCT, PROGRAMS

# No example fails because the machine is busy.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Tests start some thousand programs: none should compile dlcloud and its libraries anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Threads that wait for others give their core away. Two test files run at once: with the defaults, which poll
# for some time, programs of two threads each on two cores take five times as long.
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "OPENBLAS_NUM_THREADS": "1"}
# No test reads or changes the configuration of the user who runs it: there can be no file below a device.
os.environ["DLCLOUD_CONFIG"] = "/dev/null/config.yaml"


LISTED = frozenset({program.name for program in PROGRAMS}) | COREUTILS | OF_PYTHON | OF_THE_PRODUCT
OWN = tuple(
    f"{Path(folder).resolve()}/"
    for folder in (tempfile.gettempdir(), Path(__file__).parents[1], sys.prefix, sys.base_prefix)
)
"""Programs below these are of the tests, of this checkout, or of Python."""


QUICK = (
    "test_lint.py", "test_docs.py", "elastic", "launch", "model", "planning", "prediction", "recipe",
    "report", "results", "runs", "scheduling", "store",
)  # fmt: skip
"""What --quick runs of tests/unit: little of it starts a program, and none of it a local EC2."""
LONG = (
    "elastic/test_deadline_replay.py",
    "scheduling/test_deadline_costs.py",
    "scheduling/test_never_late.py",
)
"""What it leaves out of that: many replays of traces."""
FIRST = ("test_lint.py", "test_checkpoints_program.py", "test_environment.py", "test_crash_safety.py")


class UnlistedProgramError(Exception):
    """A test calls a program that tests/programs.py does not name."""


def _refuse_unlisted(event, arguments):
    """Refuse a program of this machine that one with Python, sh and coreutils alone does not have."""
    if event != "subprocess.Popen":
        return
    name, environment = os.fsdecode(arguments[0]), arguments[3] or os.environ
    program = shutil.which(name, path=environment.get("PATH", os.defpath))
    if program is None:
        return  # what is not there fails by itself
    is_own = "/" in program and os.path.abspath(program).startswith(OWN)  # noqa: PTH100  links stay
    if not is_own and os.path.basename(name) not in LISTED:  # noqa: PTH119
        message = f"{name} is not in tests/programs.py"
        raise UnlistedProgramError(message)


def pytest_addoption(parser):
    """Let a developer run a minute's tests before each commit, and everything before a release."""
    parser.addoption("--quick", action="store_true", help="the rules, and most unit tests: a minute")
    parser.addoption("--all", action="store_true", help="also the tests that are marked as long")


def pytest_ignore_collect(collection_path, config):
    """Leave out all that --quick does not name."""
    if not config.getoption("quick"):
        return None
    unit = Path(__file__).parent / "unit"
    if collection_path in {unit / name for name in LONG}:
        return True
    named = [unit / name for name in QUICK]
    is_quick = any(
        path == collection_path or path in collection_path.parents or collection_path in path.parents
        for path in named
    )
    return None if is_quick else True


def pytest_collection_modifyitems(config, items):
    """Begin with the longest files; leave out what is marked as long, except with --all and in named files.

    The type checks take a minute of one processor, the others wait: at the end, all would wait for them.
    """
    items.sort(key=lambda item: item.path.name not in FIRST)
    if config.getoption("all"):
        return
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    long = [item for item in items if item.get_closest_marker("long") and item.path not in named]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]


def pytest_runtest_setup():
    """Take back the profile that a command line of an earlier test, run in this process, has chosen."""
    os.environ.pop("DLCLOUD_PROFILE", None)


def pytest_collection_finish():
    """Let no collection of garbage look at what is imported and collected, which stays."""
    gc.enable()
    gc.freeze()


def pytest_configure():
    """Take Ctrl-C as a terminal gives it: a shell that starts a run in the background has it ignored."""
    gc.disable()  # until the tests are collected
    leftovers.watch()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("DLCLOUD_TEST_PROGRAMS") == "listed":
        sys.addaudithook(_refuse_unlisted)
