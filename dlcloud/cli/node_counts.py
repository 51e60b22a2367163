"""The numbers of instances that `dlcloud bench` measures a job on."""

import click

MOST_NODES = 1000


class NodeCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of instances: `1,2,4`."""

    name = "counts"

    def convert(
        self, value: "str | tuple[int, ...]", param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in value.split(",")]
        if not all(word.isascii() and word.isdigit() and 1 <= int(word) <= MOST_NODES for word in words):
            self.fail(f"{value!r} is not a list of numbers from 1 to {MOST_NODES}, such as 1,2,4", param, ctx)
        return tuple(map(int, words))
