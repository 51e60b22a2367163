"""Elastic training: workers join, drain and die at any step; no step, sample or learning rate is lost by it.

    from dlcloud.trainer import device, train

Stand-alone, copied alone to instances: imports the standard library, PyTorch and itself, never the
launcher. Must never take a step twice, or start a run over that has begun. A script adopts it in a few lines:
`training.py` says how, `examples/own_script.py` shows it whole, `python3 -m trainer.agent` runs it.
Importing it needs no PyTorch: only what a script calls does.
"""

import ast
import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .drain import DrainedError as DrainedError
    from .loop import Outcome as Outcome
    from .training import device as device
    from .training import train as train

_HOMES = {"train": "training", "device": "training", "Outcome": "loop", "DrainedError": "drain"}
_FUNCTIONS = ("train", "device")

__all__ = ["DrainedError", "Outcome", "device", "train"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever is imported
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _FUNCTIONS and find_spec("torch") is None:
        return _without_torch(name)
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def _without_torch(name: str) -> Callable[..., NoReturn]:
    """Return what fails when it is called: the script can be imported, and read by editors and tests."""

    def call(*_: object, **__: object) -> NoReturn:
        raise ModuleNotFoundError(f"dlcloud.trainer.{name} needs PyTorch: pip install torch", name="torch")

    signature, call.__doc__ = read_signature(_HOMES[name], name)
    call.__name__ = call.__qualname__ = name
    call.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` and `help` show
    return call


def read_signature(module: str, name: str) -> tuple[inspect.Signature, str]:
    """Return the signature of a function of this package, its annotations as text, and its docstring.

    They are read from the source: without PyTorch its module cannot be imported.
    """
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text("utf-8"))
    nodes = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    function = next(nodes)
    arguments = function.args
    parameters = [
        *(_parameter(item, inspect.Parameter.POSITIONAL_OR_KEYWORD, None) for item in arguments.args),
        *(
            _parameter(item, inspect.Parameter.KEYWORD_ONLY, default)
            for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
    ]
    returned = ast.unparse(function.returns) if function.returns else None
    signature = inspect.Signature(parameters, return_annotation=returned)
    return signature, ast.get_docstring(function) or ""


def _parameter(item: ast.arg, kind: inspect._ParameterKind, default: ast.expr | None) -> inspect.Parameter:
    return inspect.Parameter(
        item.arg,
        kind,
        default=inspect.Parameter.empty if default is None else ast.literal_eval(default),
        annotation=ast.unparse(item.annotation) if item.annotation else inspect.Parameter.empty,
    )
