"""`dlcloud skill`: what an agent needs to know."""

from dlcloud.app.terminal.screen import say
from dlcloud.resources.texts import template


def run() -> None:
    """Print what an agent needs to use dlcloud, as a skill: Markdown with a name and a description."""
    say(template("skill.md"), end="")
