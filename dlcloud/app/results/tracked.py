"""Send results to a recipe's tracker while they arrive; without one, nothing of a tracker is imported."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dlcloud.app.context import Context
from dlcloud.recipe.recipe import Recipe
from dlcloud.results.result import Run


@contextmanager
def tracked(context: Context, recipe: Recipe, find_runs: Callable[[], Sequence[Run]]) -> Iterator[None]:
    """Record runs on the recipe's tracker during the block; what that lacks afterwards is stated.

    Args:
        context: The collaborators.
        recipe: It names the tracker, or none.
        find_runs: Returns the runs, new ones among them.
    """
    if recipe.track is None:
        yield
        return
    from dlcloud.app.results.tracker_feed import TrackerFeed, feed_of_recipe  # noqa: PLC0415  only here

    feed: TrackerFeed = feed_of_recipe(context, recipe)
    feed.start(find_runs)
    try:
        yield
    finally:
        feed.close(find_runs)
