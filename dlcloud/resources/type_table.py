"""Read the bundled tables of what instance types are like, and of what was published of servers on GPUs."""

from collections.abc import Mapping
from importlib.resources import files

from dlcloud.prediction.measured_types import Reference, TypeTable, parse_table
from dlcloud.prediction.serving import ServingTable, parse_gpu_levels, parse_serving


def type_table() -> TypeTable:
    return parse_table(_text("types.csv"))


def serving_table() -> ServingTable:
    return parse_serving(_text("serving.csv"))


def gpu_levels() -> tuple[tuple[Reference, ...], Mapping[str, tuple[float | None, ...]]]:
    return parse_gpu_levels(_text("gpus.csv"))


def _text(name: str) -> str:
    return files("dlcloud.prediction").joinpath(name).read_text("utf-8")
