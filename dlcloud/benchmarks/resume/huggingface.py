"""Hugging Face's Trainer: saved by its own checkpoints, and resumed by its own `resume_from_checkpoint`.

What Trainer itself does not continue is saved next to its checkpoint: the loss since the last log, the random
numbers at the start of the epoch, and the counters of callbacks, such as EarlyStoppingCallback's patience.
A state is saved where Trainer saves one, after the logs and the evaluation of a step.
"""

import copy
import functools
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .states import (
    NOT_RESUMED,
    States,
    dump,
    fields_of,
    link,
    load,
    plain_settings,
    random_state,
    restore_fields,
    restore_random,
    say,
)

NEEDED = ("_maybe_log_save_evaluate", "_save_checkpoint", "_get_output_dir", "_finalize_training")
REST = "dlcloud-rest-{}.pt"
BEST = "best"
EPSILON = 1e-9
IGNORED = frozenset(
    {
        "output_dir",
        "logging_dir",
        "run_name",
        "local_rank",
        "resume_from_checkpoint",
        "push_to_hub_token",
        "hub_token",
    }
)
"""Arguments that do not decide the result, or name this run."""


def patch(module: ModuleType) -> None:
    """Have every Trainer of this process resume."""
    trainer: Any = module.Trainer
    missing = [name for name in NEEDED if not hasattr(trainer, name)]
    if missing:
        raise AttributeError(f"this version of Trainer has no {missing[0]}")
    train, log_save_evaluate, output_dir = (
        trainer.train,
        trainer._maybe_log_save_evaluate,
        trainer._get_output_dir,
    )
    finalize = trainer._finalize_training

    @functools.wraps(train)
    def resuming_train(self: Any, resume_from_checkpoint: Any = None, trial: Any = None, **named: Any) -> Any:
        if reason := _unsupported(self, trial):
            say(NOT_RESUMED.format(reason))
            return train(self, resume_from_checkpoint, trial, **named)
        import transformers  # noqa: PLC0415 - imported by the program

        settings = {key: value for key, value in self.args.to_dict().items() if key not in IGNORED}
        states = States(
            "transformers",
            version=transformers.__version__,
            settings={**settings, **_model_settings(self)},
            world=self.args.world_size,
            rank=self.args.process_index,
        )
        with states:
            self._dlcloud = run = _Run(self, states, states.newest())
            self.add_callback(run.callback())
            if run.checkpoint is not None:
                resume_from_checkpoint = str(run.checkpoint)
            try:
                outcome = train(self, resume_from_checkpoint, trial, **named)
            finally:
                self.remove_callback(_CALLBACKS[0])
                self._dlcloud = None
            states.finish()
        return outcome

    @functools.wraps(log_save_evaluate)
    def saving(self: Any, *arguments: Any, **named: Any) -> Any:
        outcome = log_save_evaluate(self, *arguments, **named)
        if (run := getattr(self, "_dlcloud", None)) is not None:
            run.after_step()
        return outcome

    @functools.wraps(output_dir)
    def redirected(self: Any, *arguments: Any, **named: Any) -> Any:
        run = getattr(self, "_dlcloud", None)
        return output_dir(self, *arguments, **named) if run is None or run.target is None else str(run.target)

    @functools.wraps(finalize)
    def finalizing(self: Any, trial: Any, samples: Any, began: float) -> Any:
        run = getattr(self, "_dlcloud", None)
        return finalize(self, trial, samples, began - (0.0 if run is None else run.earlier_s))

    trainer.train, trainer._maybe_log_save_evaluate, trainer._get_output_dir = (
        resuming_train,
        saving,
        redirected,
    )
    trainer._finalize_training = finalizing


def _unsupported(trainer: Any, trial: Any) -> str:
    if trial is not None:
        return "Trainer.hyperparameter_search"
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "Trainer with DeepSpeed or FSDP"
    if trainer.args.auto_find_batch_size:
        return "Trainer with auto_find_batch_size"
    return ""


def _model_settings(trainer: Any) -> dict[str, Any]:
    size = len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None
    config: Any = getattr(trainer.model, "config", None)
    model = config.to_dict() if hasattr(config, "to_dict") else {}
    return {
        "model": type(trainer.model).__qualname__,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "samples": size,
        **{
            f"model.{key}": plain_settings(value)
            for key, value in model.items()
            if key != "transformers_version"
        },
    }


_CALLBACKS: list[Any] = []


class _Run:
    """One call of `train`: what is restored into it, and when it saves."""

    def __init__(self, trainer: Any, states: States, state: Path | None) -> None:
        self.trainer, self.states = trainer, states
        self.target: Path | None = None  # where Trainer writes its checkpoint while one is saved here
        self.checkpoint: Path | None = None
        self.epoch_random = random_state()
        self.earlier_s, self._began = 0.0, time.time()  # of the runs before
        self._last_step, self._is_mid_epoch = -1, False
        self._rest: Mapping[str, Any] | None = None
        if state is not None:
            self.checkpoint = next(state.glob("checkpoint-*"))
            self._rest = load(state / REST.format(trainer.args.process_index))
            best = self._rest["best"][0]
            if best and (state / BEST).is_dir() and not Path(best).is_dir() and trainer.args.should_save:
                shutil.copytree(state / BEST, best)

    def callback(self) -> type:
        """Return the class of the callback that restores what Trainer leaves out."""
        from transformers import TrainerCallback  # noqa: PLC0415 - imported by the program

        run = self

        class DlcloudResume(TrainerCallback):  # type: ignore[misc, unused-ignore]
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
                run.restore()

            def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
                run.begin_epoch()

        _CALLBACKS[:] = [DlcloudResume]
        return DlcloudResume

    def restore(self) -> None:
        rest, trainer = self._rest, self.trainer
        if rest is None:
            return
        self.earlier_s, self._began = rest["seconds"], time.time()
        trainer._tr_loss = rest["loss"].to(trainer.args.device)
        trainer._total_loss_scalar = rest["total_loss"]
        trainer._globalstep_last_logged = rest["last_logged"]
        trainer._initial_global_step = 0
        trainer.state.best_model_checkpoint, trainer.state.best_global_step = rest["best"]
        for callback, fields in zip(self._callbacks(), rest["callbacks"], strict=False):
            restore_fields(callback, fields)

    def begin_epoch(self) -> None:
        """Draw the order of the samples as it was drawn when the epoch began."""
        if self._rest is not None:
            if self._rest["is_mid_epoch"]:
                restore_random(self._rest["epoch_random"])
            else:
                restore_random(self._rest["random"])
            self._rest = None
        self.epoch_random = random_state()

    def after_step(self) -> None:
        """Save if it is due; at the last step of an epoch only after what Trainer does at its end."""
        trainer, state = self.trainer, self.trainer.state
        is_epoch_end, self._last_step = state.global_step == self._last_step, state.global_step
        is_last = abs(state.epoch - round(state.epoch)) < EPSILON
        if trainer.control.should_training_stop or state.global_step >= state.max_steps:
            return  # a Trainer that resumes there would train a step too many
        if is_last == is_epoch_end and self.states.is_due(state.global_step):
            self._is_mid_epoch = not is_last
            self.states.save(state.global_step, self._write)

    def _write(self, folder: Path) -> None:
        trainer, state, arguments = self.trainer, self.trainer.state, self.trainer.args
        best, best_step = state.best_model_checkpoint, state.best_global_step
        callbacks = copy.deepcopy(state.stateful_callbacks)
        changed = {"push_to_hub": False, "save_only_model": False, "save_on_each_node": True}
        before = {name: getattr(arguments, name) for name in changed}
        rest = {
            "seconds": self.earlier_s + time.time() - self._began,
            "loss": trainer._tr_loss.detach().cpu(),
            "total_loss": trainer._total_loss_scalar,
            "last_logged": trainer._globalstep_last_logged,
            "best": (best, best_step),
            "callbacks": [fields_of(callback) for callback in self._callbacks()],
            "is_mid_epoch": self._is_mid_epoch,
            "epoch_random": self.epoch_random,
            "random": random_state(),
        }
        try:
            self.target, state.best_global_step = folder, None
            vars(arguments).update(changed)
            trainer._save_checkpoint(trainer.model, trial=None)
        finally:
            self.target = None
            vars(arguments).update(before)
            state.best_model_checkpoint, state.best_global_step = best, best_step
            state.stateful_callbacks = callbacks
        dump(folder / REST.format(arguments.process_index), rest)
        if best and Path(best).is_dir() and arguments.should_save:
            shutil.copytree(best, folder / BEST, copy_function=link)

    def _callbacks(self) -> list[Any]:
        """Return the callbacks whose counters Trainer does not restore: the script's, and early stopping."""
        return [
            callback
            for callback in self.trainer.callback_handler.callbacks
            if not type(callback).__module__.startswith(("transformers.", "dlcloud"))
            or type(callback).__name__ == "EarlyStoppingCallback"
        ]
