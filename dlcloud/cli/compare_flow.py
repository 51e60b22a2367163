"""The walk of `dlcloud compare`: find out what was meant, match, compare, show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from dlcloud.cli.context import Context
from dlcloud.cli.cost_lines import cost_lines
from dlcloud.core.compare import Pair, differences, pairs_of
from dlcloud.core.errors import RecipeError
from dlcloud.core.result_row import ResultRow
from dlcloud.report.compare import Sides, compare_report
from dlcloud.report.table import Format, render
from dlcloud.store.measurements import Measurements
from dlcloud.store.selection import Selection

KINDS = ("run", "cluster", "type", "setting", "benchmark", "case", "date")
_COLUMNS = {"type": "instance_type", "setting": "setting", "benchmark": "workload", "case": "case_name"}
# What names nothing but moments: machines and their clocks always differ in these.
_NOISE = frozenset({"record", "schema", "time", "seed"})
_MACHINE = ("hardware", "software", "arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one argument means: `meant` has a value for each kind of word that it is made of."""

    text: str
    meant: Mapping[str, str] = field(default_factory=dict)

    @property
    def selection(self) -> Selection:
        """Return it as a selection."""
        day = datetime.fromisoformat(self.meant["date"]).replace(tzinfo=UTC) if "date" in self.meant else None
        return Selection(
            names=self._words("run", "cluster"),
            types=self._words("type"),
            settings=self._words("setting"),
            benchmarks=self._words("benchmark"),
            cases=self._words("case"),
            since=day,
            until=day + timedelta(days=1) if day else None,
        )

    def _words(self, *kinds: str) -> Sequence[str]:
        return [self.meant[kind] for kind in kinds if kind in self.meant]


def show(context: Context, first: str, second: str, output: Format) -> None:
    """Print the comparison.

    Raises:
        RecipeError: A side means nothing or several things, or the sides have nothing in common.
    """
    store = context.measurements
    sides = _side(store, first), _side(store, second)
    ours, theirs = (cost_lines(context, side.selection, newest=True) for side in sides)
    for side, lines in zip(sides, (ours, theirs), strict=True):
        if not lines:
            raise RecipeError(f"nothing was measured of {side.text}", "dlcloud cost-report --all")
    pairs = pairs_of(ours, theirs, free=_free(*sides))
    if not pairs:
        raise RecipeError(
            f"{first} and {second} have measured nothing in common",
            f"{first}: {_told(ours)}\n{second}: {_told(theirs)}",
        )
    described = _described(store, [p.first for p in pairs]), _described(store, [p.second for p in pairs])
    report = compare_report(
        Sides(first=first, second=second), pairs, differences(*described, ignored=_shown(pairs))
    )
    click.echo(render(report, output))


def _free(first: Side, second: Side) -> frozenset[str]:
    """Return in what the sides may differ: what both fix, and the types of runs and clusters."""
    both = {kind for kind in ("type", "setting") if kind in first.meant and kind in second.meant}
    named = {"run", "cluster"}
    if named & set(first.meant) or named & set(second.meant):
        both.add("type")
    return frozenset(both)


def _side(store: Measurements, text: str) -> Side:
    meant: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, value = word.partition(":")
        if not (colon and kind in KINDS):
            kind, value = _kind(store, word), word
        if kind in meant:
            raise RecipeError(f"{text}: {meant[kind]} and {value} are both a {kind}", "name one of a kind")
        if kind == "date" and not _is_day(value):
            raise RecipeError(f"{value!r} is not a date like 2026-09-01", "date:2026-09-01")
        meant[kind] = value
    if not meant:
        raise RecipeError("a side of the comparison is empty", "dlcloud compare --help")
    return Side(text=text, meant=meant)


def _kind(store: Measurements, word: str) -> str:
    """Find out what a word means.

    Raises:
        RecipeError: Nothing, or several things.
    """
    found = ["run"] if store.names({word}) else []
    kinds = store.kinds()
    known = {word: sorted({getattr(each, column) for each in kinds}) for word, column in _COLUMNS.items()}
    families = {name.partition(".")[0] for name in known["type"]}
    found += [kind for kind, names in known.items() if word in names or (kind == "type" and word in families)]
    if _is_day(word):
        found.append("date")
    if len(found) == 1:
        return found[0]
    if found:
        told = ", ".join(f"{kind}:{word}" for kind in found)
        raise RecipeError(f"{word} may mean several things", f"say which: {told}")
    there = "; ".join(f"{kind}s {', '.join(names)}" for kind, names in known.items() if names)
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


def _described(store: Measurements, lines: Sequence[ResultRow]) -> Mapping[str, Any]:
    """Return what is known of where and with what the newest run of a side ran."""
    run = max((line.run for line in lines), key=lambda run: (run.started_at, run.run_id))
    start = store.starts([run.run_id]).get(run.run_id, {})
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


def _shown(pairs: Sequence[Pair]) -> frozenset[str]:
    """Return what need not be told, because both sides are of one run."""
    same = all(pair.first.run.run_id == pair.second.run.run_id for pair in pairs)
    return _NOISE | ({"started"} if same else set())


def _told(lines: Sequence[ResultRow]) -> str:
    names = dict.fromkeys(
        f"{line.run.instance_type} {line.run.workload} {line.result.case} {line.result.setting}"
        for line in lines
    )
    first, *others = names
    return first + (f" and {len(others)} more" if others else "")
