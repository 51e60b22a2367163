"""The settings of a training: a precision and what else is turned on; imports no framework."""

from dataclasses import dataclass
from typing import Self

LORA, CHECKPOINTING, COMPILE = "lora", "checkpointing", "compile"
_NAMES = (LORA, CHECKPOINTING, COMPILE)
OPTIMIZATIONS = ", ".join(f"+{name}" for name in _NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTraining:
    """A setting: bf16 by autocast, adapters by PEFT, activations computed again, torch.compile."""

    precision: str
    optimizations: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bf16+lora`.

        Raises:
            ValueError: The precision or an optimization is unknown.
        """
        first, *names = text.split("+")
        if first not in {"fp32", "bf16"}:
            raise ValueError(f"a setting begins with fp32 or bf16; this is {text!r}")
        unknown = next((name for name in names if name not in _NAMES), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} in {text!r} is none of {', '.join(_NAMES)}")
        return cls(precision=first, optimizations=frozenset(names))

    @property
    def name(self) -> str:
        return "+".join([self.precision, *(name for name in _NAMES if name in self.optimizations)])
