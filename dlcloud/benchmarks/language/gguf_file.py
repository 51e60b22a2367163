"""Write a model of Hugging Face's format as GGUF, in bf16; runs inside workers.

Tensor names are those of the `gguf` package. What differs between the two formats: llama's rotary halves are
interleaved, GPT-2 stores its layers transposed, and the experts of a layer are one tensor.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found]  # only in the benchmark's own environment
import numpy as np
import torch
from safetensors import safe_open  # type: ignore[import-not-found]  # as above

from .networks import read_configuration

ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
}
"""By transformers' family; llama.cpp reads more, which are not written here."""

EXPERT = re.compile(r"(.*\.experts)\.(\d+)(\..*)")
_GPT2_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def write(folder: Path, target: Path) -> None:
    """Write the model in `folder` to the file `target`; ValueError if its family is not known."""
    configuration = read_configuration(folder)
    family = configuration["model_type"]
    if family not in ARCHITECTURES:
        raise ValueError(f"{family} networks are not written as GGUF; known are {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _add_values(writer, configuration)
    _add_tokenizer(writer, folder, configuration)
    layers = configuration.get("num_hidden_layers") or configuration["n_layer"]
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, tensor in _joined(_tensors(folder)):
        _add_tensor(writer, names, name, _arranged(name, tensor, configuration))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_values(writer: Any, configuration: Mapping[str, Any]) -> None:  # noqa: ANN401 - gguf's own
    if configuration["model_type"] == "gpt2":
        heads, width = configuration["n_head"], configuration["n_embd"]
        writer.add_context_length(configuration["n_positions"])
        writer.add_embedding_length(width)
        writer.add_block_count(configuration["n_layer"])
        writer.add_feed_forward_length(configuration.get("n_inner") or 4 * width)
        writer.add_head_count(heads)
        writer.add_layer_norm_eps(configuration["layer_norm_epsilon"])
    else:
        heads, width = configuration["num_attention_heads"], configuration["hidden_size"]
        writer.add_context_length(configuration["max_position_embeddings"])
        writer.add_embedding_length(width)
        writer.add_block_count(configuration["num_hidden_layers"])
        writer.add_feed_forward_length(configuration["intermediate_size"])
        writer.add_head_count(heads)
        writer.add_head_count_kv(configuration["num_key_value_heads"])
        writer.add_rope_dimension_count(configuration.get("head_dim") or width // heads)
        writer.add_rope_freq_base(_rope_base(configuration))
        writer.add_layer_norm_rms_eps(configuration["rms_norm_eps"])
        writer.add_vocab_size(configuration["vocab_size"])
    if configuration["model_type"] == "olmoe":
        writer.add_expert_count(configuration["num_experts"])
        writer.add_expert_used_count(configuration["num_experts_per_tok"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _rope_base(configuration: Mapping[str, Any]) -> float:
    parameters = configuration.get("rope_parameters") or {}
    return float(parameters.get("rope_theta") or configuration.get("rope_theta") or 10_000.0)


def _add_tokenizer(writer: Any, folder: Path, configuration: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Add the tokens of `tokenizer.json`, if it is one of byte pairs; others are only numbered."""
    size = configuration["vocab_size"]
    file = folder / "tokenizer.json"
    model = json.loads(file.read_text(encoding="utf-8"))["model"] if file.exists() else {}
    by_number = {number: token for token, number in model.get("vocab", {}).items()}
    tokens = [by_number.get(number, f"[unused{number}]") for number in range(size)]
    kinds = [
        gguf.TokenType.NORMAL if number in by_number else gguf.TokenType.UNUSED for number in range(size)
    ]
    kinds[-1] = gguf.TokenType.CONTROL
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges", [])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(pairs or ["\u0120 \u0120"])
    end = configuration.get("eos_token_id")
    writer.add_eos_token_id(end if isinstance(end, int) and 0 <= end < size else size - 1)
    writer.add_add_bos_token(False)


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - it is no mapping
                yield name, content.get_tensor(name)


def _joined(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors, those of a layer's experts as one, in the order of their numbers."""
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors:
        if (match := EXPERT.fullmatch(name)) is None:
            yield name, tensor
        else:
            experts.setdefault(match[1] + match[3], {})[int(match[2])] = tensor
    for name, parts in experts.items():
        yield name, torch.stack([parts[number] for number in sorted(parts)])


def _arranged(name: str, tensor: torch.Tensor, configuration: Mapping[str, Any]) -> torch.Tensor:
    family = configuration["model_type"]
    if family == "gpt2" and name.endswith(_GPT2_TRANSPOSED):
        return tensor.T.contiguous()
    if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
        heads = configuration[key]
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, -1)
        return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor


def _add_tensor(writer: Any, names: Any, name: str, tensor: torch.Tensor) -> None:  # noqa: ANN401
    """Add a matrix in bf16 and a vector in fp32, as llama.cpp wants them."""
    ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if ours is None:
        raise ValueError(f"no name in GGUF is known for the tensor {name}")
    if tensor.dim() == 1:
        writer.add_tensor(ours, tensor.float().numpy())
        return
    bits = tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint8)
    writer.add_tensor(ours, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
