"""The profile of a command."""

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError

PROFILE_VARIABLE = "DLCLOUD_PROFILE"
CONTROLLER_VARIABLE = "DLCLOUD_CONTROLLER"


if TYPE_CHECKING:
    from dlcloud.recipe.profile import Configuration, MonthlyBudget, Profile

LARGEST_FILE = 1 << 18


def configuration_file() -> Path:
    """Return the path of the file of profiles."""
    named = os.environ.get("DLCLOUD_CONFIG")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return Path(named).expanduser().absolute() if named else folder.absolute() / "dlcloud" / "config.yaml"


def profile_name() -> str | None:
    """Return the name of this command's profile: empty for the default, None where there are no profiles.

    An instance that controls its own cluster has its own role, and the recipe as a profile had completed it.
    """
    return None if os.environ.get(CONTROLLER_VARIABLE) else os.environ.get(PROFILE_VARIABLE, "")


def chosen_profile() -> "tuple[str, Profile | None]":
    """Return the name of this command's profile and the profile: by --profile, or the file's default.

    Raises:
        RecipeError: There is no such profile, or the file cannot be read.
    """
    name = profile_name()
    if name is None or (not name and not configuration_file().exists()):
        return "", None
    name = name or _configuration(configuration_file()).default
    return name, find_profile(name)


def find_profile(name: str, *, purpose: str = "--profile") -> "Profile | None":
    """Return the profile of a name; None without a name.

    Args:
        name: As written in the configuration file.
        purpose: What names it, in the message of an error.

    Raises:
        RecipeError: There is no such profile, or the file cannot be read.
    """
    if not name:
        return None
    path = configuration_file()
    profiles = _configuration(path).profiles if path.exists() else {}
    if name not in profiles:
        listed = f"its profiles: {', '.join(sorted(profiles))}" if profiles else "see docs/profiles.md"
        raise RecipeError(f"{purpose}: {path} has no profile {name}", listed)
    return profiles[name]


def named_region() -> tuple[str, str]:
    """Return the region of what names none, and what says so; both empty if nothing does.

    The dlcloud profile comes first, then the variables and the file that the AWS CLI follows.
    """
    if profile_name() is None:
        return "", ""
    name, profile = chosen_profile()
    if profile is not None and profile.cloud == "aws" and profile.region:
        return profile.region, f"profile {name}"
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if region := os.environ.get(variable, ""):
            return region, variable
    own = profile.aws_profile if profile is not None and profile.cloud == "aws" else ""
    aws_profile = own or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    file = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config")
    import configparser  # noqa: PLC0415  --help imports this module

    settings = configparser.RawConfigParser(strict=False)
    try:
        settings.read(file.expanduser(), "utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError, configparser.Error):  # EC2's calls say what is wrong
        return "", ""
    section = aws_profile if aws_profile == "default" else f"profile {aws_profile}"
    region = settings.get(section, "region", fallback="").strip()
    return (region, f"{file}, profile {aws_profile}") if region else ("", "")


def default_region() -> str:
    """Return the region of what names none."""
    return named_region()[0] or DEFAULT_REGION


def monthly_budget() -> "MonthlyBudget | None":
    """Return the limit of a month; None without one, and on an instance that controls its own cluster.

    Raises:
        RecipeError: The configuration file cannot be read.
    """
    if profile_name() is None or not configuration_file().exists():
        return None
    return _configuration(configuration_file()).budget


def forget_configuration() -> None:
    """Read the configuration file again when it is asked for: it was changed."""
    _configuration.cache_clear()


@cache
def _configuration(path: Path) -> "Configuration":
    from dlcloud.recipe.profile import read_configuration  # noqa: PLC0415  pydantic, only where there is a file

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise RecipeError(f"cannot read {path}: a configuration has at most {LARGEST_FILE >> 10} KiB")
        return read_configuration(content.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read {path}: {error}", "see docs/profiles.md") from error
