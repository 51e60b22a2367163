"""Prove each setting before it is timed, and say which fit into memory together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..harness.arm import WorkerArm
from ..harness.process import ArmFailedError
from ..harness.records import Failure, Recorder, Skip
from .settings import Setting

KERNELS_TOLD = 12
"""The record names so many kernels, those that ran most often."""

SHARE_OF_MEMORY = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A setting that computes in what its name says.

    Attributes:
        setting: As asked for.
        memory_mib: The most that its process took of the device's memory.
        facts: What the proof showed, for the record.
    """

    setting: Setting
    memory_mib: float
    facts: Mapping[str, Any]


def prove(
    case: str, settings: Sequence[Setting], make: Callable[[Setting], WorkerArm], recorder: Recorder
) -> list[Proven]:
    """Run each setting briefly in a process of its own and keep those that are what they say.

    One whose kernels are not is skipped with what ran instead; one that cannot run is a failure.

    Args:
        case: What the settings are of.
        settings: What to prove.
        make: Makes the arm that proves a setting.
        recorder: Is told of all that is left out.
    """
    proven = []
    for setting in settings:
        arm = make(setting)
        try:
            facts = dict(arm.start())
        except ArmFailedError as error:
            recorder.failure(Failure(case=case, setting=setting.name, message=str(error)))
            continue
        finally:
            arm.close()
        reason = refuted(setting, facts)
        if reason is None:
            proven.append(_proven(setting, facts))
        elif setting.reduced:
            recorder.skip(Skip(case=case, setting=setting.name, reason=reason))
        else:
            recorder.failure(Failure(case=case, setting=setting.name, message=reason))
    return proven


def refuted(setting: Setting, facts: Mapping[str, Any]) -> str | None:
    """Say why the kernels that ran show that a setting is not what it says; None where they bear it out."""
    inside, every = facts["kernels_in_precision"], facts["kernels_in_all"]
    kernels = ", ".join(list(facts["kernels"])[:3]) or "none seen"
    if setting.reduced and not inside:
        return f"not one of {every} kernels computed in {setting.precision.value}; the library ran {kernels}"
    if not setting.reduced and inside != every:
        return f"{every - inside} of {every} kernels did not compute in fp32; the library ran {kernels}"
    return None


def _proven(setting: Setting, facts: dict[str, Any]) -> Proven:
    told = dict(list(facts["kernels"].items())[:KERNELS_TOLD])
    first_step = "compile_and_first_step_s" if "compile" in setting.name else "cold_first_step_s"
    memory_mib = facts["memory_mib"]
    renamed = {name: value for name, value in facts.items() if name not in ("first_step_s", "memory_mib")}
    return Proven(
        setting=setting,
        memory_mib=memory_mib,
        facts={
            **renamed,
            "kernels": told,
            first_step: facts["first_step_s"],
            "device_memory_mib": memory_mib,
        },
    )


def packed(proven: Sequence[Proven], available_mib: float) -> tuple[list[list[Proven]], list[Proven]]:
    """Divide settings into groups that fit into memory side by side, each with the baseline, the first.

    Returns the groups, and the settings that fit in none.
    """
    baseline, *candidates = proven
    room = SHARE_OF_MEMORY * available_mib - baseline.memory_mib
    groups: list[list[Proven]] = []
    too_large = [each for each in candidates if each.memory_mib > room]
    for candidate in candidates:
        if candidate in too_large:
            continue
        used = sum(each.memory_mib for each in groups[-1][1:]) if groups else room
        if used + candidate.memory_mib > room:
            groups.append([baseline])
        groups[-1].append(candidate)
    return groups or [[baseline]], too_large
