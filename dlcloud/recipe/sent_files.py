"""The user's files that go to an instance: how many, how large, which changed, and what is too much."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dlcloud.model.errors import RecipeError
from dlcloud.model.remote import SentFile

IGNORE_FILE = ".dlcloudignore"

MOST_FILES = 50_000
MOST_BYTES = 1 << 30
"""A program with its configuration is smaller by far; more is data, which has its own place."""

NOTED_BYTES = 100 << 20
"""The plan names the largest folders if more is sent than this."""

MOST_NAMED = 3
DOMINANT = 0.9
"""A folder whose one child has this share of it is named by the child."""

UNSETTLED_NS = 2_000_000_000
"""A file that changed so shortly before it was listed may change again without another time stamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an instance lacks of a set of files, and what it has beyond it, the deepest names first."""

    sent: tuple[SentFile, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """The content of a folder, or one file, without what is left out.

    Attributes:
        source: The folder or file.
        entries: Folders before their content.
        left_out: Names that ignore files leave out; of a folder only its own.
        is_whole: False if the listing was given up: there are too many.
    """

    source: Path
    entries: tuple[SentFile, ...]
    left_out: tuple[str, ...] = ()
    is_whole: bool = True

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(entry.size for entry in self.entries)

    @property
    def count(self) -> int:
        """Files and links, without folders."""
        return sum(not entry.stamp.startswith("d") for entry in self.entries)

    def describe(self) -> str:
        """Return how much is sent, for the plan."""
        text = f"sends {count_files(self.count)}, {format_size(self.size)}, of {self.source}"
        if self.left_out:
            names = ", ".join(self.left_out[:MOST_NAMED])
            more = len(self.left_out) - MOST_NAMED
            text += f"; left out: {names}{f' and {more} more' if more > 0 else ''}"
        if self.size >= NOTED_BYTES:
            text += f"; largest: {self._describe_largest()}"
        return text

    def check(self) -> None:
        """Refuse more than a program can be.

        Raises:
            RecipeError: Names the largest folders, and how to leave them out.
        """
        if self.is_whole and len(self.entries) <= MOST_FILES and self.size <= MOST_BYTES:
            return
        count = f"{'' if self.is_whole else 'more than '}{count_files(self.count)}"
        at_least = "" if self.is_whole else "at least "
        limits = f"{MOST_FILES:,} files and {format_size(MOST_BYTES)}"
        message = (
            f"workload.files: {self.source} has {count}, {at_least}{format_size(self.size)}; at most {limits}"
        )
        raise RecipeError(f"{message}\nlargest: {self._describe_largest()}", self._hint())

    def changes(self, manifest: Mapping[str, str]) -> Changes:
        """Return what is to be done where a manifest of an earlier set describes what is there."""
        sent = tuple(entry for entry in self.entries if manifest.get(entry.name) != entry.stamp)
        kinds = {entry.name: entry.stamp[:1] for entry in self.entries}
        removed = [name for name, stamp in manifest.items() if kinds.get(name) != stamp[:1]]
        return Changes(sent=sent, removed=tuple(sorted(removed, key=lambda name: -name.count("/"))))

    def manifest(self, now_ns: int) -> dict[str, str]:
        """Return the stamps by name; those of files that changed just before `now_ns` are not trusted."""
        return {
            entry.name: f"{entry.stamp[:1]} unsettled" if _is_unsettled(entry, now_ns) else entry.stamp
            for entry in self.entries
        }

    def _describe_largest(self) -> str:
        sizes, counts = self._sums()
        shown = [
            f"{name}/ {format_size(sizes[name])} in {count_files(counts[name])}"
            for name in self._largest(sizes)
        ]
        return "; ".join(shown) or "no folder stands out"

    def _hint(self) -> str:
        folder = self.source if self.source.is_dir() else self.source.parent
        names = " ".join(f"'/{name}/'" for name in self._largest(self._sums()[0]))
        return f"printf '%s\\n' {names or 'PATTERN'} >> '{folder / IGNORE_FILE}' leaves them out"

    def _sums(self) -> tuple[Counter[str], Counter[str]]:
        """Return the bytes and the files below each folder."""
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for entry in self.entries:
            for parent in list(PurePosixPath(entry.name).parents)[:-1]:
                sizes[str(parent)] += entry.size
                counts[str(parent)] += not entry.stamp.startswith("d")
        return sizes, counts

    def _largest(self, sizes: Counter[str]) -> list[str]:
        tops = Counter({name: size for name, size in sizes.items() if "/" not in name})
        return [_dominant(name, sizes) for name, _ in tops.most_common(MOST_NAMED)]


def _dominant(name: str, sizes: Counter[str]) -> str:
    while True:
        children = [child for child in sizes if child.rpartition("/")[0] == name]
        largest = max(children, key=lambda child: sizes[child], default="")
        if not largest or not sizes[name] or sizes[largest] < DOMINANT * sizes[name]:
            return name
        name = largest


def _is_unsettled(entry: SentFile, now_ns: int) -> bool:
    kind, *_, changed_ns = entry.stamp.split(" ")
    return kind == "f" and now_ns - int(changed_ns) < UNSETTLED_NS


def count_files(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def format_size(size: float) -> str:
    """Return a number of bytes for people: `512 B`, `3.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":  # noqa: PLR2004  a binary prefix
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
