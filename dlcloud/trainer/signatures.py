"""Read from source what a function takes and says of itself, where there is no PyTorch to import it."""

import ast
import inspect
from pathlib import Path

FOLDER = Path(__file__).parent


def read_signature(module: str, name: str) -> tuple[inspect.Signature, str]:
    """Return the signature of a function of this package, its annotations as text, and its docstring."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text("utf-8"))
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
