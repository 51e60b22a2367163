"""The `dlcloud` command: finds its subcommands, and turns whatever happens into an exit code and a text."""

import sys
from importlib import import_module

import click

COMMANDS = (
    "bench",
    "compare",
    "cost-report",
    "doctor",
    "down",
    "exec",
    "export",
    "gc",
    "import",
    "init",
    "instances",
    "local",
    "logs",
    "resize",
    "schema",
    "ssh",
    "status",
    "training",
    "up",
)

EXIT_USAGE = 2
EXIT_BUG = 70  # Source: sysexits.h, EX_SOFTWARE
EXIT_INTERRUPTED = 130


class Commands(click.Group):
    """Imports a subcommand's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return one; its module is named as it is."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"dlcloud.cli.{cmd_name.replace('-', '_')}_command")
        return module.command  # type: ignore[no-any-return]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dlcloud", prog_name="dlcloud")
def dlcloud() -> None:
    """Run deep-learning workloads on EC2 for the least money, and see what they cost.

    \b
    dlcloud up quickstart     launch, run, bring results home, terminate
    dlcloud status            what is up, and what it has cost so far
    dlcloud cost-report       throughput and cost of everything measured
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are


def main() -> None:
    """Run the command line and exit; see the exit codes in the README."""
    try:
        status = dlcloud(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        status = 0
    except Exception as error:  # noqa: BLE001  the last place: no traceback ever reaches a user
        from dlcloud.cli.failures import report_error

        status = report_error(error, sys.argv[1:])
    sys.exit(status if isinstance(status, int) else 0)
