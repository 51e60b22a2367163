"""`dlcloud skill`: what an agent needs to know."""

import click

from dlcloud.cli.invoke import invoke


@click.command("skill")
def command() -> None:
    """Print what an agent needs to use dlcloud: tasks, commands, exit codes, JSON.

    \b
    mkdir -p .claude/skills/dlcloud
    dlcloud skill > .claude/skills/dlcloud/SKILL.md
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    invoke("dlcloud.app.recipes.skill:run", None)
