"""The way from a command to its use case, whose module is imported only when the command is invoked."""

from importlib import import_module
from typing import Any, cast


def resolve(target: str) -> Any:  # noqa: ANN401
    """Return the function or class that `module:name` names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def invoke(target: str, command: str | None, /, *, verbose: bool = False, **options: object) -> int | None:
    """Run a use case with the options of its command, and return its exit status; None means 0.

    Args:
        target: `module:function`.
        command: The command's name, for its log; None for a use case that takes no `Context`.
        verbose: The log goes to stderr, too.
        options: Passed on by their names.
    """
    use_case = resolve(target)
    if command is None:
        return cast("int | None", use_case(**options))
    from dlcloud.app.context import Context  # noqa: PLC0415  no --help needs it

    with Context(command, verbose=verbose) as context:
        return cast("int | None", use_case(context, **options))
