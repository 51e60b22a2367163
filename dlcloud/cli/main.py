"""The `dlcloud` command: finds its subcommands, and turns every error into a message and an exit code."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from threading import enumerate as enumerate_threads
from threading import main_thread
from typing import NoReturn

import click

from dlcloud.app.terminal.signals import interrupts, terminations

COMMANDS = {
    "up": "Launch, run, bring results home, terminate.",
    "plan": "What deadlines are expected to cost, before launching.",
    "bench": "Run benchmarks on several instance types at once.",
    "status": "What is up, and what it has cost so far.",
    "logs": "Print what a run's program printed.",
    "exec": "Run a command on every instance at once.",
    "ssh": "Open a shell on an instance.",
    "tunnel": "Carry bytes to an instance's SSH server, for ssh's ProxyCommand.",
    "resize": "Change the number of instances of a cluster that is up.",
    "image": "Make an image with a recipe's environment in it.",
    "down": "Terminate clusters and all that belongs to them.",
    "cost-report": "Throughput, speed-up and cost of what was measured.",
    "predict": "What a measured job would do on all other CPU types.",
    "compare": "Two runs, types, settings or dates side by side.",
    "training": "Steps, world sizes, pauses and cost of elastic trainings.",
    "simulate": "Replay spot policies over availability traces.",
    "export": "Write results as JSON lines, CSV or Parquet.",
    "import": "Merge results that were exported elsewhere.",
    "instances": "Instance types: hardware, prices, TFLOPS per USD.",
    "doctor": "Check account, quota, image, network, prices.",
    "selftest": "Prove on an account that all of this works there.",
    "budget": "The limit of a month, and what is left of it.",
    "gc": "Find and remove what lost clusters left.",
    "completion": "Print the script that completes words in a shell.",
    "init": "Write a commented recipe to start from.",
    "recipes": "List the bundled recipes, or print one.",
    "policy": "Print the IAM policy that dlcloud needs.",
    "schema": "Print the JSON Schema of a recipe, or of results.",
    "skill": "Print what an agent needs to use dlcloud.",
    "local": "Start, look at, disturb, stop the local EC2.",
}
"""The commands with their short helps, in the order of `dlcloud --help`, which imports none of them."""

ON_INSTANCES = {"control", "take-over"}
"""Commands that only instances run; no help lists them."""

OF_ACCOUNT = {"budget", "doctor", "gc", "image", "instances", "policy", "selftest"}
"""Commands about an account, whose modules have a package of their own."""

MODULES = {"import": "import_"}
"""The modules of commands whose names are keywords of Python."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Commands(click.Group):
    """Imports a subcommand's module when the subcommand is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS and cmd_name not in ON_INSTANCES:
            return None
        name = MODULES.get(cmd_name, cmd_name.replace("-", "_"))
        package = "on_instances" if cmd_name in ON_INSTANCES else "commands"
        package += ".account" if cmd_name in OF_ACCOUNT else ""
        module = import_module(f"dlcloud.cli.{package}.{name}")
        return module.command  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


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
    """Run the command line and exit; the exit codes are in the documentation."""
    status = run()
    if terminations.has_begun:
        exit_at_once(status)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C from here on ends it without a traceback
    if all(thread.daemon or thread is main_thread() for thread in enumerate_threads()):
        atexit._run_exitfuncs()  # noqa: SLF001  Python's own way out calls them, too
        exit_at_once(status)
    sys.exit(status)


def exit_at_once(status: int) -> NoReturn:
    """Exit without Python's own way out, which takes every object apart: a fifth of the time of `status`.

    After a termination it would also give the signals back, and wait for threads. docs/architecture.md,
    "Decisions", has the measurement.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(status)


def run() -> int:
    """Run the command line; return its exit status."""
    try:
        with interrupts():
            return _run()
    except KeyboardInterrupt:  # pressed again while the first was reported
        return EXIT_INTERRUPTED


def _run() -> int:
    try:
        status = dlcloud(standalone_mode=False, prog_name="dlcloud", complete_var="_DLCLOUD_COMPLETE")
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001  the last place: no traceback ever reaches a user
        from dlcloud.cli.failures import report_error

        command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
        with suppress(OSError):  # the terminal may have been closed
            return report_error(error, command=command, arguments=sys.argv[1:])
        return 1
