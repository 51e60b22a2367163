"""What the shell completes: recipes and files, clusters, instance types. Each must answer immediately."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_recipes(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete bundled recipes and files."""
    from dlcloud.resources.texts import recipe_names

    files = CompletionItem(incomplete, type="file")
    return [*_matching(recipe_names(), incomplete), files]


def complete_clusters(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of clusters that are up; a store that cannot be read has none."""
    names: list[str] = []
    with suppress(Exception):
        from dlcloud.app.context import Context

        with Context("completion", verbose=False) as context:
            names = [cluster.name for cluster in context.clusters.active()]
    return _matching(names, incomplete)


def complete_runs(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of clusters and runs, the newest first."""
    names: list[str] = []
    with suppress(Exception):
        from dlcloud.app.context import Context

        with Context("completion", verbose=False) as context:
            runs = context.runs.own()[::-1]
            names = [*(run.cluster_name for run in runs), *(run.run_id for run in runs)]
    return _matching(dict.fromkeys(names), incomplete)


def complete_types(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete instance types of the bundled table."""
    from dlcloud.cloud.offers.catalog import Catalog

    return _matching((hardware.name for hardware in Catalog()), incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
