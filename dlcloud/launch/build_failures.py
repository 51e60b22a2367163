"""Why an environment was not built, in one sentence, from what pip or uv printed."""

import re

from dlcloud.model.errors import RemoteCommandError

MISSING = re.compile(
    r"No matching distribution found for (\S+)|no version of (\S+?),? |[Bb]ecause (\S+) was not found"
)
"""How pip and uv name what an index does not have. Source: pip 25.3, uv 0.9."""
_NO_INDEX = re.compile(
    r"connection broken by|Failed to establish a new connection|Failed to fetch|[Cc]ould not connect|"
    r"dns error"
)
_NEEDS_PYTHON = r"(?<![\w.]){version} Requires-Python ([^;\n]+)"
_CONFLICT = re.compile(r"Cannot install (.+?) because these package versions have conflicting dependencies")
_NOISE = re.compile(r"^(WARNING: Retrying|ERROR: Ignored the following|\[notice\]|\s*$)|\(from versions:")


def name_failure(error: RemoteCommandError, instance_id: str) -> RemoteCommandError:
    """Return the error of a build that failed, in one sentence where its cause is known.

    Args:
        error: Of the command, with the end of its output.
        instance_id: Where it ran.
    """
    command, _, output = error.message.partition("\n")
    if sentence := _sentence(output):
        text, hint = sentence
        return RemoteCommandError(f"{instance_id}: the environment was not built: {text}", hint)
    kept = [line for line in output.splitlines() if not _NOISE.search(line)]
    return RemoteCommandError("\n".join([command, *kept]), error.hint)


def _sentence(output: str) -> tuple[str, str] | None:
    """Return the cause and what to do; None if it is not known."""
    match = MISSING.search(" ".join(output.split()))
    name = next(filter(None, match.groups()), "").rstrip(".,;") if match else ""
    if _NO_INDEX.search(output):
        package = f" for {name}" if name else ""
        return (
            f"the package index does not answer{package}",
            "the instance needs a way to PyPI, or an own index",
        )
    if conflict := _CONFLICT.search(output):
        text = f"{conflict[1]} need versions of others that exclude each other"
        return text, "change setup.requirements"
    if not name:
        return None
    version = name.partition("==")[2]
    if version and (needed := re.search(_NEEDS_PYTHON.format(version=re.escape(version)), output)):
        return f"{name} needs Python {needed[1].strip()}", "choose a version for the instance's Python"
    return f"the package index has no {name}", "change setup.requirements"
