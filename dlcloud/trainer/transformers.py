"""Hugging Face's Trainer on the elastic engine: one lost worker costs no restart.

    from dlcloud.trainer.transformers import ElasticTrainer

    trainer = ElasticTrainer(model=model, args=arguments, train_dataset=dataset, callbacks=[...])
    trainer.train()
    trainer.save_model()  # written by one worker only

A drop-in subclass: `TrainingArguments`, callbacks, evaluation, logging, schedulers, gradient accumulation and
bf16 are Trainer's own. What this module replaces is the loop between them (`_inner_training_loop`): the
engine takes the steps, and for each it calls Trainer's `training_step`, clipping and bookkeeping.

The batch of a step is that of the plain Trainer in one process, `per_device_train_batch_size` times
`gradient_accumulation_steps`, in Trainer's own order; it is divided among the workers of the step. So losses
are those of the plain Trainer: to the bit with one worker on CPU, within rounding with any number of them.
Dropout draws other numbers with several workers, and random numbers that a data set or a collator draws are
other ones.

The checkpoints of the engine resume the run, in place of Trainer's own: `save_strategy` writes none. Every
worker evaluates, because the others would wait for one that does. What is not supported is refused by name,
before the first step. Written against transformers 5.24: it overrides private methods.
"""

import logging
import time
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, Trainer

from .batches import Microbatch, WorkerStep
from .job import WorkerJob
from .sampler import share
from .settings import from_environment
from .training import run

log = logging.getLogger(__name__)


class ElasticTrainer(Trainer):  # type: ignore[misc]  # not there where types are checked
    """Trainer whose workers may join, leave and die at any step; see the module.

    Raises:
        NotImplementedError: From `train`: an argument, a callback or a data set that is not supported.
    """

    _is_first = True
    control: Any  # TrainerControl

    def is_world_process_zero(self) -> bool:
        return self._is_first

    is_local_process_zero = is_world_process_zero

    def save_model(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  Trainer's
        """Save the model, on one worker only."""
        if self._is_first:
            super().save_model(*arguments, **named)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,  # noqa: ARG002  Trainer's
        args: Any = None,  # noqa: ANN401
        resume_from_checkpoint: str | None = None,
        trial: Any = None,  # noqa: ANN401
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:  # noqa: ANN401  TrainOutput
        args = self.args
        self._refuse_unsupported(resume_from_checkpoint, trial)
        self.accelerator.free_memory()
        loader = self.get_train_dataloader()
        epochs, self._epoch_steps, _, num_samples, _, self._epoch_batches, steps = (
            self.set_initial_training_values(args, loader)
        )
        self._init_training_state(steps, self._epoch_steps, epochs, None, None)
        self._model, self._loader = self._prepare_for_training(steps, loader, None)
        self._refuse_scheduler()
        self._started_at, self._ignored = time.time(), ignore_keys_for_eval
        self._initial_num_input_tokens_seen = self._initial_global_step = self._globalstep_last_logged = 0
        self._tr_loss, self._total_loss_scalar = torch.tensor(0.0, device=args.device), 0.0
        self._parts: list[Tensor] = []  # of the losses of this worker's microbatches in the present step
        self._grad_norm: Any = None
        self._rate, self._items = 0.0, (-1, None)
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        if args.eval_on_start:
            self._evaluate(None, ignore_keys_for_eval, skip_scheduler=True)
        self.control = self.callback_handler.on_epoch_begin(args, self.state, self.control)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]  # the engine multiplies it by the scheduler's factor of a step
        job = WorkerJob(
            model=self._model,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            dataset=loader.dataset,
            loss=lambda *_: torch.empty(0),
            batch=min(self._batch_size, len(loader.dataset)),
            micro_batch=args.per_device_train_batch_size,
            steps=steps,
            seed=args.seed if args.data_seed is None else args.data_seed,
            schedule=self.lr_scheduler.lr_lambdas[0],
            before_step=self._before_step,
            loading=args.dataloader_num_workers,
            collate=loader.collate_fn,
            order=self._order,
            backward=self._backward,
            after_commit=self._after_commit,
        )
        outcome = run(job, from_environment())
        self._is_first = outcome.first
        return self._finalize_training(None, num_samples, self._started_at)

    @property
    def _batch_size(self) -> int:
        return int(self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps)

    def _order(self, epoch: int) -> list[int]:
        """Return the samples of an epoch, as Trainer's own loader takes them."""
        for holder in (self._loader, getattr(self._loader.batch_sampler, "batch_sampler", None)):
            set_epoch = getattr(holder, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        return [sample for batch in self._loader.batch_sampler for sample in batch]

    def _backward(
        self,
        place: WorkerStep,
        microbatch: Microbatch,
        batch: Any,  # noqa: ANN401  what the collator makes
        samples: int,
    ) -> Tensor:
        """Backpropagate a microbatch as the plain Trainer does, and return its part of the step's loss."""
        args, size, count = self.args, self.args.per_device_train_batch_size, len(microbatch.samples)
        self._follow(place.step)
        if microbatch.start == share(samples, place.rank, place.size).start:
            self._parts = []  # a step that was rolled back is taken again
            if place.size == 1 and place.step % self._epoch_steps == 0:
                # PyTorch's DataLoader draws a number at the start of an epoch, before dropout does.
                torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
            self.control = self.callback_handler.on_step_begin(args, self.state, self.control)
        # The plain Trainer's own batch, of which this is all or, with other workers, a part.
        first = microbatch.start // size * size
        whole = min(size, samples - first)
        batches = -(-samples // size)
        self.current_gradient_accumulation_steps = batches if count == whole else batches * whole / count
        items = self._count_items(place.step, batch if count == samples else None)
        part: Tensor = self.training_step(self._model, batch, items)
        self._parts.append(part)
        self.current_flos += float(self.floating_point_ops(batch))
        return part

    def _count_items(self, step: int, batch: Any) -> Any:  # noqa: ANN401
        """Return the items of a step's whole batch, if the loss is a mean over items; None if not."""
        if not (self.model_accepts_loss_kwargs or self.compute_loss_func is not None):
            return None
        if self._items[0] != step:
            batches = [batch] if batch is not None else self._load(step)
            self._items = step, self._get_num_items_in_batch(batches, self.args.device)
        return self._items[1]

    def _load(self, step: int) -> list[Any]:
        """Load the whole batch of a step, for its labels alone: a worker has only its share of them."""
        epoch, number = divmod(step, self._epoch_steps)
        size, order = self.args.per_device_train_batch_size, self._order(epoch)
        batch = order[number * self._batch_size : (number + 1) * self._batch_size]
        pieces = [batch[start : start + size] for start in range(0, len(batch), size)]
        dataset, state = self._loader.dataset, torch.get_rng_state()
        batches = [self._loader.collate_fn([dataset[sample] for sample in piece]) for piece in pieces]
        torch.set_rng_state(state)
        return batches

    def _before_step(self) -> None:
        """Clip, between the sum of the gradients and the step of the optimizer."""
        args, norm = self.args, None
        if args.max_grad_norm > 0:
            norm = self._clip_grad_norm(self._model)
        self._grad_norm = self._get_grad_norm(self._model, grad_norm=norm)
        self._rate = self._get_learning_rate()
        self.control = self.callback_handler.on_pre_optimizer_step(args, self.state, self.control)

    def _after_commit(self, place: WorkerStep, loss: float) -> None:
        """Count, log and evaluate a committed step."""
        args, state, step = self.args, self.state, place.step + 1
        self._follow(place.step)
        self._is_first = state.is_world_process_zero = state.is_local_process_zero = place.rank == 0
        self.control = self.callback_handler.on_optimizer_step(args, state, self.control)
        own, self._parts = self._parts, []
        for part in own if place.size == 1 else [torch.tensor(loss, device=args.device)]:
            if args.logging_nan_inf_filter and not torch.isfinite(part):
                self._tr_loss += self._tr_loss / (1 + state.global_step - self._globalstep_last_logged)
            else:
                self._tr_loss += part
        state.global_step = step
        epoch, number = divmod(place.step, self._epoch_steps)
        batches = min((number + 1) * args.gradient_accumulation_steps, self._epoch_batches)
        state.epoch = epoch + batches / self._epoch_batches
        self._set_scheduler(step)
        self.control = self.callback_handler.on_step_end(args, state, self.control)
        self._report(epoch)
        if number + 1 == self._epoch_steps or step == state.max_steps:
            self.control = self.callback_handler.on_epoch_end(args, state, self.control)
            self._report(epoch)
            if step < state.max_steps:
                self.control = self.callback_handler.on_epoch_begin(args, state, self.control)

    def _report(self, epoch: int) -> None:
        self.control.should_save = False  # the engine's checkpoints resume the run
        self._maybe_log_save_evaluate(
            self._tr_loss,
            self._grad_norm,
            self._model,
            None,
            epoch,
            self._ignored,
            self._started_at,
            learning_rate=self._rate,
        )
        stops = self.control.should_training_stop or self.control.should_epoch_stop
        if stops and self.state.global_step < self.state.max_steps:
            raise NotImplementedError(
                "ElasticTrainer: a callback ends the training early, on this worker only"
            )

    def _follow(self, step: int) -> None:
        """Take over the count of steps from a peer or a checkpoint that this worker continues from."""
        if step != self.state.global_step:
            self.state.global_step = self._globalstep_last_logged = step
            if not self._total_loss_scalar:
                self._initial_global_step = step
            self._tr_loss -= self._tr_loss
            self._set_scheduler(step)

    def _set_scheduler(self, step: int) -> None:
        """Let the scheduler say what it would after this many steps; the engine sets the rates themselves."""
        scheduler = self.lr_scheduler
        scheduler.last_epoch = step
        factors = [factor(step) for factor in scheduler.lr_lambdas]
        scheduler._last_lr = [rate * factor for rate, factor in zip(scheduler.base_lrs, factors, strict=True)]  # noqa: SLF001

    def _get_learning_rate(self) -> float:
        """Return the rate of the step that is being taken."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _refuse_unsupported(self, resume_from_checkpoint: str | None, trial: object) -> None:
        args, dataset = self.args, self.train_dataset
        refused = {
            "resume_from_checkpoint: the engine's own checkpoints resume": resume_from_checkpoint,
            "hyperparameter_search": trial is not None,
            "fp16: use bf16": args.fp16,
            "deepspeed": getattr(args, "deepspeed", None),
            "fsdp": args.fsdp,
            "parallelism_config": getattr(args, "parallelism_config", None),
            "several processes by torchrun or accelerate: dlcloud starts the workers": args.world_size > 1,
            "several GPUs in one process: set CUDA_VISIBLE_DEVICES": args.n_gpu > 1,
            "load_best_model_at_end": args.load_best_model_at_end,
            "auto_find_batch_size": args.auto_find_batch_size,
            "train_sampling_strategy: use random or sequential": (
                getattr(args, "train_sampling_strategy", "random") not in {"random", "sequential"}
            ),
            "include_num_input_tokens_seen": args.include_num_input_tokens_seen not in {"no", False},
            "an iterable data set: it has no length": not hasattr(dataset, "__len__"),
            "neftune_noise_alpha": self.neftune_noise_alpha,
            "EarlyStoppingCallback: it would stop one worker, not all": any(
                isinstance(one, EarlyStoppingCallback) for one in self.callback_handler.callbacks
            ),
            f"optim={args.optim}: it steps within the backward pass": "layerwise" in args.optim
            or "lomo" in args.optim,
        }
        names = [name for name, is_given in refused.items() if is_given]
        if names:
            raise NotImplementedError(f"ElasticTrainer does not support {'; '.join(names)}")
        if args.save_strategy != "no":
            log.warning("ElasticTrainer writes no Trainer checkpoints: the engine's own resume the run")

    def _refuse_scheduler(self) -> None:
        """Refuse a scheduler whose rate is not a function of the step alone.

        Raises:
            NotImplementedError: It is one.
        """
        lambdas = getattr(self.lr_scheduler, "lr_lambdas", [])
        # Schedules of Trainer give all groups one function.
        if not isinstance(self.lr_scheduler, LambdaLR) or any(one is not lambdas[0] for one in lambdas):
            name = type(self.lr_scheduler).__name__
            raise NotImplementedError(f"ElasticTrainer does not support the scheduler {name}: use a LambdaLR")
