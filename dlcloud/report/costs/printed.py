"""The facts that the user's command printed (`workload.facts`), in lines below a table."""

from collections.abc import Callable, Mapping, Sequence

from dlcloud.results.cost import ResultRow


def facts_of(row: ResultRow) -> Mapping[str, object]:
    """Return the facts by name; a run that printed several values has them with commas."""
    printed = row.result.facts.get("printed")
    return printed if isinstance(printed, Mapping) else {}


def fact_notes(rows: Sequence[ResultRow], name_of: Callable[[ResultRow], str]) -> list[str]:
    """Return a line for each fact: each of its values, and which of several rows have it."""
    values: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        for fact, value in facts_of(row).items():
            values.setdefault(fact, {}).setdefault(str(value), {})[name_of(row)] = None
    texts = {
        fact: [
            f"{value} ({', '.join(names)})" if len(rows) > 1 else value for value, names in of_fact.items()
        ]
        for fact, of_fact in values.items()
    }
    return [f"{fact}: {'; '.join(parts)}" for fact, parts in texts.items()]
