"""`dlcloud compare`: two runs, types, settings or dates side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dlcloud.app.context import Context
from dlcloud.app.results.measure_again import commands_again
from dlcloud.app.terminal.screen import say
from dlcloud.model.errors import RecipeError
from dlcloud.report.compare import Sides, compare_report
from dlcloud.report.rows import load_rows
from dlcloud.report.table import Format, render
from dlcloud.results.compare import Pair, differences, pairs_of
from dlcloud.results.result_row import ResultRow
from dlcloud.store.measurements import Measurements
from dlcloud.store.selection import Selection

KINDS = ("run", "cluster", "type", "setting", "benchmark", "case", "date")
_COLUMNS = {"type": "instance_type", "setting": "setting", "benchmark": "workload", "case": "case_name"}
# Keys whose values always differ between two runs.
_NOISE = frozenset({"record", "schema", "time", "seed"})
_MACHINE = ("hardware", "software", "arguments")


def run(context: Context, *, first: str, second: str, output: str) -> None:
    """Say how many times as fast B is as A, with an interval and a verdict, and what else differs."""
    store, now = context.measurements, context.clock.now()
    operands = _operand(store, first), _operand(store, second)
    ours, theirs = (load_rows(store, operand.selection, now, newest=True) for operand in operands)
    for operand, rows in zip(operands, (ours, theirs), strict=True):
        if not rows:
            raise RecipeError(f"nothing was measured of {operand.text}", "dlcloud cost-report --all")
    pairs = pairs_of(ours, theirs, free=_free(*operands))
    if not pairs:
        raise RecipeError(
            f"{first} and {second} have measured nothing in common",
            f"{first}: {_summary(ours)}\n{second}: {_summary(theirs)}",
        )
    differing = differences(
        _description(store, [pair.first for pair in pairs]),
        _description(store, [pair.second for pair in pairs]),
        ignored=_ignored(pairs),
    )
    commands = commands_again(context, [*ours, *theirs])
    report = compare_report(Sides(first=first, second=second), pairs, differing, commands)
    say(render(report, Format(output)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One side of the comparison; `words` has a word for each kind of thing that the text names."""

    text: str
    words: Mapping[str, str]

    @property
    def selection(self) -> Selection:

        date = self.words.get("date")
        day = datetime.fromisoformat(date).replace(tzinfo=UTC) if date else None
        return Selection(
            names=self._of("run", "cluster"),
            types=self._of("type"),
            settings=self._of("setting"),
            benchmarks=self._of("benchmark"),
            cases=self._of("case"),
            since=day,
            until=day + timedelta(days=1) if day else None,
        )

    def _of(self, *kinds: str) -> Sequence[str]:
        return [self.words[kind] for kind in kinds if kind in self.words]


def _free(first: Operand, second: Operand) -> frozenset[str]:
    """Return in what the sides may differ: what both fix, and the types of runs and clusters."""
    free = {kind for kind in ("type", "setting") if kind in first.words and kind in second.words}
    if {"run", "cluster"} & {*first.words, *second.words}:
        free.add("type")
    return frozenset(free)


def _operand(store: Measurements, text: str) -> Operand:
    words: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, word = part.partition(":")
        if not (colon and kind in KINDS):
            kind, word = _kind(store, part)
        if kind in words:
            raise RecipeError(f"{text}: {words[kind]} and {word} are both a {kind}", "name one of a kind")
        if kind == "date" and not _is_day(word):
            raise RecipeError(f"{word!r} is not a date like 2026-09-01", "date:2026-09-01")
        words[kind] = word
    if not words:
        raise RecipeError("compare needs two operands; one is empty", "dlcloud compare --help")
    return Operand(text=text, words=words)


def _kind(store: Measurements, word: str) -> tuple[str, str]:
    """Return the kind of thing that a word names, and its whole name: `int8` may be of `onnxruntime int8`.

    Raises:
        RecipeError: It names nothing, or several things.
    """
    stored = store.kinds()
    names = {kind: sorted({getattr(row, column) for row in stored}) for kind, column in _COLUMNS.items()}
    families = {name.partition(".")[0] for name in names["type"]}
    kinds = ["run"] if store.known_names({word}) else []
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


def _description(store: Measurements, rows: Sequence[ResultRow]) -> Mapping[str, Any]:
    """Return the environment of the newest run of a side."""
    run = max((row.run for row in rows), key=lambda run: (run.started_at, run.run_id))
    start = store.start_records([run.run_id]).get(run.run_id, {})
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


def _ignored(pairs: Sequence[Pair]) -> frozenset[str]:
    same_run = all(pair.first.run.run_id == pair.second.run.run_id for pair in pairs)
    return _NOISE | ({"started"} if same_run else set())


def _summary(rows: Sequence[ResultRow]) -> str:
    names = dict.fromkeys(
        f"{row.run.instance_type} {row.run.workload} {row.result.case} {row.result.setting}" for row in rows
    )
    first, *others = names
    return first + (f" and {len(others)} more" if others else "")
