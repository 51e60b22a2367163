"""Train a network, whole or by LoRA, on random tokens; runs inside workers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from ..harness import torch_roofline
from ..harness.roofline import Peak, Work
from .networks import is_encoder, read_configuration
from .settings import CHECKPOINTING, COMPILE, LORA, LanguageTraining

LORA_RANK = 16
LORA_LAYERS = "all-linear"
"""Every linear layer but the last. Source: PEFT's documentation, "QLoRA-style training"."""

LEARNING_RATE = 1e-4


@dataclass(slots=True, kw_only=True)
class LanguageTrainingSteps:
    """Steps on one batch that stays in memory: training is timed, not reading."""

    model: Any
    loss: Any
    optimizer: torch.optim.Optimizer
    tokens: torch.Tensor
    items_per_step: int
    precision: str
    facts: Mapping[str, Any]

    def measure_peak(self, seconds: float) -> Peak:
        return torch_roofline.measure_peak(self.precision, device=self.tokens.device.type, seconds=seconds)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.tokens).backward()
        self.optimizer.step()
        if self.tokens.is_cuda:
            torch.cuda.synchronize()

    def outputs(self) -> list[list[float]]:
        return []


def train(
    *, folder: str, setting: str, batch: int, length: int, threads: int, seed: int, device: str
) -> LanguageTrainingSteps:
    """Prepare a network; its first step, with all compilation, is done.

    The work in its facts is that of forward and backward, without what checkpointing computes again.

    `folder` is of the model in Hugging Face's format, `batch` counts sequences of `length` tokens.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    chosen = LanguageTraining.parse(setting)
    configuration = read_configuration(Path(folder))
    if is_encoder(configuration):
        raise ValueError("training is of networks that predict the next token")
    model = make_trained(folder, chosen).to(device)
    tokens = torch.randint(configuration["vocab_size"], (batch, length)).to(device)
    trained = [value for value in model.parameters() if value.requires_grad]
    steps = LanguageTrainingSteps(
        model=model,
        loss=_loss_of(model, chosen, device),
        optimizer=torch.optim.AdamW(trained, lr=LEARNING_RATE),
        tokens=tokens,
        items_per_step=batch * length,
        precision=chosen.precision,
        facts={},
    )
    operations = _count_operations(model, tokens, chosen)
    began = time.perf_counter()
    steps.step()
    steps.facts = {
        "engine": f"PyTorch {torch.__version__}",
        "device": device,
        "threads": torch.get_num_threads(),
        "parameters": sum(value.numel() for value in model.parameters()),
        "parameters_trained": sum(value.numel() for value in trained),
        **Work(flop=operations / steps.items_per_step).facts(),
        "first_step_s": round(time.perf_counter() - began, 3),
        "optimizer": "adamw",
    }
    return steps


def make_trained(folder: str, setting: LanguageTraining) -> Any:  # noqa: ANN401 - transformers' own
    """Load a network to train, in fp32; bf16 is by autocast. With LoRA its own weights stand still."""
    frozen = LORA in setting.optimizations
    # Weights that are not updated need no fp32.
    dtype = torch.bfloat16 if frozen and setting.precision == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.config.use_cache = False
    if frozen:
        from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]  # noqa: PLC0415

        adapters = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=LORA_LAYERS)
        model = get_peft_model(model, adapters)
    if CHECKPOINTING in setting.optimizations:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model


def _loss_of(model: Any, setting: LanguageTraining, device: str) -> Any:  # noqa: ANN401 - as above
    def compute(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=setting.precision == "bf16"):
            loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return torch.compile(compute) if COMPILE in setting.optimizations else compute


def _count_operations(model: Any, tokens: torch.Tensor, setting: LanguageTraining) -> float:  # noqa: ANN401
    """Count the FLOP of a step, 2 for each multiply-add; what checkpointing computes again is left out.

    Two short sequences are counted and scaled: the parts grow with the length, or with its square.
    """
    counts: list[float] = []
    lengths = [min(32, tokens.shape[1]), min(64, tokens.shape[1])]
    if CHECKPOINTING in setting.optimizations:
        model.gradient_checkpointing_disable()
    for length in lengths:
        with FlopCounterMode(display=False) as counter:
            model(input_ids=tokens[:1, :length], labels=tokens[:1, :length]).loss.backward()
        counts.append(counter.get_total_flops())
    model.zero_grad(set_to_none=True)
    if CHECKPOINTING in setting.optimizations:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    (short, long), (first, second) = lengths, counts
    if short == long:
        return float(first * tokens.shape[0])
    square: float = (second - first * long / short) / (long**2 - short * long)
    linear = first / short - square * short
    length = tokens.shape[1]
    return float(tokens.shape[0] * (linear * length + square * length**2))
