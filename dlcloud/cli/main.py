"""The `dlcloud` command: its groups of commands, and how an error becomes a message and an exit status.

`main` runs the command line and exits. `Commands` finds the command that was typed in the module of its group
and imports no other, so that --help costs little more than click itself. A command returns its exit status or
raises; here, and nowhere else, an error is printed: its message, a hint with the next command to type, and on
stdout a JSON document if JSON was asked for. No traceback ever reaches a user.
"""

import atexit
import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from threading import enumerate as enumerate_threads
from threading import main_thread
from typing import Any, NoReturn

import click

from dlcloud.app.terminal.signals import interrupts, raise_on, terminations
from dlcloud.model.errors import DlcloudError, StoreError, UnwritableError
from dlcloud.model.untrusted import printable
from dlcloud.system.files import unwritable_hint

GROUPS = {
    "Run": {
        "up": "Launch, run, download the results, terminate.",
        "plan": "Show what up would launch, and its price.",
        "bench": "Run benchmarks on several instance types in parallel.",
    },
    "Recipes": {
        "init": "Write a commented recipe to start from.",
        "validate": "Check a recipe without credentials or network.",
        "recipes": "List the bundled recipes, or print one.",
    },
    "Clusters": {
        "status": "Show what is up, and what it has cost so far.",
        "logs": "Print what a run's program printed.",
        "exec": "Run a command on every instance in parallel.",
        "ssh": "Open a shell on an instance.",
        "resize": "Change the number of instances of a cluster that is up.",
        "cancel": "Stop a run, and keep its cluster.",
        "down": "Terminate clusters and all that belongs to them.",
        "gc": "Find and remove what lost clusters left.",
    },
    "Results": {
        "cost-report": "Throughput, speed-up and cost of what was measured.",
        "compare": "Two runs, types, settings or dates side by side.",
        "predict": "What a measured job would do on all other CPU types.",
        "training": "Steps, world sizes, pauses and cost of elastic trainings.",
        "export": "Write results as JSON lines, CSV or Parquet.",
        "import": "Merge results that were exported elsewhere.",
    },
    "Deadlines": {
        "deadlines": "What deadlines are expected to cost, before launching.",
        "simulate": "Replay spot policies over availability traces.",
    },
    "Account": {
        "doctor": "Check account, quota, image, network, prices.",
        "instances": "Instance types: hardware, prices, TFLOPS per USD.",
        "policy": "Print the IAM policy that dlcloud needs.",
        "budget": "The limit of a month, and what is left of it.",
        "image": "Make an image with a recipe's environment in it.",
        "selftest": "Check that dlcloud works with your account.",
    },
    "Local EC2": {
        "local": "Start, show, disturb, stop the local EC2.",
    },
    "Other": {
        "debug": "Write an archive for a bug report, secrets masked.",
        "completion": "Print the script that completes words in a shell.",
        "schema": "Print the JSON Schema of a recipe, or of results.",
        "skill": "Print what an agent needs to use dlcloud.",
    },
}
"""The commands with their short helps, as `dlcloud --help` lists them, which imports none of them."""

MODULES = {
    **{name: module.lower().replace(" ec2", "") for module, names in GROUPS.items() for name in names},
    **dict.fromkeys(("tunnel", "control", "take-over"), "clusters"),  # programs call them: no help lists them
}
"""The module of `dlcloud.cli` that has each command."""

COMMANDS = {name: effect for names in GROUPS.values() for name, effect in names.items()}

ALIASES = {
    **dict.fromkeys(("run", "launch", "apply"), ("up",)),
    **dict.fromkeys(("ls", "ps", "list"), ("status",)),
    **dict.fromkeys(("rm", "stop", "delete", "destroy", "terminate"), ("down",)),
    **dict.fromkeys(("cost", "report"), ("cost-report",)),
    "check": ("doctor",),
    **dict.fromkeys(("gpus", "show-gpus"), ("instances", "--gpu", "any")),
    "version": ("--version",),
}
"""What people type who know another tool, and the words that it stands for."""

OF_DEADLINES = ("--deadline", "--worker-hours", "--traces", "--availability", "--history", "--windows")
"""Options of `deadlines`, which earlier versions called `plan`."""

EXIT_USAGE = 2
EXIT_BUG = 70  # Source: sysexits.h, EX_SOFTWARE
EXIT_INTERRUPTED = 130


@contextmanager
def _aborting() -> Iterator[None]:
    """Let click print nothing at an interrupt: it would print an empty line."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise click.Abort from error


class Commands(click.Group):
    """Imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        module = import_module(f"dlcloud.cli.{MODULES[cmd_name]}")
        subcommand: click.Command | None = module.commands.get_command(ctx, cmd_name)
        return subcommand

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401  click's signature
        with _aborting():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  click's signature
        with _aborting():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace what other tools, and earlier versions, call a command by its name."""
        if not args:
            return super().parse_args(ctx, args)
        first, *rest = args
        if first == "help":
            args = [*rest, "--help"]
        elif first == "plan" and any(word.startswith(OF_DEADLINES) for word in rest):
            args = ["deadlines", *rest]
        elif first in ALIASES:
            if first == "stop":
                click.echo("dlcloud down terminates instances: what is on their disks is lost", err=True)
            args = [*ALIASES[first], *rest]
        return super().parse_args(ctx, args)

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
        width = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), effect) for name, effect in names.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dlcloud", prog_name="dlcloud")
def dlcloud() -> None:
    """Run deep-learning workloads on EC2 for the least money, and see what they cost.

    \b
    dlcloud up quickstart     launch, run, download the results, terminate
    dlcloud status            what is up, and what it has cost so far
    dlcloud cost-report       throughput and cost of everything measured
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are


def main() -> None:
    """Run the command line and exit; the exit codes are in the documentation."""
    open_closed_streams()
    answer_agents_plainly()
    never_proxy_this_machine()
    status = run()
    if terminations.has_begun:
        exit_at_once(status)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C from here on ends it without a traceback
    if all(thread.daemon or thread is main_thread() for thread in enumerate_threads()):
        atexit._run_exitfuncs()  # noqa: SLF001  Python's own way out calls them, too
        exit_at_once(status)
    sys.exit(status)


def open_closed_streams() -> None:
    """Open what the caller has closed (`dlcloud status >&-`, some cron set-ups): Python sets it to None.

    Without this, the next file that is opened, a database for instance, would become standard output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest free number
        stream = Path(os.devnull).open("w" if number else "r", encoding="utf-8")  # noqa: SIM115  for good
        setattr(sys, name, stream)
        if name == "stdout" and sys.stderr is not None:
            click.echo("standard output is closed: the result is not printed", err=True)


AGENTS = ("AI_AGENT", "CLAUDECODE", "CURSOR_AGENT", "GEMINI_CLI", "CODEX_SANDBOX", "CODEX_THREAD_ID")
"""Variables that coding agents set for the commands that they run."""


def answer_agents_plainly() -> None:
    """Let a terminal of a coding agent count as none: it reads lines, and no one there answers a question."""
    if any(os.environ.get(name) for name in AGENTS):
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.isatty = lambda: False  # type: ignore[method-assign]


NEVER_PROXIED = "127.0.0.1,localhost,169.254.169.254"
"""The local EC2, and the metadata service of an instance."""


def never_proxy_this_machine() -> None:
    """Let no HTTP proxy of the environment stand between this machine and itself."""
    if any(name.lower() in {"http_proxy", "https_proxy", "all_proxy"} for name in os.environ):
        for name in ("NO_PROXY", "no_proxy"):
            kept = os.environ.get(name) or os.environ.get(name.swapcase(), "")
            os.environ[name] = ",".join(filter(None, (kept, NEVER_PROXIED)))


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
            raise_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            return _run()
    except (click.Abort, KeyboardInterrupt):
        # Not in `_run`: an interrupt that is raised again would replace the line.
        with suppress(KeyboardInterrupt, OSError):  # pressed again; the terminal was closed
            click.echo("\ninterrupted" if sys.stderr.isatty() else "interrupted", err=True)
        return EXIT_INTERRUPTED


def _run() -> int:
    try:
        status = dlcloud(standalone_mode=False, prog_name="dlcloud", complete_var="_DLCLOUD_COMPLETE")
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        raise
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001  the last place: no traceback ever reaches a user
        command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
        with suppress(OSError):  # the terminal may have been closed
            return report_error(error, command=command, arguments=sys.argv[1:])
        return 1


def report_error(error: Exception, *, command: str, arguments: Sequence[str]) -> int:
    """Print an error, on stdout too where JSON was asked for; return the exit code."""
    if isinstance(error, DlcloudError):
        status = error.exit_code
    elif isinstance(error, OSError) and (error.errno == errno.EIO or unwritable_hint(error)):
        message = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        hint = unwritable_hint(error)
        error = UnwritableError(message, f"{hint} its disk" if hint else "")
        status = error.exit_code
    elif isinstance(error, FileNotFoundError) and not home().exists():
        message = f"{home()} was removed while this command used it"
        error = StoreError(
            message, "what it launched on AWS: dlcloud gc --all-owners; it terminates itself, too"
        )
        status = error.exit_code
    else:
        error, status = _bug(error), EXIT_BUG
    click.echo(click.style("error: ", fg="red", bold=True) + printable(error.message), err=True)
    if error.hint:
        click.echo(click.style("hint: ", fg="cyan") + printable(error.hint), err=True)
    if _is_json_wanted(arguments) and not error.result_shown:
        click.echo(_json(error, status, command))
    return status


def home() -> Path:
    """Return the folder of all that dlcloud keeps."""
    from dlcloud.app.context import home as folder

    return folder()


def _bug(error: Exception) -> DlcloudError:
    path = _log_path()
    text = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text)
    except OSError:
        return DlcloudError(f"a bug in dlcloud, and its log could not be written:\n{text}")
    return DlcloudError(
        f"a bug in dlcloud ({type(error).__name__}: {error})",
        f"dlcloud debug writes what a report of it needs, with {path}; then dlcloud status",
    )


def _log_path() -> Path:
    return home() / "logs" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bug-{os.getpid()}.log"


def _is_json_wanted(arguments: Sequence[str]) -> bool:
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(
        option == "--output=json" or (option in {"--output", "-o"} and value == "json")
        for option, value in pairs
    )


def _json(error: DlcloudError, status: int, command: str) -> str:
    from dlcloud.report.table import envelope

    content = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": status,
    }
    return envelope(command, {"error": content})
