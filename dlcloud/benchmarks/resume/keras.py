"""Keras 3's `Model.fit` on PyTorch, JAX and TensorFlow: saved after a batch or an epoch, and resumed there.

All variables of the model, its optimizer and its metrics are saved, with random numbers, the fields of
callbacks and what they wrote. The samples of an epoch are drawn again in their order, without those that were
trained before. TensorFlow keeps the state of its shuffling to itself: its iterators are made again in turn.
"""

import functools
import glob
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .states import (
    NOT_RESUMED,
    KeptFiles,
    States,
    dump,
    fields_of,
    load,
    random_state,
    restore_fields,
    restore_random,
    say,
)

STATE = "keras.pt"
SETTINGS = ("epochs", "initial_epoch", "batch_size", "steps_per_epoch", "validation_freq", "validation_split")
SMALL = 16 << 20
"""Bytes of a field of a data set that is saved: an order of samples, but not the samples."""

_running: "list[_Run]" = []


def patch(module: ModuleType) -> None:
    """Have `fit` of every model of this process resume."""
    import keras  # noqa: PLC0415 - imported by the program

    model: Any = module.Model
    iterators = __import__("keras.src.trainers.epoch_iterator", fromlist=["EpochIterator"]).EpochIterator
    fit = model.fit
    signature = inspect.signature(fit)
    _follow_iterators(iterators)

    @functools.wraps(fit)
    def resuming_fit(self: Any, *arguments: Any, **named: Any) -> Any:
        if _running:
            return fit(self, *arguments, **named)  # a callback that trains
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        given = bound.arguments
        if reason := _unsupported(keras, self, given):
            say(NOT_RESUMED.format(f"Keras with {reason}"))
            return fit(self, *arguments, **named)
        states = States("keras", version=keras.__version__, settings=_settings(keras, self, given))
        run = _Run(keras, self, states)
        given["callbacks"] = [*run.take(given["callbacks"]), run.callback()]
        before = self._initial_epoch
        _running.append(run)
        try:
            with states:
                run.load()
                outcome = fit(*bound.args, **bound.kwargs)
                states.finish()
        finally:
            _running.remove(run)
            self._initial_epoch = before
        return outcome

    model.fit = resuming_fit


def _unsupported(keras: Any, model: Any, given: dict[str, Any]) -> str:
    if isinstance(given["callbacks"], keras.callbacks.CallbackList):
        return "a CallbackList"
    if getattr(model, "autotune_steps_per_execution", False):
        return "steps_per_execution='auto'"
    if os.environ.get("TF_CONFIG") or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return "several workers"
    if keras.backend.backend() == "jax" and __import__("jax").process_count() > 1:
        return "several workers"
    return ""


def _settings(keras: Any, model: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: given[name] for name in SETTINGS},
        "shuffle": str(given["shuffle"]),
        "backend": keras.backend.backend(),
        "model": type(model).__qualname__,
        "parameters": model.count_params() if model.built else "",
        "optimizer": type(model.optimizer).__qualname__,
        "precision": getattr(model.dtype_policy, "name", ""),
    }


def _follow_iterators(iterators: Any) -> None:
    """Let a run know the iterator over its training samples, and where it stands."""
    initialize, enumerate_steps = iterators.__init__, iterators._enumerate_iterator

    @functools.wraps(initialize)
    def initializing(self: Any, *arguments: Any, **named: Any) -> None:
        initialize(self, *arguments, **named)
        if _running and _running[-1].samples is None:
            _running[-1].follow(self)

    @functools.wraps(enumerate_steps)
    def enumerating(self: Any) -> Iterator[Any]:
        steps = enumerate_steps(self)
        run = getattr(self, "dlcloud_run", None)
        yield from steps if run is None or not run.has_begun else run.enumerate(steps)

    iterators.__init__, iterators._enumerate_iterator = initializing, enumerating


class _Run:
    """One call of `fit`: what is restored into it, and when it saves."""

    def __init__(self, keras: Any, model: Any, states: States) -> None:
        self.keras, self.model, self.states = keras, model, states
        self.files = KeptFiles(states)
        self.samples: Any = None  # the EpochIterator of the training
        self.has_begun = False
        self.order: Any = None  # the random numbers at the present iterator's beginning
        self.made: list[bool] = []  # iterators of this training, and whether samples were taken of them
        self.epoch = self.batches = self.total = 0
        self._rest: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        self._callbacks: list[Any] = []
        self._is_told = False

    def take(self, callbacks: Any) -> list[Any]:
        """Return the callbacks of the script, and the history, which is saved, too."""
        given = (
            callbacks if isinstance(callbacks, (list, tuple)) else [] if callbacks is None else [callbacks]
        )
        self._callbacks = self.keras.tree.flatten(list(given))
        if not any(isinstance(callback, self.keras.callbacks.History) for callback in self._callbacks):
            self._callbacks.append(self.keras.callbacks.History())
        return self._callbacks

    def callback(self) -> Any:
        """Return what tells this run of batches and epochs, after all other callbacks."""
        run = self

        class DlcloudResume(self.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
                run.restore()

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
                run.begin_epoch(epoch)

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
                run.after_batch(batch + 1)

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
                run.after_epoch(epoch)

        return DlcloudResume()

    def load(self) -> None:
        state = self.states.newest()
        if state is not None:
            self._rest = {**load(state / STATE), "folder": state}

    def follow(self, samples: Any) -> None:
        self.samples, samples.dlcloud_run = samples, self
        make = samples._get_iterator

        def get_iterator() -> Any:
            if self.has_begun:
                self.order = random_state()
                self.made.append(False)
            return make()

        samples._get_iterator = get_iterator

    def restore(self) -> None:
        """Restore all but the place within an epoch, before the first one begins."""
        self.has_begun, rest = True, self._rest
        if not rest:
            return
        if not self.model.built or not self.model.optimizer.built:
            self._build()
        for group, values in zip(self._variables(), rest["variables"], strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
        self.model._initial_epoch = self.epoch = rest["epoch"]
        self.total = rest["total"]
        self.files.restore(rest["folder"], rest["files"])
        self._restore_fields()
        self._pending = rest
        if not rest["batches"]:
            restore_random(rest["random"])

    def _restore_fields(self) -> None:
        rest = self._rest
        for callback, fields in zip(self._callbacks, rest["callbacks"], strict=False):
            restore_fields(callback, fields)
            if (file := getattr(callback, "csv_file", None)) is not None:  # opened before it was restored
                callback.append_header = not file.seek(0, os.SEEK_END)
        restore_fields(self._data_set(), rest["data_set"])

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batches, rest = epoch, 0, self._rest
        if rest and rest["batches"]:
            for variable, value in zip(self.model.metrics_variables, rest["metrics"], strict=True):
                variable.assign(value)
            self._restore_fields()
        self._rest = {}

    def enumerate(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the steps of an epoch, without those that were trained before."""
        rest, self._pending = self._pending, {}
        if rest:
            self._replay(rest["made"], is_current_kept=bool(rest["seen"]))
        if rest and rest["seen"]:
            restore_random(rest["order"])
            step, size = next(steps), self.samples.steps_per_execution
            for _ in range(rest["seen"] if hasattr(step[2], "__next__") else 0):
                next(step[2])
            for _ in range(rest["batches"] // size):
                step = next(steps)
            self.samples._steps_seen = rest["seen"] + size
            restore_random(rest["random"])
            self.made[-1] = True
            yield step
        for step in steps:
            self.made[-1] = True
            yield step

    def _replay(self, made: list[bool], *, is_current_kept: bool) -> None:
        """Make the iterators again that there were before: each one changes TensorFlow's data sets."""
        if self.keras.backend.backend() != "tensorflow":
            self.made = made[:-1] if is_current_kept else list(made)
            return
        for is_used in made[:-1] if is_current_kept else made:
            iterator = iter(self.samples._get_iterator())
            if is_used:
                next(iterator)
            self.made[-1] = is_used

    def after_batch(self, batches: int) -> None:
        self.total += batches - self.batches
        self.batches = batches
        count = self.samples.num_batches
        if count is None:
            if self.states.is_noticed and not self._is_told:
                self._is_told = True
                say("the number of batches is unknown until the first epoch ends: nothing is saved before")
        elif batches < count and not self.model.stop_training and self.states.is_due(self.total):
            self.states.save(self.total, self._write)

    def after_epoch(self, epoch: int) -> None:
        self.epoch, self.batches = epoch + 1, 0
        if not self.model.stop_training and self.states.is_due(self.total):
            self.states.save(self.total, self._write)

    def _write(self, folder: Path) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        samples = self.samples
        is_kept = self.batches or (samples.steps_per_epoch and samples._current_iterator is not None)
        content = {
            "variables": [[_array(variable) for variable in group] for group in self._variables()],
            "metrics": [_array(variable) for variable in self.model.metrics_variables],
            "epoch": self.epoch,
            "batches": self.batches,
            "total": self.total,
            "seen": samples._steps_seen if is_kept else 0,
            "made": self.made,
            "order": self.order,
            "random": random_state(),
            "callbacks": [fields_of(callback) for callback in self._callbacks],
            "data_set": {
                name: value
                for name, value in fields_of(self._data_set()).items()
                if getattr(value, "nbytes", 0) <= SMALL and not name.startswith("_")
            },
            "files": self.files.keep(folder, self._written()),
        }
        dump(folder / STATE, content)

    def _variables(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the variables of the model, of the optimizer, and of the layers' common random numbers."""
        common = __import__("keras.src.random.seed_generator", fromlist=["x"]).global_seed_generator()
        return list(self.model.variables), list(self.model.optimizer.variables), [common.state]

    def _data_set(self) -> Any:
        """Return a data set of the script's, such as a PyDataset that shuffles itself after an epoch."""
        return getattr(self.samples.data_adapter, "py_dataset", None) or _Nothing()

    def _build(self) -> None:
        """Build a model that TensorFlow would build in its first step."""
        tree, numpy = self.keras.tree, __import__("numpy")
        specification = self.samples._distributed_dataset.element_spec

        def empty(item: Any) -> Any:
            return self.keras.ops.zeros(
                [size or 1 for size in item.shape], numpy.dtype(item.dtype.as_numpy_dtype).name
            )

        self.model._symbolic_build(data_batch=tree.map_structure(empty, specification))

    def _written(self) -> list[Path]:
        """Return the files that callbacks have written."""
        paths: list[Path] = []
        for callback in self._callbacks:
            for name in ("filepath", "filename"):
                pattern = re.sub(r"\\?\{.*?\}", "*", glob.escape(str(getattr(callback, name, None) or "")))
                paths += map(Path, glob.glob(pattern)) if pattern else []  # noqa: PTH207 - may be absolute
            if (folder := getattr(callback, "log_dir", None)) and type(callback).__name__ == "TensorBoard":
                paths += Path(folder).rglob("*")
        return paths


class _Nothing:
    """A data set without fields."""


def _array(variable: Any) -> Any:
    value = variable.numpy() if hasattr(variable, "numpy") else variable
    return value.copy() if hasattr(value, "copy") else value
