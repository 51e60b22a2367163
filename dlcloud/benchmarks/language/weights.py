"""Write a network once, in Hugging Face's format, in bf16; runs inside workers.

Weights are random, of the small text network trained, of the hub's models downloaded. A tokenizer of single
bytes lies next to random weights, so that servers take and return text.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ..harness.case import UntimedWorkload
from ..harness.preparation import ModelCache, size_of
from .networks import ENCODERS, HELD_OUT_FILE, HUB, NETWORKS, TEXT, read_configuration, read_text, title_of

REVISION = 1
"""Of what is written; raised when the same name gives other weights."""

TRAINED_STEPS, TRAINED_BATCH, TRAINED_LENGTH = 150, 8, 128


def build(*, network: str, seed: int, cache: str) -> UntimedWorkload:
    """Make sure that a network's folder is there.

    Facts: folder; parameters; weights: random, trained or downloaded; encoder: bool.
    """
    folder = _folder_of(network, seed, ModelCache(Path(cache).expanduser()))
    configuration = read_configuration(folder)
    facts = {
        "folder": str(folder),
        "model_bytes": size_of(folder),
        "weights": _origin(network),
        "encoder": configuration.get("model_type") in ENCODERS,
    }
    return UntimedWorkload(facts=facts)


def _origin(network: str) -> str:
    if network not in NETWORKS:
        return "given"
    return "trained on Python's help" if network == TEXT else "random"


def _folder_of(network: str, seed: int, cache: ModelCache) -> Path:
    if network.startswith(HUB):
        name = network.removeprefix(HUB)
        return cache.get(f"hub-{name.replace('/', '--')}", lambda target: _download(name, target))
    if network not in NETWORKS:
        return Path(network)
    name = f"{title_of(network)}-seed{seed}-r{REVISION}"
    return cache.get(name, lambda target: _write(network, seed, target))


def _download(name: str, target: Path) -> None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only where a hub is reached

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
    # HF_TOKEN is a secret of the recipe; without it, public models can be had.
    token = os.environ.get("HF_TOKEN")
    snapshot_download(name, local_dir=target, allow_patterns=patterns, token=token)


def _write(network: str, seed: int, target: Path) -> None:
    torch.manual_seed(seed)
    chosen = NETWORKS[network]
    configuration = transformers.AutoConfig.for_model(chosen.family, **chosen.values)
    target.mkdir()
    model = make_model(configuration, torch.float32 if network == TEXT else torch.bfloat16)
    if network == TEXT:
        held_out = _train(model, seed)
        (target / HELD_OUT_FILE).write_text(json.dumps(held_out), encoding="utf-8")
    model.to(torch.bfloat16).save_pretrained(target)
    _byte_tokenizer(configuration.vocab_size).save_pretrained(target)


def make_model(configuration: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401 - transformers' own
    """Make a network with random weights, of an encoder without a head."""
    maker = (
        transformers.AutoModel if configuration.model_type in ENCODERS else transformers.AutoModelForCausalLM
    )
    return maker.from_config(configuration, dtype=dtype)


def _train(model: Any, seed: int) -> list[int]:  # noqa: ANN401 - transformers' own
    """Train on the text and return the tokens held out; a byte that printable text lacks stays unused."""
    training, held_out = (list(part) for part in read_text())
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(TRAINED_STEPS):
        starts = torch.randint(len(training) - TRAINED_LENGTH, (TRAINED_BATCH,), generator=generator)
        batch = torch.tensor([training[start : start + TRAINED_LENGTH] for start in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return held_out


def _byte_tokenizer(vocabulary: int) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of one token a byte; the last token ends a text."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    others = {f"<{number}>": number for number in range(len(letters), vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab={**letters, **others}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    last = f"<{vocabulary - 1}>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=last, pad_token=last)
