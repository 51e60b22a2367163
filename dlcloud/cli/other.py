"""The commands for bug reports, shells, editors and agents: `debug`, `completion`, `schema`, `skill`."""

import click

from dlcloud.cli.options import plain_output_option

SHELLS = ("bash", "zsh", "fish")

commands = click.Group()


@commands.command("debug")
@click.argument("file", default="dlcloud-debug.zip", type=click.Path(dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Print the texts whole; write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Write without asking.")
def debug(*, file: str, dry_run: bool, yes: bool) -> None:
    """Write what a bug report needs to FILE, a zip archive, after showing what is in it.

    It has versions, the configuration, the newest logs, and the store's schema and counts. Secrets are
    masked.
    """
    from dlcloud.app.context import Context
    from dlcloud.app.debug import run

    with Context("debug") as context:
        run(context, file=file, dry_run=dry_run, yes=yes)


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
