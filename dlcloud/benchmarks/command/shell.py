"""How a user's command becomes a process: it does what `bash -o pipefail SCRIPT ARGUMENTS` would do.

Most commands are one line, such as `python train.py`: arguments of a setting or a trial are appended to it. A
command of several lines, or one that reads "$@", gets them as the arguments of a script.
"""

import re
import shlex
import shutil
from collections.abc import Sequence

_PARAMETER = re.compile(r"\$(?:[@*#1-9]|\{#?[@*1-9])")
_QUOTED_OR_ESCAPED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)#[^\n]*", re.DOTALL)
_END = re.compile(r"(?:\\\n|\s)+\Z")


def shell_words(command: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the words that start a command with its arguments, whose texts reach it unchanged."""
    script = _trimmed(command)
    if arguments and not reads_arguments(script):
        script, arguments = f"{script} {shlex.join(arguments)}", ()
    bash = shutil.which("bash")
    # sh on Debian has no pipefail: there a crash before the last part of a pipe goes unseen.
    return [*([bash, "-o", "pipefail"] if bash else ["/bin/sh"]), "-c", script, "command", *arguments]


def reads_arguments(command: str) -> bool:
    """True if a script reads its arguments, as "$@" or $1: outside of single quotes, comments and escapes."""
    return _PARAMETER.search(_QUOTED_OR_ESCAPED.sub(_expanded, command)) is not None


def takes_arguments(command: str) -> bool:
    """True if arguments reach the program of a command: it is one line, or a script that reads them."""
    outline = _QUOTED_OR_ESCAPED.sub(lambda match: "" if match[0].startswith("#") else "_", command)
    return len([line for line in outline.splitlines() if line.strip()]) <= 1 or reads_arguments(command)


def with_arguments(command: str, arguments: Sequence[str]) -> str:
    """Return the command with arguments that come after those which it is started with."""
    if not arguments:
        return command
    if reads_arguments(command):
        return f'set -- "$@" {shlex.join(arguments)}\n{command}'
    return f"{_trimmed(command)} {shlex.join(arguments)}"


def _trimmed(command: str) -> str:
    """Return a command without space around it, a line that nothing continues, and comments at its end."""
    trimmed = _END.sub("", command)
    comments = [match for match in _QUOTED_OR_ESCAPED.finditer(trimmed) if match[0].startswith("#")]
    if comments and comments[-1].end() == len(trimmed):
        return _trimmed(trimmed[: comments[-1].start()])
    return trimmed.lstrip()


def _expanded(match: re.Match[str]) -> str:
    """Return what the shell expands of a quoted part, an escape or a comment: the inside of double quotes."""
    text = match[0]
    return re.sub(r"\\.", "", text[1:-1], flags=re.DOTALL) if text.startswith('"') else " "
