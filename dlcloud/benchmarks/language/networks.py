"""Networks by their published configurations, as `transformers` names the values; imports no framework."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT = "text"
"""The small network that is trained here, on a text; others have random weights."""

HUB = "hub:"
"""How a model of Hugging Face's hub is named: `hub:Qwen/Qwen2.5-0.5B`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageNetwork:
    """A network's configuration."""

    family: str  # `model_type` of transformers
    values: Mapping[str, Any] = field(default_factory=dict)  # what differs from the family's defaults
    source: str = ""


def _llama(**values: Any) -> LanguageNetwork:  # noqa: ANN401 - values of a configuration
    return LanguageNetwork(family="llama", values={"hidden_act": "silu", **values})


# Source: config.json of each model's repository on huggingface.co, November 2026. Llama 3.2's scaling of
# positions beyond 8,192 is left out: it changes neither operations nor bytes.
NETWORKS: Mapping[str, LanguageNetwork] = {
    "gpt2": LanguageNetwork(family="gpt2", source="openai-community/gpt2"),
    "qwen2.5-0.5b": LanguageNetwork(
        family="qwen2",
        source="Qwen/Qwen2.5-0.5B",
        values={
            "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
            "num_attention_heads": 14, "num_key_value_heads": 2, "rope_theta": 1_000_000.0,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "max_position_embeddings": 32768,
        },
    ),
    "llama-3.2-1b": _llama(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, rope_theta=500_000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, max_position_embeddings=131072,
    ),
    "llama-3-8b": _llama(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, rope_theta=500_000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=False, max_position_embeddings=8192,
    ),
    "olmoe-1b-7b": LanguageNetwork(
        family="olmoe",
        source="allenai/OLMoE-1B-7B-0924",
        values={
            "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
            "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
            "num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "max_position_embeddings": 4096,
        },
    ),
    "bert-large": LanguageNetwork(
        family="bert",
        source="google-bert/bert-large-uncased",
        values={
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
    ),
    "tiny": _llama(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=1024,
    ),
    TEXT: _llama(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=1024,
    ),
}  # fmt: skip

ENCODERS = frozenset({"bert"})
"""Families that read a whole text at once and generate none."""


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return `config.json` of a model's folder; ValueError if it is none."""
    try:
        configuration: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no model in Hugging Face's format: {error}") from None
    return configuration


def is_encoder(configuration: Mapping[str, Any]) -> bool:
    return configuration.get("model_type") in ENCODERS


def title_of(network: str) -> str:
    """Return how cases call a network, a folder, or a model of the hub."""
    return network if network in NETWORKS else Path(network.removeprefix(HUB)).name
