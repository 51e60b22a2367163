"""`dlcloud compare`: two runs, types, settings or dates side by side."""

from collections.abc import Mapping, Sequence

from dlcloud.analysis.compare import (
    Operand,
    StoredNames,
    describe_environment,
    differences,
    free_kinds,
    ignored_differences,
    newest_run,
    pairs_of,
    parse_operand,
    summarize_rows,
    words_of,
)
from dlcloud.analysis.cost import ResultRow
from dlcloud.app.context import Context
from dlcloud.app.results.rows import commands_again, load_rows
from dlcloud.app.terminal.screen import say
from dlcloud.model.errors import RecipeError
from dlcloud.report.compare_tables import compare_report
from dlcloud.report.table import Format, render
from dlcloud.store.measurements import Measurements, Selection

_COLUMNS = {"type": "instance_type", "setting": "setting", "benchmark": "workload", "case": "case_name"}


def run(context: Context, *, first: str, second: str, output: str) -> None:
    """Say how many times as fast B is as A, with an interval and a verdict, and what else differs."""
    store, now = context.measurements, context.clock.now()
    stored = _stored_names(store, [*words_of(first), *words_of(second)])
    operands = parse_operand(first, stored), parse_operand(second, stored)
    ours, theirs = (load_rows(store, _selection(operand), now, newest=True) for operand in operands)
    for operand, rows in zip(operands, (ours, theirs), strict=True):
        if not rows:
            raise RecipeError(f"nothing was measured of {operand.text}", "dlcloud cost-report --all")
    pairs = pairs_of(ours, theirs, free=free_kinds(*operands))
    if not pairs:
        raise RecipeError(
            f"{first} and {second} have measured nothing in common",
            f"{first}: {summarize_rows(ours)}\n{second}: {summarize_rows(theirs)}",
        )
    differing = differences(
        _environment(store, [pair.first for pair in pairs]),
        _environment(store, [pair.second for pair in pairs]),
        ignored=ignored_differences(pairs),
    )
    commands = commands_again(context, [*ours, *theirs])
    report = compare_report((first, second), pairs, differing, commands)
    say(render(report, Format(output)))


def _stored_names(store: Measurements, words: Sequence[str]) -> StoredNames:
    kinds = store.kinds()
    return StoredNames(
        by_kind={
            name: sorted({getattr(kind, column) for kind in kinds}) for name, column in _COLUMNS.items()
        },
        runs=frozenset(store.known_names(words)),
    )


def _selection(operand: Operand) -> Selection:
    since, until = operand.day or (None, None)
    return Selection(
        names=operand.of("run", "cluster"),
        types=operand.of("type"),
        settings=operand.of("setting"),
        benchmarks=operand.of("benchmark"),
        cases=operand.of("case"),
        since=since,
        until=until,
    )


def _environment(store: Measurements, rows: Sequence[ResultRow]) -> Mapping[str, object]:
    run = newest_run(rows)
    return describe_environment(run, store.start_records([run.run_id]).get(run.run_id, {}))
