"""The import hook by which a program resumes after an interruption, unchanged: `workload.resume: auto`.

`install` makes a folder for PYTHONPATH. Its `sitecustomize` does nothing unless DLCLOUD_RESUME is auto. Then
it waits for the import of Hugging Face's Trainer, Lightning, Keras, XGBoost or LightGBM. Their training saves
its whole state at intervals and at SIGTERM, and begins with the newest state. `states.py` says where the
states lie and when one is refused. Each framework has a module, which is imported with the framework. Plain
loops call `dlcloud_report.checkpoint`, see `plain.py`.

Only the standard library is imported here: the program's Python may have nothing else.
"""

import shutil
from pathlib import Path

PACKAGE = "dlcloud_resume"
"""Its name in the program, where `benchmarks` may be the user's."""


def install(folder: Path) -> None:
    """Put the hook into a folder that comes first on the program's PYTHONPATH."""
    source = Path(__file__).parent
    shutil.copytree(
        source, folder / PACKAGE, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(source / "sitecustomize.py", folder)
