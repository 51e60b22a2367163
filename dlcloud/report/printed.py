"""The facts that the user's command printed (`workload.facts`), in lines below a table."""

from collections.abc import Callable, Iterable, Mapping

from dlcloud.core.result_row import ResultRow


def facts_of(row: ResultRow) -> Mapping[str, object]:
    """Return the facts by name; a run that printed several values has them with commas."""
    printed = row.result.facts.get("printed")
    return printed if isinstance(printed, Mapping) else {}


def fact_notes(rows: Iterable[ResultRow], name_of: Callable[[ResultRow], str]) -> list[str]:
    """Return a line for each fact: each of its values, with the names of the rows that have it."""
    values: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        for fact, value in facts_of(row).items():
            values.setdefault(fact, {}).setdefault(str(value), {})[name_of(row)] = None
    return [
        f"{fact}: " + "; ".join(f"{value} ({', '.join(names)})" for value, names in of_value.items())
        for fact, of_value in values.items()
    ]
