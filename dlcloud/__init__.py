"""Run deep-learning workloads on EC2 for the least money, and measure what they cost.

From Python (`docs/python.md`): `up`, `plan`, `results`, `trials`, `down`, `Recipe` and `DlcloudError`, each
imported when it is first used, so that `import dlcloud` costs next to nothing.

The packages lie on floors; a module imports only from floors below its own. `docs/architecture.md` has them,
`pyproject.toml` (`[tool.importlinter]`) checks them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlcloud.app.library import down, plan, results, trials, up
    from dlcloud.model.errors import DlcloudError
    from dlcloud.recipe.recipe import CodeRecipe as Recipe
    from dlcloud.report.notebook import Figure, Rows

    __version__: str

__all__ = [
    "DlcloudError",
    "Figure",
    "Recipe",
    "Rows",
    "__version__",
    "down",
    "plan",
    "results",
    "trials",
    "up",
]

_PLACES = {
    **dict.fromkeys(("up", "plan", "results", "trials", "down"), "dlcloud.app.library"),
    "Recipe": "dlcloud.recipe.recipe:CodeRecipe",
    "Rows": "dlcloud.report.notebook",
    "Figure": "dlcloud.report.notebook",
    "DlcloudError": "dlcloud.model.errors",
}
"""Where each public name is: a module, and the name there if it is another one."""


def __getattr__(name: str) -> Any:  # noqa: ANN401  each name has its own type
    """Import a public name when it is first used."""
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("dlcloud")
    elif name in _PLACES:
        module, _, inner = _PLACES[name].partition(":")
        value = getattr(import_module(module), inner or name)
    else:
        raise AttributeError(f"module dlcloud has no attribute {name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
