"""Count the operations and bytes of prompts and generation from the shapes of a network's weights.

It imports no engine; the peak beside them is PyTorch's, which is installed beside each engine.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..harness.roofline import Work
from .networks import is_encoder

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
        """Return the work of a generated token after so many others: a step reads the weights once."""
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
