"""Images of the account's own that `dlcloud image` made: their names, and which are stale."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

IMAGE_TAG = "dlcloud:image"
"""On an image and its snapshot; its value is the name by which recipes know the image."""

UNUSED_AFTER = timedelta(days=30)
PENDING, AVAILABLE = "pending", "available"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image as EC2 describes it; `name` is the one of recipes, `size_gib` that of its volume.

    `launched_at` is the time of its last launch, which EC2 reports a day later.
    """

    image_id: str
    name: str
    state: str
    architecture: str
    cluster_id: str
    created_at: datetime
    size_gib: int
    snapshot_ids: tuple[str, ...] = ()
    launched_at: datetime | None = None


def image_name(recipe_name: str) -> str:
    """Return the name by which recipes know the image of a recipe."""
    return f"dlcloud-{recipe_name}"


def stale_reason(image: OwnImage, images: Sequence[OwnImage], now: datetime) -> str:
    """Return why an image is not needed any more; empty for one that may be.

    Args:
        image: One of `images`.
        images: All of the region.
        now: The present time.
    """
    if image.state not in {PENDING, AVAILABLE}:
        return image.state
    newer = [other for other in images if _supersedes(other, image)]
    if newer:
        return f"superseded by {max(newer, key=lambda other: other.created_at).image_id}"
    unused = now - max(image.created_at, image.launched_at or image.created_at)
    return f"not launched for {unused.days} days" if unused >= UNUSED_AFTER else ""


def _supersedes(other: OwnImage, image: OwnImage) -> bool:
    same = (other.name, other.architecture) == (image.name, image.architecture)
    return same and other.state == AVAILABLE and other.created_at > image.created_at
