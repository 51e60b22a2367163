"""Find recipes and templates: top-level folders of a checkout, inside the package in a wheel."""

import json
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from dlcloud.core.errors import RecipeError

RECIPE_SUFFIX = ".yaml"


def template(name: str) -> str:
    """Return the text of a template."""
    return _folder("templates").joinpath(name).read_text("utf-8")


def recipe_names() -> list[str]:
    """Return the names of the bundled recipes, sorted."""
    names = (entry.name for entry in _folder("recipes").iterdir())
    return sorted(name.removesuffix(RECIPE_SUFFIX) for name in names if name.endswith(RECIPE_SUFFIX))


def recipe_text(name: str) -> tuple[str, Path | None]:
    """Return the text of a recipe and its path: a file if there is one of that name, else a bundled recipe.

    Raises:
        RecipeError: There is neither, or the file cannot be read as UTF-8.
    """
    path = Path(name)
    if path.is_file():
        try:
            return path.read_text("utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{name} cannot be read: {error}") from error
    if name in recipe_names():
        return _folder("recipes").joinpath(name + RECIPE_SUFFIX).read_text("utf-8"), None
    raise RecipeError(
        f"there is no file {name}, and no bundled recipe of that name",
        f"bundled: {', '.join(recipe_names())}",
    )


def user_data(
    *, public_key: str, secret: str, life_minutes: int, idle_minutes: int | None = None, user: str = "ubuntu"
) -> str:
    """Return the cloud-init document of a launch.

    Args:
        public_key: The one key that may log in.
        secret: 64 hexadecimal digits by which the instances prove their host keys; made for one launch.
        life_minutes: After how long an instance ends itself.
        idle_minutes: After how long without work it does; None for never.
        user: Who logs in, and whose programs count as work.
    """
    idle = "inf" if idle_minutes is None else str(idle_minutes)
    facts = {"@LIFE_MINUTES@": str(life_minutes), "@IDLE_MINUTES@": idle, "@USER@": user}
    watchdog = re.sub("|".join(facts), lambda found: facts[found[0]], template("watchdog.py"))
    proof = template("host_proof.py").replace("@SECRET@", secret)
    words = {
        "@PUBLIC_KEY@": public_key,
        "@HOST_PROOF@": proof,
        "@WATCHDOG@": watchdog,
        "@LIFE@": f"+{life_minutes}",
    }
    # In one pass, so that no value is searched for words; a JSON string is a YAML one, quotes and all.
    return re.sub("|".join(words), lambda found: json.dumps(words[found[0]]), template("user_data.yaml"))


def control_policy(cluster_id: str, region: str) -> str:
    """Return the IAM policy of the one instance that may control a cluster: nothing beyond that cluster."""
    text = template("control_policy.json")
    return text.replace("@CLUSTER@", cluster_id).replace("@REGION@", region)


def outside_package() -> dict[str, Path]:
    """Return the folders of texts that do not lie in the package, by their names: those of a checkout."""
    names = ("templates", "recipes")
    return {name: Path(str(found)) for name in names if not _within(found := _folder(name))}


def _within(folder: Traversable) -> bool:
    return Path(str(folder)).is_relative_to(Path(__file__).parent)


def _folder(name: str) -> Traversable:
    packaged = files("dlcloud.resources").joinpath(name)
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name
