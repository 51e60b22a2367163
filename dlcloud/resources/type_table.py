"""Read the bundled table of what instance types are like."""

from importlib.resources import files

from dlcloud.prediction.measured_types import TypeTable, parse_table


def type_table() -> TypeTable:
    return parse_table(files("dlcloud.prediction").joinpath("types.csv").read_text("utf-8"))
