"""The commands for shells, editors and coding agents: `completion`, `schema` and `skill`."""

import click

from dlcloud.cli.options import plain_output_option

SHELLS = ("bash", "zsh", "fish")

commands = click.Group()


@commands.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(*, shell: str) -> None:
    """Print the script that completes dlcloud's words in SHELL: files, recipes, clusters and types, too.

    \b
    eval "$(dlcloud completion bash)"      in ~/.bashrc
    eval "$(dlcloud completion zsh)"       in ~/.zshrc, after compinit
    dlcloud completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from click.shell_completion import get_completion_class

    from dlcloud.cli.main import dlcloud

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} is not known")
    click.echo(kind(dlcloud, {}, "dlcloud", "_DLCLOUD_COMPLETE").source())


@commands.command("schema")
@click.argument("document", type=click.Choice(["recipe", "results"]), default="recipe")
@plain_output_option("It is JSON either way.")
def schema(*, document: str, output: str) -> None:  # noqa: ARG001  it is JSON either way
    """Print the JSON Schema of a recipe, for editors, or of a line of `dlcloud export FILE.jsonl`."""
    from dlcloud.app.recipes import print_schema

    print_schema(document=document)


@commands.command("skill")
@click.option("--install", is_flag=True, help="Write it to ~/.claude/skills and ~/.agents/skills.")
def skill(*, install: bool) -> None:
    """Print what a coding agent needs to use dlcloud: tasks, commands, exit codes, JSON."""
    from dlcloud.app.recipes import install_skill, print_skill

    (install_skill if install else print_skill)()
