"""The sides of a comparison, as a user names them: runs, types, settings, dates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dlcloud.model.errors import RecipeError
from dlcloud.results.compare import Pair
from dlcloud.results.result import Run
from dlcloud.results.result_row import ResultRow

KINDS = ("run", "cluster", "type", "setting", "benchmark", "case", "date")
_ALWAYS_DIFFERENT = frozenset({"record", "schema", "time", "seed"})
"""Keys of a run's description whose values differ between any two runs."""
_MACHINE = ("hardware", "software", "arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNames:
    """What is stored, by the kinds that operands name: types, settings, benchmarks and cases.

    `runs` are those words of the operands that name a stored run or cluster.
    """

    by_kind: Mapping[str, Sequence[str]]
    runs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One side of the comparison; `words` has a word for each kind of thing that the text names."""

    text: str
    words: Mapping[str, str]

    @property
    def day(self) -> tuple[datetime, datetime] | None:
        """The beginning and the end of the day that the operand names, in UTC."""
        if "date" not in self.words:
            return None
        begin = datetime.fromisoformat(self.words["date"]).replace(tzinfo=UTC)
        return begin, begin + timedelta(days=1)

    def of(self, *kinds: str) -> Sequence[str]:
        """Return the words of these kinds."""
        return [self.words[kind] for kind in kinds if kind in self.words]


def words_of(text: str) -> list[str]:
    """Return the parts of an operand."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_operand(text: str, stored: StoredNames) -> Operand:
    """Return the operand that a text like `c7i.xlarge,setting:int8` states.

    Raises:
        RecipeError: It is empty, a word names nothing or several things, or two words are of one kind.
    """
    words: dict[str, str] = {}
    for part in words_of(text):
        kind, colon, word = part.partition(":")
        if not (colon and kind in KINDS):
            kind, word = _kind(part, stored)
        if kind in words:
            raise RecipeError(f"{text}: {words[kind]} and {word} are both a {kind}", "name one of a kind")
        if kind == "date" and not _is_day(word):
            raise RecipeError(f"{word!r} is not a date like 2026-09-01", "date:2026-09-01")
        words[kind] = word
    if not words:
        raise RecipeError("compare needs two operands; one is empty", "dlcloud compare --help")
    return Operand(text=text, words=words)


def free_kinds(first: Operand, second: Operand) -> frozenset[str]:
    """Return in what the sides may differ: what both fix, and the types of runs and clusters."""
    free = {kind for kind in ("type", "setting") if kind in first.words and kind in second.words}
    if {"run", "cluster"} & {*first.words, *second.words}:
        free.add("type")
    return frozenset(free)


def newest_run(rows: Sequence[ResultRow]) -> Run:
    """Return the run that describes the environment of a side."""
    return max((row.run for row in rows), key=lambda run: (run.started_at, run.run_id))


def describe_environment(run: Run, start: Mapping[str, object]) -> Mapping[str, object]:
    """Return where a run ran, by its own fields and by its start record."""
    return {
        "instance type": run.instance_type,
        "market": str(run.market),
        "region": run.region,
        "zone": run.zone,
        "image": run.image_id,
        "cloud": run.cloud,
        "started": f"{run.started_at:%Y-%m-%d %H:%M}",
        **{name: start.get(name) for name in _MACHINE},
    }


def ignored_differences(pairs: Sequence[Pair]) -> frozenset[str]:
    """Return the keys of descriptions that say nothing of these pairs."""
    same_run = all(pair.first.run.run_id == pair.second.run.run_id for pair in pairs)
    return _ALWAYS_DIFFERENT | ({"started"} if same_run else set())


def summarize_rows(rows: Sequence[ResultRow]) -> str:
    """Return the name of the first thing that was measured, and the number of others."""
    names = dict.fromkeys(
        f"{row.run.instance_type} {row.run.workload} {row.result.case} {row.result.setting}" for row in rows
    )
    first, *others = names
    return first + (f" and {len(others)} more" if others else "")


def _kind(word: str, stored: StoredNames) -> tuple[str, str]:
    """Return the kind of thing that a word names, and its whole name: `int8` may be of `onnxruntime int8`.

    Raises:
        RecipeError: It names nothing, or several things.
    """
    names = stored.by_kind
    families = {name.partition(".")[0] for name in names["type"]}
    kinds = ["run"] if word in stored.runs else []
    kinds += [kind for kind in names if word in names[kind] or (kind == "type" and word in families)]
    if _is_day(word):
        kinds.append("date")
    if len(kinds) == 1:
        return kinds[0], word
    if kinds:
        choices = ", ".join(f"{kind}:{word}" for kind in kinds)
        raise RecipeError(f"{word} may mean several things", f"say which: {choices}")
    alike = [name for name in names["setting"] if word in name.split()]
    if len(alike) == 1:
        return "setting", alike[0]
    if alike:
        choices = ", ".join(f'"setting:{name}"' for name in alike)
        raise RecipeError(f"{word} is a part of several settings", f"say which: {choices}")
    there = "; ".join(f"{kind}s {', '.join(names[kind])}" for kind in names if names[kind])
    raise RecipeError(
        f"nothing stored is called {word}",
        f"there are {there}" if there else "nothing has been measured yet: dlcloud up quickstart",
    )


def _is_day(word: str) -> bool:
    try:
        datetime.strptime(word, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return False
    return True
