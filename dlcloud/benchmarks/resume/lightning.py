"""Lightning's `Trainer.fit`: saved by its own checkpoint, resumed as with `ckpt_path`, also within an epoch.

What its checkpoint lacks is saved next to it: random numbers and the order of the samples, what was logged in
the epoch so far, counters of callbacks and of the module, the files of loggers, and those of ModelCheckpoint.
Its own restart within an epoch repeats samples and skips learning rates. So the loops learn here where
they are: after an optimizer step within an epoch, or between two epochs.
"""

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from .states import (
    NOT_RESUMED,
    KeptFiles,
    States,
    dump,
    fields_of,
    is_torch_metric,
    load,
    plain_settings,
    random_state,
    restore_fields,
    restore_random,
    say,
)

CHECKPOINT, REST = "lightning.ckpt", "rest-{}.pt"
SETTINGS = (
    "max_epochs",
    "max_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "limit_train_batches",
    "precision",
)
STRATEGIES = {"SingleDeviceStrategy", "DDPStrategy"}
FINDERS = {"LearningRateFinder", "BatchSizeFinder"}
WITH_FIELDS = {"ModelCheckpoint", "EarlyStopping", "LearningRateMonitor"}
"""Lightning's callbacks whose state lacks some of their fields."""
CLOCKS = {"_start_time", "_end_time", "_last_time_checked"}
METRIC = ("_update_count", "_computed", "_forward_cache")
RESULT = ("value", "cumulated_batch_size", "has_reset", *METRIC)


def patch(module: ModuleType) -> None:
    """Have every Trainer of this process resume."""
    trainer: Any = module.Trainer
    fetchers = __import__(
        module.__name__.replace("trainer.trainer", "loops.fetchers"), fromlist=["_DataFetcher"]
    )
    needed = {
        module._FitLoop: ("reset", "on_advance_start", "on_advance_end"),
        module._TrainingEpochLoop: ("on_run_start", "on_advance_end"),
    }
    for loop, names in needed.items():
        if missing := [name for name in names if not hasattr(loop, name)]:
            raise AttributeError(f"this version of Lightning has no {loop.__name__}.{missing[0]}")
    fit = trainer.fit
    _note_random(fetchers._DataFetcher)

    @functools.wraps(fit)
    def resuming_fit(self: Any, model: Any, *arguments: Any, **named: Any) -> Any:
        if reason := _unsupported(self):
            say(NOT_RESUMED.format(f"Lightning with {reason}"))
            return fit(self, model, *arguments, **named)
        states = States(
            "lightning",
            version=__import__(module.__name__.partition(".")[0]).__version__,
            settings={**{name: getattr(self, name) for name in SETTINGS}, **_model_settings(model)},
            world=self.world_size,
            rank=self.global_rank,
        )
        with states, _Run(self, model, states):
            outcome = fit(self, model, *arguments, **named)
            states.finish()
        return outcome

    trainer.fit = resuming_fit


def _unsupported(trainer: Any) -> str:
    strategy = type(trainer.strategy).__name__
    launcher = type(trainer.strategy.launcher).__name__
    if strategy not in STRATEGIES or launcher == "_MultiProcessingLauncher":
        return f"{strategy} or processes that it forks"
    if trainer.fast_dev_run:
        return "fast_dev_run"
    names = {type(callback).__name__ for callback in trainer.callbacks}
    return next(iter(names & FINDERS), "")


def _model_settings(model: Any) -> dict[str, Any]:
    sizes = [parameter.numel() for parameter in model.parameters() if type(parameter).__name__ == "Parameter"]
    hyperparameters = plain_settings(dict(model.hparams)) if getattr(model, "hparams", None) else {}
    return {
        "model": type(model).__qualname__,
        "parameters": sum(sizes),
        **{f"hparams.{key}": value for key, value in hyperparameters.items()},
    }


def _note_random(fetcher: Any) -> None:
    """Note the random numbers at an epoch's iterator and first sample: its order is drawn with these."""
    begin, following = fetcher.__iter__, fetcher.__next__

    @functools.wraps(begin)
    def iterate(self: Any) -> Any:
        loaders = self.combined_loader
        is_again = any(getattr(loader, "_iterator", None) is not None for loader in loaders.flattened)
        self.dlcloud_random = [*[_randomness(loaders)] * 2, is_again]
        return begin(self)

    @functools.wraps(following)
    def advance(self: Any) -> Any:
        if not self.fetched and hasattr(self, "dlcloud_random"):
            self.dlcloud_random[1] = _randomness(self.combined_loader)
        return following(self)

    fetcher.__iter__, fetcher.__next__ = iterate, advance


def _generators(loaders: Any) -> list[Any]:
    """Return the generators of random numbers that a script gave to its loaders."""
    generators: list[Any] = []
    for loader in loaders.flattened:
        for holder in (loader, getattr(loader, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if generator is not None and all(generator is not other for other in generators):
                generators.append(generator)
    return generators


def _randomness(loaders: Any) -> tuple[dict[str, Any], list[Any]]:
    return random_state(), [generator.get_state() for generator in _generators(loaders)]


def _restore_randomness(loaders: Any, state: tuple[dict[str, Any], list[Any]]) -> None:
    restore_random(state[0])
    for generator, saved in zip(_generators(loaders), state[1], strict=False):
        generator.set_state(saved)


class _Skipping:
    """A batch sampler that leaves out the batches that were trained before, once."""

    def __init__(
        self, batches: Any, number: int, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self.batches, self.number, self._before, self._after = batches, number, before, after

    def __iter__(self) -> Iterator[Any]:
        number, self.number = self.number, 0
        if not number:
            yield from self.batches
            return
        self._before()
        iterator = iter(self.batches)
        for _ in islice(iterator, number):
            pass
        self._after()
        yield from iterator

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)


class _Run:
    """One call of `fit`, whose objects save and resume within a `with` block."""

    def __init__(self, trainer: Any, model: Any, states: States) -> None:
        self.trainer, self.model, self.states = trainer, model, states
        self.fit_loop, self.epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self.state: Path | None = None
        self.rest: dict[str, Any] = {}
        self._skip_from: dict[str, Any] | None = None
        self._files = KeptFiles(states)
        self._wrapped: list[tuple[Any, str]] = []
        without = __import__(
            type(trainer).__module__.rpartition(".trainer.")[0], fromlist=["LightningModule"]
        )
        self._own = set(vars(without.LightningModule()))

    def __enter__(self) -> None:
        trainer = self.trainer
        self._around(trainer.strategy, "setup_environment", after=self.begin)
        self._around(trainer._signal_connector, "register_signal_handlers", after=self.states.take_signal)
        self._around(
            self.fit_loop, "load_state_dict", after=lambda: self._mark(restarting=self.state is not None)
        )
        self._around(self.fit_loop, "reset", before=self.place)
        self._around(self.fit_loop, "on_advance_start", before=self.restore)
        self._around(self.fit_loop, "on_advance_end", after=self.after_epoch)
        self._around(self.epoch_loop, "on_run_start", after=self.skip)
        self._around(self.epoch_loop, "on_advance_end", after=self.after_batch)
        connector = trainer._checkpoint_connector
        start = connector.resume_start

        def resume_start(*arguments: Any, **named: Any) -> None:
            if self.state is None:
                start(*arguments, **named)
                return
            unsafe = {"weights_only": False} if "weights_only" in inspect.signature(start).parameters else {}
            start(str(self.state / CHECKPOINT), **unsafe)
            loaded = connector._loaded_checkpoint
            loaded["callbacks"] = self._here(loaded.get("callbacks", {}))

        connector.resume_start = resume_start
        self._wrapped.append((connector, "resume_start"))

    def __exit__(self, *_: object) -> None:
        for holder, name in self._wrapped:
            vars(holder).pop(name, None)

    def _around(
        self,
        holder: Any,
        name: str,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        method = getattr(holder, name)

        @functools.wraps(method)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if before is not None:
                before()
            outcome = method(*arguments, **named)
            if after is not None:
                after()
            return outcome

        setattr(holder, name, wrapped)
        self._wrapped.append((holder, name))

    def begin(self) -> None:
        """Choose the state, once all processes are there; loggers continue in their folders."""
        self.state = self.states.newest()
        if self.state is None:
            return
        self.rest = load(self.state / REST.format(self.states.rank), None)
        for logger, saved in zip(self.trainer.loggers, self.rest["loggers"], strict=False):
            if saved is not None and hasattr(logger, "_version"):
                logger._version = saved["version"]
        warnings.filterwarnings("ignore", message=".*your dataloader is not resumable")

    def _mark(self, *, restarting: bool) -> None:
        loops = [self.fit_loop]
        for loop in loops:
            loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = restarting
            loops += [item for item in vars(loop).values() if hasattr(item, "_restarting")]

    def place(self) -> None:
        """Between two epochs nothing restarts: the next epoch begins as after any other."""
        if self.rest and not self.rest["is_mid_epoch"]:
            self._mark(restarting=False)

    def restore(self) -> None:
        """Restore what Lightning leaves out, before the first step or epoch."""
        rest, trainer, self.rest = self.rest, self.trainer, {}
        if not rest or self.state is None:
            return
        for callback, fields in zip(self._callbacks(), self._here(rest["callbacks"], rest), strict=False):
            restore_fields(callback, fields)
        restore_fields(self.model, rest["fields"])
        for item, (training, fields) in zip(self.model.modules(), rest["modules"], strict=False):
            item.training = training
            for name, value in fields.items():
                setattr(item, name, value)
        for parameter, (is_trained, gradient) in zip(
            self.model.parameters(), rest["parameters"], strict=False
        ):
            parameter.requires_grad = is_trained
            if gradient is not None:
                parameter.grad = gradient
        trainer.accumulate_grad_batches = rest["accumulate"]
        self.fit_loop._last_train_dl_reload_epoch = rest["reloaded"]
        self._restore_loggers(rest, self.state)
        connector = trainer._logger_connector
        for meta, should, rank_zero_only, values in rest["results"]:
            value = values["value"]
            self.epoch_loop._results.log(
                **meta,
                value=self.model.get_submodule(meta["metric_attribute"]) if value is None else value,
                sync_dist=should,
                sync_dist_fn=trainer.strategy.reduce,
                batch_size=1,
                rank_zero_only=rank_zero_only,
            )
            restore = {name: item for name, item in values.items() if name != "value" or item is not None}
            vars(self.epoch_loop._results[f"{meta['fx']}.{meta['name']}"]).update(restore)
        for name, value in rest["connector"].items():
            setattr(connector, name, value)
        if rest["is_mid_epoch"]:
            self._skip_from = rest
        else:
            _restore_randomness(self.fit_loop._combined_loader, rest["random"])

    def skip(self) -> None:
        """Begin the epoch with the samples that were not trained yet, in the order that it had."""
        rest, self._skip_from = self._skip_from, None
        if rest is None:
            return
        fetcher, loaders = self.fit_loop._data_fetcher, self.fit_loop._combined_loader
        number = self.epoch_loop.batch_progress.current.ready
        first = loaders.flattened[0]
        if not any(hasattr(loader, "load_state_dict") for loader in loaders.flattened):
            _restore_randomness(loaders, rest["order"][0])
            batches = getattr(first, "batch_sampler", None)
            is_skipping = batches is not None and fetcher.length is not None and len(loaders.flattened) == 1
            is_stream = isinstance(first.dataset, sys.modules["torch"].utils.data.IterableDataset)
            if is_skipping and not is_stream and type(fetcher).__name__ == "_PrefetchDataFetcher":
                first._iterator = None  # of workers that stay: theirs would begin at the first sample
                # Without workers the order is drawn with the first sample. With workers it is drawn with the
                # iterator, which draws their seed before, unless they stay.
                order = rest["order"][0 if first.num_workers else 1]
                is_drawn_alone = not first.num_workers or rest["order"][2]
                vars(first)["batch_sampler"] = _Skipping(
                    batches,
                    number,
                    lambda: _restore_randomness(loaders, order) if is_drawn_alone else None,
                    lambda: _restore_randomness(loaders, rest["random"]),
                )
                iter(fetcher)
                vars(first)["batch_sampler"] = batches
                fetcher.fetched += number
                fetcher.done = fetcher.length is not None and fetcher.fetched >= fetcher.length
            else:
                iter(fetcher)
                if not fetcher.fetched:
                    _restore_randomness(loaders, rest["order"][1])
                for _ in range(number):
                    next(fetcher)
                if rest["ahead"]:
                    fetcher.batches = rest["ahead"]
            fetcher.dlcloud_random = rest["order"]
        _restore_randomness(loaders, rest["random"])
        self._mark(restarting=False)

    def after_batch(self) -> None:
        loop = self.epoch_loop
        is_last = loop._is_training_done or self.trainer.should_stop
        if not is_last and not loop._should_accumulate():
            self._save(is_mid_epoch=True)

    def after_epoch(self) -> None:
        loop, trainer = self.fit_loop, self.trainer
        is_last = 0 <= loop.max_epochs <= loop.epoch_progress.current.processed
        if not (is_last or trainer.should_stop or 0 <= loop.max_steps <= loop.epoch_loop.global_step):
            self._save(is_mid_epoch=False)

    def _save(self, *, is_mid_epoch: bool) -> None:
        step = self.epoch_loop.total_batch_idx + 1
        if self.states.is_due(step):
            self.states.save(step, lambda folder: self._write(folder, is_mid_epoch=is_mid_epoch))

    def _write(self, folder: Path, *, is_mid_epoch: bool) -> None:
        trainer, model, connector = self.trainer, self.model, self.trainer._logger_connector
        loaders = self.fit_loop._combined_loader
        randomness = _randomness(loaders)
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        names = (
            "_first_loop_iter",
            "_current_fx",
            "_progress_bar_metrics",
            "_callback_metrics",
            "_logged_metrics",
        )
        is_manual = not model.automatic_optimization
        rest = {
            "cwd": str(Path.cwd()),
            "is_mid_epoch": is_mid_epoch,
            "random": randomness,
            "order": self.fit_loop._data_fetcher.dlcloud_random,
            "ahead": getattr(self.fit_loop._data_fetcher, "batches", None),
            "accumulate": trainer.accumulate_grad_batches,
            "reloaded": self.fit_loop._last_train_dl_reload_epoch,
            "callbacks": [self._fields(callback) for callback in self._callbacks()],
            "fields": {name: value for name, value in fields_of(model).items() if name not in self._own},
            "modules": [
                (item.training, {name: getattr(item, name) for name in (*item._defaults, *METRIC)})
                if is_torch_metric(item)
                else (item.training, {})
                for item in model.modules()
            ],
            "parameters": [
                (parameter.requires_grad, parameter.grad if is_manual else None)
                for parameter in model.parameters()
            ],
            "connector": {name: getattr(connector, name) for name in names},
            "results": [
                _result(result) for result in self.epoch_loop._results.values() if not result.has_reset
            ],
            "loggers": [_logger(logger) for logger in trainer.loggers],
            "files": self._files.keep(folder, self._written()) if trainer.is_global_zero else {},
        }
        restore_random(randomness[0])
        dump(folder / REST.format(self.states.rank), rest)
        if self.states.is_first:
            dump(folder / CHECKPOINT, checkpoint)

    def _callbacks(self) -> list[Any]:
        return [
            callback
            for callback in self.trainer.callbacks
            if not type(callback).__module__.startswith(("lightning.", "pytorch_lightning."))
            or type(callback).__name__ in WITH_FIELDS
        ]

    @staticmethod
    def _fields(callback: Any) -> dict[str, Any]:
        return {name: value for name, value in fields_of(callback).items() if name not in CLOCKS}

    def _written(self) -> list[Path]:
        """Return the files of loggers, and those that ModelCheckpoint keeps."""
        models: set[str] = set()
        for callback in self.trainer.checkpoint_callbacks:
            models |= set(getattr(callback, "best_k_models", {}))
            models |= {getattr(callback, name, "") for name in ("best_model_path", "last_model_path")}
        keepers = {str(getattr(callback, "dirpath", None)) for callback in self.trainer.checkpoint_callbacks}
        paths = [Path(name) for name in models if name]
        for logger in self.trainer.loggers:
            if _logger(logger) is not None:
                logger.save()
                paths += [path for path in Path(logger.log_dir).rglob("*") if str(path.parent) not in keepers]
        return paths

    def _restore_loggers(self, rest: dict[str, Any], state: Path) -> None:
        loggers = [
            (logger.experiment, saved["fields"])
            for logger, saved in zip(self.trainer.loggers, rest["loggers"], strict=False)
            if saved is not None
        ]
        self._files.restore(state, rest["files"])  # after the loggers have begun files of that name
        for experiment, fields in loggers:
            restore_fields(experiment, fields)

    def _here(self, value: Any, rest: dict[str, Any] | None = None) -> Any:
        """Return a saved value with the paths that it has in this working folder."""
        return _moved(value, (rest or self.rest)["cwd"], str(Path.cwd()))


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(old + os.sep) else value
    if isinstance(value, dict):
        return {_moved(key, old, new): _moved(item, old, new) for key, item in value.items()}
    if type(value) in {list, tuple, set}:
        return type(value)(_moved(item, old, new) for item in value)
    return value


def _result(result: Any) -> tuple[Any, ...]:
    """Return what was logged under one name, as `restore` takes it."""
    meta = result.meta
    names: Iterable[str] = (
        "fx",
        "name",
        "prog_bar",
        "logger",
        "on_step",
        "on_epoch",
        "reduce_fx",
        "enable_graph",
    )
    names = (*names, "add_dataloader_idx", "metric_attribute")
    values = {name: vars(result)[name] for name in RESULT if name in vars(result)}
    if not result.is_tensor:
        values["value"] = None  # a metric of the module
    described = {name: getattr(meta, name) for name in names}
    return described, meta.sync._should, meta.sync.rank_zero_only, values


def _logger(logger: Any) -> dict[str, Any] | None:
    """Return what continues a logger that writes into a folder; None for one that writes elsewhere."""
    folder = getattr(logger, "log_dir", None)
    if not folder or not Path(folder).is_dir():
        return None
    names = ("metrics", "metrics_keys")  # of CSVLogger
    fields = fields_of(logger.experiment) if hasattr(logger.experiment, "__dict__") else {}
    return {
        "version": logger.version,
        "fields": {name: value for name, value in fields.items() if name in names},
    }
