"""AWS's descriptions of its services, read once for all loaders of a process, in half the memory."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from botocore.loaders import JSONFileLoader, Loader


def share_descriptions() -> None:
    """Let botocore, and moto, read each description once, without documentation: for the local EC2.

    Source: botocore reads them as OrderedDict, once for each session.
    """
    botocore.session.create_loader = cache(botocore.session.create_loader)
    Loader.FILE_LOADER_CLASS = _Descriptions


class _Descriptions(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """Reads files; moto adds to what it is given, and nothing else changes it."""

    def load_file(self, file_path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the content of a file, whose name is given without its ending; None where there is none."""
        return _read(file_path)


@cache
def _read(path: str) -> Any:  # noqa: ANN401 - JSON
    for name, decompress in ((f"{path}.json", bytes), (f"{path}.json.gz", gzip.decompress)):
        if Path(name).is_file():
            return json.loads(decompress(Path(name).read_bytes()), object_pairs_hook=_without_documentation)
    return None


def _without_documentation(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Leave out what says what things mean; a member of that name is an object."""
    return {name: value for name, value in pairs if name != "documentation" or type(value) is not str}
