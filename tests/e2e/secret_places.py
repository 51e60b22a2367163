"""Where a secret lies on this machine, in any form in which it could be copied."""

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote

PIECE = 1 << 20


def places_of(value: str, *folders: Path) -> list[str]:
    """Return the files below folders, of instances and homes alike, and the command lines with a secret."""
    forms = _forms(value)
    # os.walk goes on where a folder is removed meanwhile.
    walks = [walk for folder in folders for walk in os.walk(folder)]
    files = [path for root, _, names in walks for name in names if (path := Path(root, name)).is_file()]
    lines = [path for process in Path("/proc").glob("[0-9]*") for path in process.glob("cmdline")]
    return [str(path) for path in files + lines if _has_any(path, forms)]


def _forms(value: str) -> list[bytes]:
    """Return the value plain, escaped, and in Base64 as a whole and at any place of a longer text."""
    shifted = [base64.b64encode(b"x" * shift + value.encode())[4:-4] for shift in range(3)]
    escaped = {json.dumps(value)[1:-1].encode(), quote(value).encode(), value.encode().hex().encode()}
    return [value.encode(), *escaped, *shifted]


def _has_any(path: Path, forms: list[bytes]) -> bool:
    try:
        with path.open("rb") as content:
            before = b""
            while piece := content.read(PIECE):
                if any(form in before + piece for form in forms):
                    return True
                before = piece[-200:]
    except OSError:  # a process or an instance that has ended
        return False
    return False
