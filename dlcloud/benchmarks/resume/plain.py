"""Loops of a script's own: `dlcloud_report.checkpoint`, in two lines.

    first = dlcloud_report.checkpoint(model, optimizer, scheduler)   # restores them; 0 at the beginning
    for step in range(first, steps):
        ...
        dlcloud_report.checkpoint(step=step + 1)                     # saves them if it is due

The objects have `state_dict` and `load_state_dict`, or are lists, dictionaries or generators of random
numbers. The random numbers of Python, NumPy and PyTorch are saved with them.

`patch` is for all frameworks: processes that load samples outlive the signal, which reaches them, too.
"""

import atexit
import functools
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .states import States, dump, load, random_state, restore_random

STATE = "plain-{}.pt"

_running: "list[_Loop]" = []


class _Loop:
    """What one loop saves."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self.objects = objects
        torch = sys.modules.get("torch")
        is_distributed = (
            torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
        )
        self.states = States(
            "checkpoint",
            version=getattr(torch, "__version__", "without torch"),
            settings={"objects": [f"{type(item).__qualname__}{_size(item)}" for item in objects]},
            world=torch.distributed.get_world_size() if torch is not None and is_distributed else 1,
            rank=torch.distributed.get_rank() if torch is not None and is_distributed else 0,
            seed=None if torch is None else torch.initial_seed(),
        )
        self.states.__enter__()
        atexit.register(self._finish, os.getpid())

    def restore(self) -> int:
        state = self.states.newest()
        if state is None:
            return 0
        content = load(state / STATE.format(self.states.rank))
        shared = [load(state / name) for name in content.get("shared", [])]
        for item, saved in zip(self.objects, content.get("objects", shared), strict=True):
            _restore(item, saved)
        restore_random(content["random"])
        return self.states.step

    def save(self, folder: Path) -> None:
        objects: list[Any] = [_saved(item) for item in self.objects]
        content = {"objects": objects, "random": random_state()}
        if self.states.is_spread:
            content = {"shared": [self._share(folder, item) for item in objects], "random": content["random"]}
        dump(folder / STATE.format(self.states.rank), content)

    def _share(self, folder: Path, item: Any) -> str:
        """Save an object by its content: a model that is equal on all processes is saved once."""
        own = folder / f"part-{self.states.rank}"
        own.mkdir(exist_ok=True)
        dump(own / "object", item)
        name = f"object-{hashlib.sha256((own / 'object').read_bytes()).hexdigest()}"
        (own / "object").replace(folder / name)
        own.rmdir()
        return name

    def _finish(self, process: int) -> None:
        if os.getpid() == process and not self.states.is_noticed and not hasattr(sys, "last_value"):
            self.states.finish()


def checkpoint(objects: Sequence[Any], step: int | None, of: int | None = None) -> int:
    """Restore the objects and return the step to begin with; or save them after a step, if it is due.

    `of`: the steps of the loop, if known. At the exit it is too late for the last state: the script may have
    changed the objects since.
    """
    if objects:
        loop = _Loop(objects)
        _running[:] = [loop]
        return loop.restore()
    if step is None or not _running:
        raise ValueError("checkpoint(model, optimizer) comes before the loop, checkpoint(step=N) into it")
    loop = _running[0]
    if loop.states.is_due(step, is_last=step == of):
        loop.states.save(step, loop.save)
    return step


def _size(item: Any) -> str:
    parameters = getattr(item, "parameters", None)
    return f" of {sum(parameter.numel() for parameter in parameters())}" if callable(parameters) else ""


def _saved(item: Any) -> Any:
    if hasattr(item, "state_dict"):
        return item.state_dict()
    if isinstance(item, (list, dict)):
        return item
    if hasattr(item, "bit_generator"):
        return item.bit_generator.state
    return item.get_state() if hasattr(item, "get_state") else item.getstate()


def _restore(item: Any, saved: Any) -> None:
    if hasattr(item, "load_state_dict"):
        item.load_state_dict(saved)
    elif isinstance(item, list):
        item[:] = saved
    elif isinstance(item, dict):
        item.clear()
        item.update(saved)
    elif hasattr(item, "bit_generator"):
        item.bit_generator.state = saved
    elif hasattr(item, "set_state"):
        item.set_state(saved)
    else:
        item.setstate(saved)


def patch(module: ModuleType) -> None:
    """Have processes that load samples end with their parent only: it fails if one ends before."""
    name = "_worker_loop" if hasattr(module, "_worker_loop") else "worker"
    work = getattr(module, name)

    @functools.wraps(work)
    def working(*arguments: Any, **named: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, daemon=True).start()
        return work(*arguments, **named)

    setattr(module, name, working)


def _end_with_parent() -> None:
    while (sender := signal.sigwaitinfo({signal.SIGTERM}).si_pid) != os.getppid() and sender:
        pass
    os._exit(0)
