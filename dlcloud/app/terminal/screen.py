"""What a use case prints and asks: results on stdout, all else on stderr."""

import sys


def say(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a line at once."""
    print(text, end=end, file=sys.stderr if err else sys.stdout, flush=True)


def clear() -> None:
    """Clear the terminal; nothing where stdout is none."""
    if sys.stdout.isatty():
        sys.stdout.write("\033[2J\033[1;1H")


def agrees(question: str) -> bool:
    """Ask until the answer is y or n; Enter means n.

    Raises:
        KeyboardInterrupt: stdin has ended.
    """
    while True:
        say(f"{question} [y/N]: ", end="", err=True)
        line = sys.stdin.readline()
        if not line:
            say(err=True)
            raise KeyboardInterrupt
        answer = line.strip().lower()
        if answer in {"y", "yes", "n", "no", ""}:
            return answer in {"y", "yes"}
        say("Error: invalid input", err=True)


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes.

    Raises:
        KeyboardInterrupt: The answer is no, or stdin has ended.
    """
    if not agrees(question):
        raise KeyboardInterrupt
