"""What a bench prints at its end, and its offer to measure again where no winner can be named."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlcloud.app.terminal.screen import agrees
from dlcloud.model.money import money
from dlcloud.planning.fit import LeftOut
from dlcloud.report.answer import Question, answers_of
from dlcloud.report.bench_tables import left_out_records, left_out_sections
from dlcloud.report.cost_tables import PLAIN, View, cost_report
from dlcloud.report.table import Report
from dlcloud.results.bench import BenchmarkMatrix, TypeResult
from dlcloud.results.cost import ResultRow
from dlcloud.runs.matrix import repeat_matrix


def results_report(
    rows: Sequence[ResultRow],
    results: Sequence[TypeResult],
    left_out: Sequence[tuple[str, LeftOut]],
    *,
    view: View | None,
    commands: Mapping[str, str],
) -> Report:
    """Return the cost report of a bench with what was left out, refused or failed; the answer is last."""
    report = cost_report(
        rows, view or PLAIN, command="bench", empty="nothing was measured", commands=commands
    )
    answer = [section for section in report.sections if section.leads]
    tables = [section for section in report.sections if not section.leads]
    extra = {
        **report.extra,
        "left_out": left_out_records(left_out),
        "not_had": {result.instance_type: result.refused.message for result in results if result.refused},
        "failed": {result.instance_type: dict(result.failed) for result in results if result.failed},
    }
    return replace(report, sections=[*tables, *left_out_sections(left_out), *answer], extra=extra)


def offer_again(rows: Sequence[ResultRow], matrix: BenchmarkMatrix, view: View) -> BenchmarkMatrix | None:
    """Ask on a terminal whether to measure again where that settles a tie; None if not."""
    answers = answers_of(rows, Question(market=view.market))
    ties = [tie for answer in answers for tie in answer.settlings.values() if tie.samples is not None]
    if not ties or not sys.stdin.isatty():
        return None
    names = tuple(dict.fromkeys(name for tie in ties for name in tie.types))
    amounts = [tie.usd for tie in ties]
    cost = "" if None in amounts else f", about {money(max(usd for usd in amounts if usd is not None))} USD"
    samples = max(tie.samples or 0 for tie in ties)
    question = f"Measure {', '.join(names)} again now ({samples} samples of each setting{cost})?"
    if not agrees(question):
        return None
    return repeat_matrix(matrix, samples, types=names)
