"""Recipes as commands read them, with what the chosen profile adds."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlcloud.app.profiles import chosen_profile, named_region
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.document import parse
from dlcloud.recipe.profile import Profile, apply_profile, merge
from dlcloud.recipe.recipe import Recipe, RecipeFile, read_recipe, with_name
from dlcloud.recipe.requirements import include_requirements
from dlcloud.resources.texts import recipe_text

LARGEST_LOCK = 8 << 20
"""Bytes of a file of packages: a uv.lock has a line for each build of each package."""
SCRIPTS = {".py", ".sh", ".bash", ".zsh", ".ipynb"}
"""Endings of programs, which `dlcloud init` writes a recipe for."""
MAKEFILES = {"Makefile", "makefile", "GNUmakefile"}
YAML = {".yaml", ".yml"}


def is_script(file: Path) -> bool:
    """True if a file is a program by its name or, without an ending, by its first line."""
    if file.suffix in SCRIPTS or file.name in MAKEFILES:
        return True
    try:
        with file.open("rb") as opened:
            return not file.suffix and opened.read(2) == b"#!"
    except OSError:
        return False


def own_module(name: str, places: Sequence[Path]) -> Path | None:
    """Return the file of a user's own module in the first of some folders that has it; None if none has."""
    parts = name.split(".")
    for place in places:
        path = place.joinpath(*parts)
        candidates = (path / "__init__.py", path.with_name(f"{path.name}.py"))
        if (file := next((file for file in candidates if file.is_file()), None)) is not None:
            return file
    return None


def own_names(modules: Iterable[str], places: Sequence[Path]) -> frozenset[str]:
    """Return the top names of those imports that are files of the user.

    A folder without `__init__.py` counts if an import is a file in it: a folder named `torch` hides no torch.
    """
    return frozenset(name.partition(".")[0] for name in modules if own_module(name, places) is not None)


def read_recipe_file(name: str) -> RecipeFile:
    """Read a recipe, a file or a bundled one, with what the chosen profile adds to it.

    Raises:
        RecipeError: Either is at fault.
    """
    if Path(name).is_file() and is_script(Path(name)):
        raise RecipeError(
            f"{name} is a script, not a recipe", f"dlcloud init {shlex.quote(name)} writes its recipe"
        )
    text, path = read_recipe_text(name)
    file = str(path or name)
    return _completed(read_recipe(text, file), text, file, str(path.absolute() if path else ""))


def file_of_recipe(recipe: Recipe) -> RecipeFile:
    """Return a recipe that was not read from a file as if it had been; its paths are of the current folder.

    Raises:
        RecipeError: The chosen profile is at fault.
    """
    text = recipe.to_yaml()
    return _completed(read_recipe(text, recipe.name), text, recipe.name, "")


def _completed(recipe: Recipe, text: str, file: str, path: str) -> RecipeFile:
    """Return a recipe with what the profile adds; `file` is its name in messages, `path` its file."""
    recipe, merged = with_profile(recipe, text, file)
    region, source = named_region()
    written = parse(text).value
    is_named = isinstance(written, dict) and "region" in written
    return RecipeFile(
        recipe=recipe,
        text=merged,
        path=path,
        profile=profile_of(recipe),
        written=text,
        region_source="" if is_named or recipe.cloud != "aws" or recipe.region != region else source,
    )


def read_recipe_text(name: str) -> tuple[str, Path | None]:
    """Return the text of a recipe with its name and the packages of a file that it names, and its path.

    Raises:
        RecipeError: One of the files is missing or at fault.
    """
    text, path = recipe_text(name)
    if path is None:
        return text, path
    return with_name(include_files(text, path), str(path)), path


def include_files(text: str, path: Path) -> str:
    """Return the text of the recipe `path` with the packages of a requirements file that it names.

    Raises:
        RecipeError: The file is missing or at fault.
    """
    return include_requirements(text, str(path), lambda file: _beside(path, file))


def _beside(recipe: Path, name: str) -> bytes | None:
    """Return the content of a file next to a recipe; None if there is none that can be read."""
    try:
        with (recipe.parent / name).open("rb") as file:
            return file.read(LARGEST_LOCK)
    except OSError:
        return None


def with_profile(recipe: Recipe, text: str, file: str) -> tuple[Recipe, str]:
    """Return a recipe with what the chosen profile adds to it, and its text; `file` is its name in messages.

    Raises:
        RecipeError: Either is at fault.
    """
    recipe, text = apply_profile(text, recipe, chosen_profile()[1], file)
    region, source = named_region()
    try:
        profile = Profile(region=region)
    except ValueError:
        raise RecipeError(f"{source}: {region!r} is no region", "name one, such as us-east-1") from None
    return apply_profile(text, recipe, profile, file)


def profile_defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a recipe, with what the chosen profile adds to them."""
    profile, cloud = chosen_profile()[1], keys.get("cloud", "aws")
    merged = dict(keys) if profile is None or profile.cloud != cloud else merge(keys, profile.defaults)
    region = named_region()[0] if cloud == "aws" else ""
    return merge(merged, {"region": region} if region else {})


def profile_of(recipe: Recipe) -> str:
    """Return the name of the profile that a recipe's cluster is launched with; empty without one."""
    name, profile = chosen_profile()
    return name if profile is not None and profile.cloud == recipe.cloud else ""
