"""The variables of a program that runs in the environment of this process."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def activate(environment: Mapping[str, str]) -> dict[str, str]:
    """Put the programs of this virtual environment first on PATH, if it is one."""
    if sys.prefix == sys.base_prefix:
        return dict(environment)
    programs = filter(None, (str(Path(sys.executable).parent), environment.get("PATH")))
    return {**environment, "PATH": os.pathsep.join(programs)}
