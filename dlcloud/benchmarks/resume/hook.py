"""Patches a framework's training when the program imports it; modules that it never imports cost nothing."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PATCHES = {
    "torch.utils.data._utils.worker": "plain",
    "multiprocessing.pool": "plain",
    "transformers.trainer": "huggingface",
    "xgboost.training": "boosting",
    "lightgbm.engine": "boosting",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "keras.src.models.model": "keras",
}
"""Modules of frameworks, and the module of this package whose `patch` changes each."""


def start() -> None:
    """Watch the imports of this process."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds what the other finders find; a module that is to be patched is patched after its execution."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in PATCHES:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                _patch_after_execution(spec)
                return spec
        return None


def _patch_after_execution(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        try:
            patcher = __import__(f"{__package__}.{PATCHES[spec.name]}", fromlist=["patch"])
            patcher.patch(module)
        except Exception as error:  # noqa: BLE001 - the program trains without the hook
            sys.stderr.write(
                f"dlcloud: cannot hook into {spec.name}: the program starts from the beginning after an "
                f"interruption: {type(error).__name__}: {error}\n"
            )

    loader.exec_module = exec_module  # of this one module: each has its own loader
