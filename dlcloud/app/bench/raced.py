"""`dlcloud bench --race`: what can be raced, the race's state, and its candidates by prediction."""

from collections.abc import Sequence
from dataclasses import replace

from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob, candidates_of
from dlcloud.prediction.racing import MOST_SAMPLES
from dlcloud.report.bench_tables import TypePlan, race_record, race_section
from dlcloud.report.table import Report
from dlcloud.results.bench import BenchmarkMatrix, count_cases
from dlcloud.results.user_job import UserJob
from dlcloud.runs.race import Race

FEWEST_TYPES = 2


def check_race(matrix: BenchmarkMatrix) -> None:
    """Check that a matrix can be raced: one case of one job.

    Raises:
        RecipeError: It cannot.
    """
    hint = "--recipe FILE with one case in workload.parameters, or one -b NAME with one case"
    if len(matrix.jobs) > 1:
        names = ", ".join(job.name for job in matrix.jobs)
        raise RecipeError(f"--race compares types by one job, not by {len(matrix.jobs)}: {names}", hint)
    job, cases = matrix.jobs[0], count_cases(matrix.jobs[0])
    if cases > 1 and job.benchmark is not None:
        message = f"--race compares types by one case, and {job.name} has {cases}"
        raise RecipeError(message, f"{hint}; cases come from {', '.join(job.benchmark.selecting)}")


def race_of(plans: Sequence[TypePlan], job: UserJob | None, most_samples: int | None) -> Race:
    """Return the race of the types that can be launched.

    Raises:
        RecipeError: Fewer than two can, or the price of one is not known.
    """
    hourly = {}
    for planned in plans:
        if planned.plan is None:
            continue
        price = planned.plan.pools[0].price
        if price is None:
            message = f"--race needs the price of {planned.instance_type}, which is not known"
            raise RecipeError(message, "leave the type out")
        hourly[planned.instance_type] = float(price.hourly_usd) * planned.plan.max_count
    if len(hourly) < FEWEST_TYPES:
        named = ", ".join(hourly) or "none"
        raise RecipeError(
            f"--race needs two types that can run the job; of those given there is {named}",
            "dlcloud bench --race --instance c7i.xlarge --instance c7a.xlarge --recipe FILE",
        )
    return Race(hourly_usd=hourly, job=job, most_samples=most_samples or MOST_SAMPLES)


def with_race(report: Report, race: Race, *, rehearsal: bool) -> Report:
    """Return the report of a bench with the race instead of the answer, which looks only once."""
    result = race.result()
    tables = [section for section in report.sections if not section.leads]
    sections = [*tables, race_section(result, rehearsal=rehearsal)]
    return replace(report, sections=sections, extra={**report.extra, "race": race_record(result)})


def raced_types(jobs: Sequence[PredictedJob], market: Market) -> tuple[str, ...]:
    """Return the types that the predictions leave as candidates.

    Raises:
        RecipeError: Nothing was predicted.
    """
    names = candidates_of(jobs, market)
    if len(names) < FEWEST_TYPES:
        reasons = "; ".join(dict.fromkeys(job.refused for job in jobs if job.refused))
        message = f"the predictions leave nothing to race: {reasons or 'one type is cheaper than all others'}"
        raise RecipeError(message, "name the candidates with --instance")
    return names
