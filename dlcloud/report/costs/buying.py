"""Which instance type to buy, as the first lines of the page: what was measured, apart from predictions."""

from collections.abc import Sequence
from decimal import Decimal

from dlcloud.model.instance import Market
from dlcloud.model.money import money
from dlcloud.prediction.offers import PredictedJob, PredictedOffer
from dlcloud.report import cells
from dlcloud.report.costs.answer import CaseAnswer, Question, answers_of
from dlcloud.report.table import Section
from dlcloud.results.cost import ResultRow
from dlcloud.results.ranking import By

MOST_CASES = 5
FIRST = 9
"""Before every other section that leads."""


def buying_sections(rows: Sequence[ResultRow], jobs: Sequence[PredictedJob], market: Market) -> list[Section]:
    """Return the section that names the type to buy for each case; none without a throughput."""
    answers = answers_of(rows, Question(market=market))
    if not answers:
        return []
    lines = [_line(answer, jobs, market) for answer in answers[:MOST_CASES]]
    if len(answers) > MOST_CASES:
        lines.append(f"{len(answers) - MOST_CASES} more cases: their answers are below.")
    return [Section(heading="\n".join(lines), titles=(), rows=(), leads=FIRST)]


def _line(answer: CaseAnswer, jobs: Sequence[PredictedJob], market: Market) -> str:
    if answer.is_rehearsal:
        return f"Nothing to buy by for {answer.name}: it was rehearsed on this machine only."
    best = answer.winners[By.COST]
    if best.row is not None:
        usd = best.row.usd_per_million(market)
        cost = "" if usd is None else f": {money(usd)} USD per million {best.row.items}, measured"
        line = f"Buy {_name(best.row)} {market} for {answer.name}{cost}."
    elif best.tied:
        line = f"Buy {' or '.join(_name(row) for row in best.tied)} for {answer.name}: no difference is seen."
    else:
        line = f"No type can be named for {answer.name}: {best.reason}."
    return line + _predicted(answer.rows, jobs, market)


def _name(row: ResultRow) -> str:
    return f"{row.run.instance_type} ({cells.setting(row)})"


def _predicted(rows: Sequence[ResultRow], jobs: Sequence[PredictedJob], market: Market) -> str:
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
