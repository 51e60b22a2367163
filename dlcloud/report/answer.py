"""The answer of a report: the cheapest and fastest of each case, what to buy, what the user's job takes.

`answer_sections` stands at the end of every cost report: the winners with their figures, why others are not
named, and the command that would settle a tie. `buying_sections` says the same in one sentence at the top of
the page, with what is predicted to be cheaper. `job_sections` states hours and USD of the user's own job on
each type. Only a winner that the samples show is named (`results.ranking`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from dlcloud.analysis.cost import ResultRow
from dlcloud.analysis.ranking import Best, By, Settling, best_of_case, newest_of_cases, rank, settle
from dlcloud.analysis.user_job import JobEstimate, UserJob, estimate_job, sort_estimates
from dlcloud.model.instance import Market
from dlcloud.model.money import SECONDS_PER_HOUR, millionths, money
from dlcloud.prediction.offers import PredictedJob, PredictedOffer
from dlcloud.report import cells
from dlcloud.report.cells import duration, fact_notes, marked, setting, with_bounds
from dlcloud.report.table import Section

SUPERLATIVES = {By.COST: "cheapest", By.THROUGHPUT: "fastest", By.LATENCY: "shortest latency"}
MOST_TABLES = 3
"""More cases than this are a line each."""

NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the answer is for.

    Attributes:
        by: What else is named, in addition to the cheapest and the fastest.
        market: The market whose price decides what is cheapest.
        job: The user's own, None if none was given.
        summary: A line for each case, whatever their number.
        commands: The beginning of the command that measures a run's workload again, by run id.
    """

    by: By | None = None
    market: Market = Market.ON_DEMAND
    job: UserJob | None = None
    summary: bool = False
    commands: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseAnswer:
    """The winners of one case, by what they win, and what would settle those that have none."""

    rows: Sequence[ResultRow]
    winners: Mapping[By, Best]
    settlings: Mapping[By, Settling]

    @property
    def is_rehearsal(self) -> bool:
        return self.rows[0].rehearsal

    @property
    def name(self) -> str:
        return case_name(self.rows[0])


def answers_of(rows: Sequence[ResultRow], question: Question) -> list[CaseAnswer]:
    """Return the answer of each case that has a throughput."""
    superlatives = dict.fromkeys([By.COST, By.THROUGHPUT, question.by or By.COST])
    answers = []
    for case in newest_of_cases(rows):
        winners = {by: best_of_case(case, by, question.market) for by in superlatives}
        settlings = {by: settle(best, by, question.market) for by, best in winners.items()}
        needed = {by: settling for by, settling in settlings.items() if settling is not None}
        answers.append(CaseAnswer(rows=case, winners=winners, settlings=needed))
    return answers


def answer_sections(rows: Sequence[ResultRow], question: Question) -> list[Section]:
    """Return the sections that answer the question; none without a throughput."""
    answers = answers_of(rows, question)
    if not answers:
        return []
    if question.summary or len(answers) > MOST_TABLES:
        return [_summary(answers, question)]
    return [_answer(answer, question) for answer in answers]


def answer_records(rows: Sequence[ResultRow], question: Question) -> list[dict[str, Any]]:
    """Return the same for programs: a record for each case and superlative."""
    return [
        _record(answer, by, best, question)
        for answer in answers_of(rows, question)
        for by, best in answer.winners.items()
    ]


def _record(answer: CaseAnswer, by: By, best: Best, question: Question) -> dict[str, Any]:
    row, settling = best.row, answer.settlings.get(by)
    return {
        "benchmark": answer.rows[0].run.workload,
        "case": best.case,
        "rehearsal": answer.is_rehearsal,
        "superlative": SUPERLATIVES[by],
        "instance_type": row.run.instance_type if row and not row.rehearsal else None,
        "setting": row.result.setting if row else None,
        "reason": best.reason,
        "run": row.run.run_id if row else None,
        "between": [_name(other) for other in best.tied],
        "samples_to_settle": settling.samples if settling else None,
        "usd_to_settle": settling.usd if settling else None,
        "command": _command(settling, question) if settling else None,
    }


def _answer(answer: CaseAnswer, question: Question) -> Section:
    """Return the figures of the winners of a case side by side, and why others are not named."""
    columns: dict[int, tuple[ResultRow, list[str]]] = {}
    for by, best in answer.winners.items():
        if best.row is not None:
            columns.setdefault(id(best.row), (best.row, []))[1].append(_superlative(by, question))
    figures = _figures(answer.rows[0], question)
    rows = [[title, *(text(row) for row, _ in columns.values())] for title, text in figures]
    return Section(
        heading=f"the answer: {answer.name}{_rehearsed(answer)}",
        titles=["", *(" and ".join(names) for _, names in columns.values())] if columns else (),
        rows=[row for row in rows if any(row[1:])] if columns else (),
        notes=_notes(answer, question),
        leads=2,
    )


def _figures(first: ResultRow, question: Question) -> list[tuple[str, Callable[[ResultRow], str]]]:
    """Return the lines of an answer: their titles and texts."""
    unit = first.throughput.unit if first.throughput else "items/s"

    def title(text: str) -> str:
        return cells.marked(text, first.rehearsal)

    lines: list[tuple[str, Callable[[ResultRow], str]]] = [
        ("setting" if first.rehearsal else "type, setting", _name),
        (title(unit), _throughput),
    ]
    if question.by is By.LATENCY:
        lines.append((title("p50 ms"), _latency))
    names = {Market.ON_DEMAND: "USD", Market.SPOT: "spot USD"}
    for market, usd in names.items():
        lines.append((title(f"{usd} per million {first.items}"), _per_million(market)))
    lines += [(f"{usd} per hour", _hourly(market)) for market, usd in names.items() if not first.rehearsal]
    if question.job and question.job.fits(first):
        lines.append((title(f"{question.job.text}: time"), _job_time(question.job)))
        for market, usd in names.items():
            lines.append((title(f"{question.job.text}: {usd}"), _job_usd(question.job, market)))
    return lines


def settling_notes(first: ResultRow, second: ResultRow, commands: Mapping[str, str]) -> list[str]:
    """Return what would name the faster of two rows between which none can be named, with the command."""
    question = Question(commands=commands)
    rows = tuple(rank([first, second], By.THROUGHPUT, question.market))
    answer = CaseAnswer(rows=rows, winners={}, settlings={})
    best = Best(case=first.result.case, row=None, reason="", tied=rows)
    settling = settle(best, By.THROUGHPUT, question.market)
    return _on_aws(answer, question) if settling is None else _settling_note(settling, question)


def _summary(answers: Sequence[CaseAnswer], question: Question) -> Section:
    units = dict.fromkeys(answer.rows[0].throughput.unit for answer in answers if answer.rows[0].throughput)
    workloads = {answer.rows[0].run.workload for answer in answers}
    is_shared = len(workloads) == 1 and all(answer.rows[0].result.case for answer in answers)
    has_mark = any(answer.is_rehearsal for answer in answers)
    notes = [] if len(units) == 1 else [f"throughput: {', '.join(units)}"]
    notes.append("≈: no winner can be named between these; USD/M: USD per million items")
    if has_mark:
        notes.append("* rehearsal: the speed is of this machine, and of no instance type")
    notes += cells.burst_note(row for answer in answers for row in answer.rows)
    bests = [best for answer in answers for best in answer.winners.values()]
    notes += dict.fromkeys(f"none: {best.reason}" for best in bests if best.row is None and not best.tied)
    return Section(
        heading="the answer, case by case" + (f": {workloads.pop()}" if is_shared else ""),
        titles=(
            "case",
            _superlative(By.COST, question),
            "USD/M",
            "fastest",
            next(iter(units), "items/s"),
            *([f"{question.job.text}: USD, time"] if question.job else []),
        ),
        rows=[
            (answer.rows[0].result.case if is_shared else answer.name, *_summary_row(answer, question))
            for answer in answers
        ],
        notes=[*notes, *_tie_notes(answers, question), *_all_on_aws(answers, question)],
        numeric=frozenset({2, 4}),
        optional=(4,) if question.job else (),
        leads=2,
    )


def _summary_row(answer: CaseAnswer, question: Question) -> tuple[str, ...]:
    cheapest, fastest = answer.winners[By.COST], answer.winners[By.THROUGHPUT]
    first, second = _winner(cheapest), _winner(fastest)
    return (
        first,
        _figure(cheapest, cells.usd(question.market)),
        "the same" if first == second and first != NONE else second,
        _figure(fastest, cells.throughput),
        *([_summary_job(answer, question.job, question.market)] if question.job else []),
    )


def _figure(best: Best, text: Callable[[ResultRow], str]) -> str:
    """Format the winner's figure; without a winner, that of the first tied row, as an approximation."""
    if best.row is not None:
        return cells.marked(text(best.row), best.row.rehearsal)
    return cells.NO_WINNER + cells.marked(text(best.tied[0]), best.tied[0].rehearsal) if best.tied else ""


def _summary_job(answer: CaseAnswer, job: UserJob, market: Market) -> str:
    """Format time and cost of the job on the cheapest row; if none wins, on the first of the tied rows."""
    cheapest, fastest = answer.winners[By.COST], answer.winners[By.THROUGHPUT]
    row = next(iter([*filter(None, [cheapest.row]), *cheapest.tied, *filter(None, [fastest.row])]), None)
    row = row or next(iter(fastest.tied or answer.rows), None)
    if row is None or not job.fits(row):
        return f"counts {answer.rows[0].items}"
    (estimate,) = estimate_job([row], job)
    has_usd = not answer.is_rehearsal or len({other.run.instance_type for other in answer.rows}) == 1
    usd = estimate.usd(market) if has_usd else None
    about = "" if row is cheapest.row else cells.NO_WINNER
    text = (f"{money(usd)}, " if usd is not None else "") + duration(estimate.seconds)
    return about + cells.marked(text, answer.is_rehearsal)


def _winner(best: Best) -> str:
    if best.row is not None:
        return _name(best.row)
    if not best.tied:
        return NONE
    others = f" and {len(best.tied) - 2} more" if len(best.tied) > 2 else ""  # noqa: PLR2004  a pair is shown
    return " ≈ ".join(_name(row) for row in best.tied[:2]) + others


def _notes(answer: CaseAnswer, question: Question) -> list[str]:
    notes = [*fact_notes(answer.rows, _name), *cells.burst_note(answer.rows)]
    if answer.is_rehearsal:
        notes.append(_rehearsal_note(answer))
    regions = {row.run.instance_type: row.run.region for row in answer.rows}
    several = len({*regions.values()}) > 1
    places = (
        [f"{name} in {region}" for name, region in regions.items()] if several else [*regions.values()][:1]
    )
    notes.append(f"prices are those of {', '.join(places)}")
    for by, best in answer.winners.items():
        if best.row is None:
            notes.append(f"no {_superlative(by, question)} is named: {best.reason}")
    reasons = {best.reason for best in answer.winners.values() if best.row is not None}
    notes += sorted(reasons)
    return [*notes, *_tie_notes([answer], question), *_on_aws(answer, question)]


def _on_aws(answer: CaseAnswer, question: Question) -> list[str]:
    """Return the command that measures on AWS what was rehearsed; none if it is not known."""
    prefix = question.commands.get(answer.rows[0].run.run_id, "")
    types = dict.fromkeys(row.run.instance_type for row in answer.rows)
    words = [prefix, *(f"-t {name}" for name in types)]
    return ["to measure it on AWS:", f"  {' '.join(words)}"] if prefix and answer.is_rehearsal else []


def _all_on_aws(answers: Sequence[CaseAnswer], question: Question) -> list[str]:
    """Return the same of several cases, each command once."""
    return [*dict.fromkeys(note for answer in answers for note in _on_aws(answer, question))]


def _tie_notes(answers: Sequence[CaseAnswer], question: Question) -> list[str]:
    """Return what would settle the ties, each command once."""
    notes: dict[str, None] = {}
    for answer in answers:
        for settling in answer.settlings.values():
            notes |= dict.fromkeys(_settling_note(settling, question))
    return list(notes)


def _settling_note(settling: Settling, question: Question) -> list[str]:
    is_one_type = len(settling.types) == 1
    names = " and ".join(cells.setting(row) if is_one_type else _name(row) for row in settling.rows[:2])
    if settling.samples is None:
        return [f"{names} differ by {settling.gap * 100:.1f} %: more runs would hardly decide; take either"]
    cost = f", about {duration(settling.seconds)} of instances" if settling.seconds is not None else ""
    cost += f" and {money(settling.usd)} USD" if settling.usd is not None else ""
    text = f"about {settling.samples} samples of each setting would settle {names}{cost}"
    command = _command(settling, question)
    return [text + ":", f"  {command}"] if command else [text]


def _command(settling: Settling, question: Question) -> str:
    """Return the command that measures the tied rows again; empty if it is not known."""
    prefix = question.commands.get(settling.rows[0].run.run_id, "")
    if not prefix or settling.samples is None or settling.rows[0].run.experiment:
        return ""
    return " ".join([prefix, *(f"-t {name}" for name in settling.types), f"--repeats {settling.samples}"])


def _rehearsal_note(answer: CaseAnswer) -> str:
    types = list(dict.fromkeys(row.run.instance_type for row in answer.rows))
    text = "* rehearsal: the speed is of this machine, and of no instance type"
    return f"{text}; USD at the price of {types[0]}" if len(types) == 1 else text


def _rehearsed(answer: CaseAnswer) -> str:
    return " (rehearsal)" if answer.is_rehearsal else ""


def _superlative(by: By, question: Question) -> str:
    is_spot = (by, question.market) == (By.COST, Market.SPOT)
    return SUPERLATIVES[by] + (" on spot" if is_spot else "")


def _name(row: ResultRow) -> str:
    """Name a row by type and setting; a rehearsal is no figure of a type."""
    return cells.setting(row) if row.rehearsal else f"{cells.instance_type(row)} {cells.setting(row)}"


def _throughput(row: ResultRow) -> str:
    return _with_interval(cells.throughput(row), cells.interval(row.throughput))


def _latency(row: ResultRow) -> str:
    metric = row.result.metrics.get("latency_p50")
    return _with_interval(cells.digits(metric.value), cells.interval(metric)) if metric else ""


def _per_million(market: Market) -> Callable[[ResultRow], str]:
    def text(row: ResultRow) -> str:
        usd, bounds = row.usd_per_million(market), row.usd_interval(market)
        interval = f"{money(bounds[0])}–{money(bounds[1])}" if bounds else ""
        return "" if usd is None else _with_interval(money(usd), interval)

    return text


def _hourly(market: Market) -> Callable[[ResultRow], str]:
    price = cells.price(market)
    return lambda row: "" if row.prices.price(market) is None else price(row)


def _job_time(job: UserJob) -> Callable[[ResultRow], str]:
    return lambda row: time_text(estimate_job([row], job)[0])


def _job_usd(job: UserJob, market: Market) -> Callable[[ResultRow], str]:
    return lambda row: usd_text(estimate_job([row], job)[0], market)


def _with_interval(text: str, interval: str) -> str:
    return f"{text} ({interval})" if interval else text


MOST_CASES = 5
FIRST = 9
"""Before every other section that leads."""


def buying_sections(rows: Sequence[ResultRow], jobs: Sequence[PredictedJob], market: Market) -> list[Section]:
    """Return the section that names the type to buy for each case; none without a throughput."""
    answers = answers_of(rows, Question(market=market))
    if not answers:
        return []
    lines = [_buying_line(answer, jobs, market) for answer in answers[:MOST_CASES]]
    if len(answers) > MOST_CASES:
        lines.append(f"{len(answers) - MOST_CASES} more cases: their answers are below.")
    return [Section(heading="\n".join(lines), titles=(), rows=(), leads=FIRST)]


def _buying_line(answer: CaseAnswer, jobs: Sequence[PredictedJob], market: Market) -> str:
    if answer.is_rehearsal:
        return f"Nothing to buy by for {answer.name}: it was rehearsed on this machine only."
    best = answer.winners[By.COST]
    if best.row is not None:
        usd = best.row.usd_per_million(market)
        cost = "" if usd is None else f": {money(usd)} USD per million {best.row.items}, measured"
        line = f"Buy {_type_and_setting(best.row)} {market} for {answer.name}{cost}."
    elif best.tied:
        names = " or ".join(_type_and_setting(row) for row in best.tied)
        line = f"Buy {names} for {answer.name}: no difference is seen."
    else:
        line = f"No type can be named for {answer.name}: {best.reason}."
    return line + _cheaper_predicted(answer.rows, jobs, market)


def _type_and_setting(row: ResultRow) -> str:
    return f"{row.run.instance_type} ({cells.setting(row)})"


def _cheaper_predicted(rows: Sequence[ResultRow], jobs: Sequence[PredictedJob], market: Market) -> str:
    """Return the cheapest predicted type, if it is cheaper than all that were measured."""
    measured = [usd for row in rows if (usd := row.usd_per_million(market)) is not None]
    offers = [
        (figures[1], offer, job)
        for job in jobs
        if (job.workload, job.case) == (rows[0].run.workload, rows[0].result.case)
        for offer in job.offers
        if not (offer.estimate.measured or offer.is_burstable)
        and (figures := offer.usd_per_million(market)) is not None
    ]
    if not measured or not offers:
        return ""
    usd, offer, job = min(offers, key=lambda one: one[0])
    if usd >= min(measured):
        return "\nNo other type is predicted to be cheaper."
    return f"\nPredicted to be cheaper, not measured: {_offer(offer, job, usd, market)}."


def _offer(offer: PredictedOffer, job: PredictedJob, usd: Decimal, market: Market) -> str:
    low, _, high = offer.usd_per_million(market) or (usd, usd, usd)
    name = f"{offer.estimate.instance_type} ({job.setting})"
    return f"{name}, {money(usd)} USD (90 %: {money(low)} to {money(high)})"


def job_estimates(rows: Sequence[ResultRow], job: UserJob, market: Market) -> list[JobEstimate]:
    """Return the estimates of a job by the newest results, the cheapest first; real ones before rehearsed."""
    newest = [row for case in newest_of_cases(rows) for row in case]
    return sorted(sort_estimates(estimate_job(newest, job), market), key=lambda one: one.row.rehearsal)


def job_sections(rows: Sequence[ResultRow], job: UserJob, market: Market) -> list[Section]:
    """Return the table of a job; where no result counts its items, what they count."""
    estimates = job_estimates(rows, job, market)
    if not estimates:
        counted = ", ".join(dict.fromkeys(row.items for row in rows if row.throughput)) or "nothing"
        return [
            Section(
                heading=f"your job: {job.text}",
                titles=(),
                rows=(),
                notes=[f"no result counts {job.unit}; they count {counted} (workload.unit)"],
                leads=1,
            )
        ]
    cases: dict[tuple[bool, str], list[JobEstimate]] = {}
    for estimate in estimates:
        cases.setdefault((estimate.row.rehearsal, case_name(estimate.row)), []).append(estimate)
    return _without_repetitions([_job_section(of_case, job) for of_case in cases.values()])


def _without_repetitions(sections: Sequence[Section]) -> list[Section]:
    """Leave each note to the last section that has it: they are read together."""
    return [
        replace(section, notes=[note for note in section.notes if not _has(sections[place:], note)])
        for place, section in enumerate(sections, 1)
    ]


def _has(sections: Sequence[Section], note: str) -> bool:
    return any(note in section.notes for section in sections)


def _job_section(estimates: Sequence[JobEstimate], job: UserJob) -> Section:
    rows = [estimate.row for estimate in estimates]
    is_rehearsal = rows[0].rehearsal
    types = list(dict.fromkeys(row.run.instance_type for row in rows))
    markets = [market for market in Market if any(row.prices.price(market) for row in rows)]
    if is_rehearsal and len(types) > 1:
        markets = []  # the speed is the same for all: a cost would be a figure of a type
        estimates = estimates[:1]
    titles = [*([] if is_rehearsal else ["type"]), "setting", marked("time", is_rehearsal)]
    names = {Market.ON_DEMAND: "USD", Market.SPOT: "spot USD"}
    return Section(
        heading=f"your job: {job.text}, {case_name(rows[0])}{' (rehearsal)' if is_rehearsal else ''}",
        titles=[*titles, *(marked(names[market], is_rehearsal) for market in markets)],
        rows=[
            [
                *([] if is_rehearsal else [one.row.run.instance_type]),
                setting(one.row),
                time_text(one),
                *(usd_text(one, market) for market in markets),
            ]
            for one in estimates
        ],
        notes=_job_notes(job, types if is_rehearsal else [], markets),
        leads=1,
    )


def time_text(estimate: JobEstimate) -> str:
    return with_bounds(estimate.seconds, estimate.low_s, estimate.high_s)


def usd_text(estimate: JobEstimate, market: Market) -> str:
    usd = estimate.usd(market)
    if usd is None:
        return ""
    low, high = (
        None if bound is None else estimate.usd(market, bound) for bound in (estimate.low_s, estimate.high_s)
    )
    return money(usd) + (f" ({money(low)}–{money(high)})" if low is not None and high is not None else "")


def job_records(rows: Sequence[ResultRow], job: UserJob, market: Market) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": one.row.run.workload,
            "case": one.row.result.case,
            "instance_type": one.row.run.instance_type,
            "rehearsal": one.row.rehearsal,
            "setting": one.row.result.setting,
            "items": job.items,
            "hours": one.seconds / SECONDS_PER_HOUR,
            "hours_low": None if one.low_s is None else one.low_s / SECONDS_PER_HOUR,
            "hours_high": None if one.high_s is None else one.high_s / SECONDS_PER_HOUR,
            "on_demand_usd": millionths(one.usd(Market.ON_DEMAND)),
            "spot_usd": millionths(one.usd(Market.SPOT)),
        }
        for one in job_estimates(rows, job, market)
    ]


def case_name(row: ResultRow) -> str:
    """Return the benchmark and the case of a row, without repeating a word."""
    return ", ".join(dict.fromkeys(part for part in (row.run.workload, row.result.case) if part))


def _job_notes(job: UserJob, rehearsed: Sequence[str], markets: Sequence[Market]) -> list[str]:
    notes = [
        f"{job.items:,.0f} {job.unit or 'items'} on one instance at the measured speed, intervals of 95 %"
    ]
    notes.append("the instance alone: boot, set-up, disk and address come on top")
    if Market.SPOT in markets:
        notes.append("spot: at today's price, without interruptions")
    if len(rehearsed) > 1:
        notes.append(
            f"no USD: one speed, of this machine, for {len(rehearsed)} types; --cloud aws measures each"
        )
    if rehearsed:
        price = f", the price of {rehearsed[0]}" if markets else ""
        notes.append(f"* rehearsal: the speed is of this machine{price}; of no instance type")
    return notes
