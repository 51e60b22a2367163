"""The hardware of a machine, as the programs on it report it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlcloud.model.untrusted import count_or_none, number_or_none


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware that a run ran on, as its program reported it."""

    cpu_model: str = "unknown CPU"
    physical_cores: int | None = None
    logical_cpus: int | None = None
    cpu_flags: tuple[str, ...] = ()
    memory_gib: float | None = None
    gpus: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short name: the GPUs if there are any, else the CPU with its cores."""
        if self.gpus:
            return f"{len(self.gpus)}x {self.gpus[0]}"
        return (
            self.cpu_model
            if self.physical_cores is None
            else f"{self.cpu_model}, {self.physical_cores} cores"
        )


def hardware_of(record: Mapping[str, Any]) -> Hardware:
    """Read the hardware of a `start` record; what is of a wrong type is unknown."""
    hardware = record.get("hardware")
    if not isinstance(hardware, dict):
        return Hardware()
    return Hardware(
        cpu_model=str(hardware.get("cpu_model") or "unknown CPU"),
        physical_cores=count_or_none(hardware.get("physical_cores")),
        logical_cpus=count_or_none(hardware.get("logical_cpus")),
        cpu_flags=tuple(map(str, _items(hardware.get("cpu_flags")))),
        memory_gib=number_or_none(hardware.get("memory_gib")),
        gpus=tuple(
            str(gpu.get("name", "GPU") if isinstance(gpu, dict) else gpu)
            for gpu in _items(hardware.get("gpus"))
        ),
    )


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []
