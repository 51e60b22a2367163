"""Options that take a number take a finite one."""

import click
import pytest

from dlcloud.cli import main as cli
from dlcloud.cli.options import Hours, NodeCounts, Number


def parameters(command, path="dlcloud"):
    """Yield every parameter of a command and of its subcommands, with the command's words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context) or cli.COMMANDS:
            yield from parameters(command.get_command(context, name), f"{path} {name}")
    yield from ((path, parameter) for parameter in command.params)


def test_every_number_of_an_option_is_checked():
    unchecked = [
        (path, parameter.name)
        for path, parameter in parameters(cli.dlcloud)
        if isinstance(parameter.type, click.types.FloatParamType) and not isinstance(parameter.type, Number)
    ]
    assert unchecked == []


@pytest.mark.parametrize("text", ["0", "-1", "a", "", " ", "1,,2", "1001"])
def test_what_is_no_list_of_node_counts_is_refused(text):
    with pytest.raises(click.BadParameter, match="not a list of numbers from 1 to 1000"):
        NodeCounts().convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999", "x", ""])
def test_what_is_no_finite_number_is_refused(text):
    with pytest.raises(click.BadParameter):
        Number().convert(text, None, None)


def test_a_number_within_its_limits_is_taken():
    assert Number(0, 2).convert("1.5", None, None) == 1.5
    with pytest.raises(click.BadParameter):
        Number(0, 2).convert("3", None, None)


@pytest.mark.parametrize(
    ("text", "hours"), [("52", 52), ("52h", 52), ("3d", 72), ("1d 12h", 36), ("90m", 1.5)]
)
def test_a_duration_is_a_number_of_hours_or_has_units(text, hours):
    assert Hours().convert(text, None, None) == hours


@pytest.mark.parametrize("text", ["soon", "0", "-1h", "nan", "400d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(click.BadParameter, match="not a duration such as 52h"):
        Hours().convert(text, None, None)
