"""The language networks: their configurations, the work of their tokens, and the text a small one learns.

It imports no engine. Operations and bytes of prompts and generation are counted from the shapes of a
network's weights; the peak that they are compared with is PyTorch's, which is installed next to each engine.
The text is Python's own help, which every Python carries.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Any

from ..harness.roofline import Work

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
"""Families that read a whole text in one piece and generate none."""


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


HELD_OUT_FILE = "held_out.json"
"""Next to a trained network: the tokens that it was not trained on."""

HELD_OUT_SHARE = 0.1


def read_text() -> tuple[bytes, bytes]:
    """Return the text to train on and the text to judge by; a byte is a token."""
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    border = round(len(text) * (1 - HELD_OUT_SHARE))
    return text[:border], text[border:]


_LENGTH = struct.Struct("<Q")
_TABLES = ("embed", "wte", "wpe")
"""Parts of the names of tables of which a row a token is read: embeddings of tokens and of positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSize:
    """The weights of a network, in numbers; `layers` and `head` are those that a token is multiplied by."""

    stored: int  # all that are in its files; an output layer that shares the embeddings counts once
    layers: float  # of a mixture of experts, those of the experts that a token is sent to
    head: int  # the output layer; 0 of a network without one
    attention: int  # width of the attention, summed over the layers

    @classmethod
    def of(cls, folder: Path, configuration: Mapping[str, Any]) -> "NetworkSize":
        """Read the size of a network in Hugging Face's format.

        Raises:
            OSError, ValueError: The files cannot be read.
        """
        experts = configuration.get("num_experts") or configuration.get("num_local_experts") or 1
        share = configuration.get("num_experts_per_tok", 1) / experts
        stored, layers, head, embeddings = 0, 0.0, 0, 0
        for name, shape in _shapes(folder):
            count = math.prod(shape)
            stored += count
            if "lm_head" in name:
                head = count
            elif any(part in name for part in _TABLES):
                embeddings = max(embeddings, count)
            elif len(shape) > 1:
                layers += count * (share if ".experts." in name else 1.0)
        width = configuration.get("hidden_size") or configuration["n_embd"]
        heads = configuration.get("num_attention_heads") or configuration["n_head"]
        depth = configuration.get("num_hidden_layers") or configuration["n_layer"]
        return cls(
            stored=stored,
            layers=layers,
            head=0 if is_encoder(configuration) else head or embeddings,
            attention=depth * heads * (configuration.get("head_dim") or width // heads),
        )

    def reading(self, prompt: int, streams: int, model_bytes: float) -> Work:
        """Return the work of a token of a prompt: logits are of its last token alone."""
        flop = 2 * self.layers + (2 * self.head) / prompt + 4 * self.attention * prompt
        return Work(flop=flop, bytes=model_bytes / (prompt * streams))

    def generating(self, context: float, streams: int, model_bytes: float) -> Work:
        """Return the work of a generated token after a number of others: a step reads the weights once."""
        flop = 2 * (self.layers + self.head) + 4 * self.attention * context
        share = min(1.0, (self.layers + self.head) / self.stored)
        return Work(flop=flop, bytes=model_bytes * share / streams)


def _shapes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the names and shapes in a folder's safetensors files, whose header is JSON after its length."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            header = json.loads(file.read(length))
        yield from ((name, entry["shape"]) for name, entry in header.items() if name != "__metadata__")
