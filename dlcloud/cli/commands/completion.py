"""`dlcloud completion`: what a shell needs to complete commands, recipes, clusters and types."""

import click

LINES = {
    "bash": 'eval "$(dlcloud completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(dlcloud completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "dlcloud completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice([*LINES]))
def command(*, shell: str) -> None:
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
