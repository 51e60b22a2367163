"""Where EC2 does not end instances, the command names them with their price, and the next one ends them."""

import re

import pytest

from tests.fakes.control import control_of

RECIPE = """
name: unended
cloud: local
instances:
  types: [c5.xlarge]
  count: 2
workload: {command: echo, repeats: 1}
"""
REMAINDER = re.compile(
    r"unended: 2 instance\(s\) may still be up for 0\.340 USD/h "
    r"until they terminate themselves, at 20[-0-9]+ [0-9:]+ UTC at the latest; "
    r"dlcloud down unended terminates it"
)
REFUSALS = {
    "answered 500": {"code": "InternalError", "status": 500},
    "no answer": {"code": "", "status": 0},
    "denied": {"code": "UnauthorizedOperation", "status": 403},
    "credentials expired": {"code": "RequestExpired", "status": 400},
}
RARER = ("no answer", "credentials expired")


@pytest.fixture
def control(home):
    control = control_of(home.site.find())
    yield control
    control.clear_faults()


@pytest.fixture
def path(home):
    path = home.folder / "unended.yaml"
    path.write_text(RECIPE)
    return str(path)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(REFUSALS[name], marks=[pytest.mark.long] if name in RARER else [], id=name)
        for name in REFUSALS
    ],
)
def test_what_is_not_ended_is_named_with_its_price(home, control, path, refusal):
    control.add_fault("TerminateInstances", **refusal)
    for command in (("up", "--name", "unended", path), ("down", "unended")):
        outcome = home.run(*command, expect=3)
        assert REMAINDER.search(outcome["output"]), outcome["output"]
        assert len(home.alive()) == 2
    control.clear_faults()
    assert home.run("down", "unended")["status"] == 0
    assert not any(home.left().values())


def test_a_launch_whose_answer_was_lost_counts_with_its_price(home, control, path):
    control.add_fault("RunInstances", "", status=0, carried_out=True)
    control.add_fault("DescribeInstances", "", status=0)
    control.add_fault("TerminateInstances", "", status=0)
    outcome = home.run("up", "--name", "unended", path, expect=3)
    expected = "unended: up to 2 of a launch without an answer may still be up for 0.340 USD/h until "
    assert expected in outcome["output"], outcome["output"]
    control.clear_faults()
    assert home.run("down", "unended")["status"] == 0
    assert not any(home.left().values())
