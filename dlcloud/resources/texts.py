"""Find recipes and templates, and render templates: folders of a checkout, or of the package in a wheel."""

import json
import re
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from dlcloud.model.errors import RecipeError

RECIPE_SUFFIX = ".yaml"
LARGEST_RECIPE = 1 << 20
LONGEST_NAME = 200


def template(name: str) -> str:
    return _folder("templates").joinpath(name).read_text("utf-8")


def recipe_names() -> list[str]:
    names = (entry.name for entry in _folder("recipes").iterdir())
    return sorted(name.removesuffix(RECIPE_SUFFIX) for name in names if name.endswith(RECIPE_SUFFIX))


def recipe_data(prefix: str) -> dict[str, bytes]:
    """Return the files, by name, that come with the bundled recipes for a prefix of their buckets."""
    folder = _folder("recipes").joinpath("data", *prefix.split("/"))
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()} if folder.is_dir() else {}


def recipe_text(name: str) -> tuple[str, Path | None]:
    """Return the text of a recipe and its path: of a file of that name, else of a bundled recipe.

    Raises:
        RecipeError: There is neither, or the file is not UTF-8 text.
    """
    path = Path(name)
    if _is_file(path):
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_RECIPE + 1)
            if len(content) > LARGEST_RECIPE:
                message = f"cannot read {name}: a recipe has at most {LARGEST_RECIPE >> 20} MiB"
                raise RecipeError(message, "dlcloud init writes one to start from")
            return content.decode("utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"cannot read {name}: {error}") from error
    if name in recipe_names():
        return _folder("recipes").joinpath(name + RECIPE_SUFFIX).read_text("utf-8"), None
    shown = name[:LONGEST_NAME]
    near = get_close_matches(shown, recipe_names(), n=1)
    raise RecipeError(
        f"{shown} is neither a file nor a bundled recipe{f'; did you mean {near[0]}?' if near else ''}",
        "dlcloud recipes lists the bundled ones",
    )


def user_data(
    *, public_key: str, secret: str, life_minutes: int, idle_minutes: int | None = None, user: str = "ubuntu"
) -> str:
    """Render the cloud-init document of a launch.

    Args:
        public_key: The only key that may log in.
        secret: 64 hexadecimal digits, drawn for one launch, by which instances prove their host keys.
        life_minutes: Minutes until an instance ends itself.
        idle_minutes: Minutes without work until an instance ends itself; None for never.
        user: The login user, whose programs count as work.
    """
    idle = "inf" if idle_minutes is None else str(idle_minutes)
    values = {"@LIFE_MINUTES@": str(life_minutes), "@IDLE_MINUTES@": idle, "@USER@": user}
    watchdog = re.sub("|".join(values), lambda word: values[word[0]], template("watchdog.py"))
    proof = template("host_proof.py").replace("@SECRET@", secret)
    texts = {
        "@PUBLIC_KEY@": public_key,
        "@HOST_PROOF@": proof,
        "@WATCHDOG@": watchdog,
        "@LIFE@": f"{life_minutes}min",
    }
    # In one pass, so that no value is searched for words; a quoted JSON string is a YAML string.
    return re.sub("|".join(texts), lambda word: json.dumps(texts[word[0]]), template("user_data.yaml"))


def iam_policy(
    name: str = "iam_policy.json", *, partition: str = "aws", dns_suffix: str = "amazonaws.com"
) -> str:
    """Render a policy of dlcloud's users.

    Args:
        name: Of the template.
        partition: As ARNs name it.
        dns_suffix: The end of the partition's host names, and of some of its principals.
    """
    text = template(name).replace("@PARTITION@", partition)
    return text.replace("@SUFFIX@", dns_suffix)


def control_policy(cluster_id: str, region: str, partition: str = "aws") -> str:
    """Render the IAM policy of the instance that controls a cluster: nothing beyond that cluster."""
    text = template("control_policy.json").replace("@PARTITION@", partition)
    return text.replace("@CLUSTER@", cluster_id).replace("@REGION@", region)


def outside_package() -> dict[str, Path]:
    """Return the folders of texts that lie outside the package: those of a checkout, by name."""
    names = ("templates", "recipes")
    folders = {name: Path(str(_folder(name))) for name in names}
    package = Path(__file__).parent
    return {name: folder for name, folder in folders.items() if not folder.is_relative_to(package)}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than file systems allow
        return False


def _folder(name: str) -> Traversable:
    packaged = files("dlcloud.resources").joinpath(name)
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name
