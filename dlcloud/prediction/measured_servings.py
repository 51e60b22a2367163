"""How instance types served a language model in one's own results of the language benchmark.

A server under load states its throughput and times. Prompts and generation, which are measured apart, are put
together: the first token comes when the prompts are read.
"""

from collections.abc import Sequence
from math import log

from dlcloud.analysis.cost import ResultRow
from dlcloud.prediction.serving import Demand, ServedType, Source

MOST_APART = log(2)
"""How far the measured tokens may be from those asked for, as a logarithm."""
BYTES_PER_TOKEN = 4
"""Of English text, of which the prompts of servers are."""
MISSED = "measured: the goals are missed"
SERVED, GENERATED = "between_tokens_p50_ms", "generated_tokens"
"""Facts that a server's results have, and those of generation."""


def measured_servings(rows: Sequence[ResultRow], demand: Demand) -> dict[str, ServedType | str]:
    """Return how each type served the model that is asked for, best within the goals, or that it missed them.

    Rehearsals, jobs on several instances and results with other numbers of tokens say nothing of it.
    """
    mine = [
        row
        for row in rows
        if not row.rehearsal and row.run.nodes == 1 and row.throughput and _is_asked_for(row, demand)
    ]
    prompts = {
        _key(row): row.throughput.value
        for row in mine
        if row.throughput and "prompt_tokens" in row.result.facts and GENERATED not in row.result.facts
    }
    answers: dict[str, ServedType | str] = {}
    for row in mine:
        one = _serving(row, demand, prompts.get(_key(row)))
        if one is None:
            continue
        best = answers.setdefault(one.instance_type, MISSED)
        is_in_time = one.first_token_s <= demand.first_token_s and one.token_s <= demand.token_s
        if is_in_time and (isinstance(best, str) or one.tokens_s > best.tokens_s):
            answers[one.instance_type] = one
    return answers


def _is_asked_for(row: ResultRow, demand: Demand) -> bool:
    """Return whether a result is of this model, in this precision, with about as many tokens."""
    title, facts = row.result.case.partition(" ")[0].lower(), row.result.facts
    model = demand.model.name.rpartition("/")[2].lower()
    is_model = title == model or title.startswith(f"{model}-")
    prompt = facts.get("prompt_tokens") or facts.get("prompt_bytes", 0) / BYTES_PER_TOKEN
    answer = facts.get(GENERATED, demand.answer)
    if not is_model or demand.precision not in row.result.setting.split() or min(prompt, answer) <= 0:
        return False
    return max(abs(log(prompt / demand.prompt)), abs(log(answer / demand.answer))) <= MOST_APART


def _key(row: ResultRow) -> tuple[object, ...]:
    """Return what the results of prompts and of their generation have in common."""
    facts = row.result.facts
    return row.run.instance_type, row.result.setting, facts.get("streams"), facts.get("prompt_tokens")


def _serving(row: ResultRow, demand: Demand, prompts: float | None) -> ServedType | None:
    """Return what a result of a server, or of generation after prompts (tokens/s), says; None of others."""
    facts, speed = row.result.facts, row.throughput
    if speed is None or speed.value <= 0 or GENERATED not in facts:
        return None
    if SERVED in facts:
        rate, token_s = speed.value, facts[SERVED] / 1000
        first_s = facts["first_token_p95_ms"] / 1000
        setup = f"{facts['requests_per_s']:g} requests/s, {row.result.setting}"
    elif prompts:
        streams = facts["streams"]
        token_s, first_s = streams / speed.value, streams * demand.prompt / prompts
        rate = streams * demand.answer / (first_s + demand.answer * token_s)
        setup = f"{streams} each, {row.result.setting}"
    else:
        return None
    interval = speed.interval
    return ServedType(
        instance_type=row.run.instance_type,
        source=Source.MEASURED,
        setup=setup,
        tokens_s=rate,
        first_token_s=first_s,
        token_s=token_s,
        error=log(interval[1] / interval[0]) / 2 if interval and interval[0] > 0 else None,
    )
