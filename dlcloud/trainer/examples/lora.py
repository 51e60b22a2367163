"""Fine-tune a language model by LoRA: its own weights stand still, and only the adapters are state.

So what a joining worker copies, and what is stored, is small whatever the model. The model is a folder in
Hugging Face's format, the same on each worker, or a small one with random weights; the text is a file, or
Python's own help. Needs transformers and peft.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from torch import Tensor, nn

from ..instance.options import natural, positive
from ..training import device, train

SMALL = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
"""The configuration of the small network, whose tokens are bytes."""


class Adapted(nn.Module):  # type: ignore[misc]  # PyTorch is not there where types are checked
    """A network with adapters; its state is theirs alone."""

    def __init__(self, network: Any, rank: int) -> None:  # noqa: ANN401 - of transformers
        super().__init__()
        from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]  # noqa: PLC0415

        options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        self.network = get_peft_model(network, options)

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.network(input_ids=tokens, labels=tokens).loss
        return loss

    def state_dict(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:  # noqa: ANN401 - PyTorch's
        """Return the parameters that are trained, by name."""
        return {name: value.detach() for name, value in self.named_parameters() if value.requires_grad}

    def load_state_dict(self, state: Mapping[str, Any], *_arguments: Any, **_options: Any) -> Any:  # noqa: ANN401
        ours = self.state_dict()
        if ours.keys() != state.keys():
            raise ValueError("the state is of other adapters")
        with torch.no_grad():
            for name, value in ours.items():
                value.copy_(state[name])


class Pieces:
    """Samples of a text: pieces of this many tokens."""

    def __init__(self, tokens: Sequence[int], length: int) -> None:
        self._tokens, self._length = torch.tensor(tokens), length

    def __len__(self) -> int:
        return len(self._tokens) // self._length

    def __getitem__(self, index: int) -> Tensor:
        return self._tokens[index * self._length :][: self._length]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean loss of predicting each next token, in bfloat16 where a GPU does that faster."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=batch.is_cuda):
        loss: Tensor = model(batch)
    return loss


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    torch.manual_seed(arguments.seed)
    network, tokens = _load(arguments)
    model = Adapted(network, arguments.rank).to(device())
    optimizer = torch.optim.AdamW(
        [value for value in model.parameters() if value.requires_grad], lr=arguments.learning_rate
    )
    outcome = train(
        model, optimizer, Pieces(tokens, arguments.length), loss_of,
        batch=arguments.batch, steps=arguments.steps, seed=arguments.seed,
    )  # fmt: skip
    if outcome.first:
        print(f"steps {outcome.steps}, loss {outcome.loss:.4f}")  # noqa: T201
        if arguments.save:
            torch.save(model.state_dict(), arguments.save)
    return 0


def _load(arguments: argparse.Namespace) -> tuple[Any, list[int]]:
    import transformers  # noqa: PLC0415 - takes seconds, which --help should not

    whole = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    text = arguments.text.read_text(encoding="utf-8") if arguments.text else whole
    if arguments.model is None:
        options = transformers.AutoConfig.for_model("llama", **SMALL)
        return transformers.AutoModelForCausalLM.from_config(options), list(text.encode())
    network = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto")
    return network, transformers.AutoTokenizer.from_pretrained(arguments.model)(text)["input_ids"]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m trainer.examples.lora", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="in Hugging Face's format; None: a small random one")
    add("--text", type=Path, metavar="FILE", help="to train on; None: Python's own help")
    add("--rank", type=positive, default=16, help="of the adapters")
    add("--length", type=positive, default=128, help="tokens of a sample")
    add("--batch", type=positive, default=16, help="samples a step, over all workers")
    add("--steps", type=positive, default=100)
    add("--learning-rate", type=float, default=2e-4)
    add("--seed", type=natural, default=0)
    add("--save", type=Path, metavar="FILE", help="write the adapters")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
