"""Read the bundled tables of what instance types are like, and of what was published of servers on GPUs."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.prediction.measured_types import Reference, TypeTable, parse_table
from dlcloud.prediction.serving import (
    ServedModel,
    ServingTable,
    parse_config,
    parse_gpu_levels,
    parse_serving,
    read_model,
)


def type_table() -> TypeTable:
    return parse_table(_text("types.csv"))


def serving_table() -> ServingTable:
    return parse_serving(_text("serving.csv"))


def gpu_levels() -> tuple[tuple[Reference, ...], Mapping[str, tuple[float | None, ...]]]:
    return parse_gpu_levels(_text("gpus.csv"))


def find_model(text: str) -> ServedModel:
    """Return the language model of a name, of a number of parameters, or of the path of its config.json.

    Raises:
        RecipeError: It is none, or cannot be read.
    """
    path = Path(text, "config.json") if Path(text).is_dir() else Path(text)
    if path.suffix != ".json":
        return read_model(text)
    try:
        return parse_config(path.read_text("utf-8"), path.resolve().parent.name)
    except (OSError, UnicodeDecodeError) as e:
        raise RecipeError(f"--model {text}: cannot be read ({e})") from e


def _text(name: str) -> str:
    return files("dlcloud.prediction").joinpath(name).read_text("utf-8")
