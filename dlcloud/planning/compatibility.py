"""The check that instance types suit the image and the workload, before anything is launched."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness.benchmark import Benchmark, Parameters
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Image, InstanceType
from dlcloud.planning.fit import fit, machine_of_type, missing_form
from dlcloud.planning.successors import KnownType, describe
from dlcloud.recipe.recipe import Recipe

NEURON_IMAGE = "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"
"""Source: AWS Neuron documentation, "Neuron DLAMI", SSM parameters, read 2026-11."""
OPEN_DRIVER_FROM = 7.5
"""The compute capability of Turing. Source: NVIDIA open GPU kernel modules, README."""
SUGGESTED = 3


def check_types(
    recipe: Recipe,
    types: Sequence[str],
    hardware: Mapping[str, InstanceType],
    image: Image,
    known_types: Sequence[KnownType],
) -> list[str]:
    """Return what a rehearsal may ignore: the drivers that the image lacks.

    Args:
        recipe: The workload, and the image as the recipe names it.
        types: The types that can be launched.
        hardware: Their hardware; of a type without, nothing is checked.
        image: The image, resolved.
        known_types: To suggest types that would do.

    Raises:
        CloudError: A type does not boot the image, has no driver in it, or the workload has no form for it.
    """
    chosen = [hardware[name] for name in types if name in hardware]
    _refuse_architectures(recipe, chosen, image)
    for entry in chosen:
        _refuse_workload(recipe, entry, known_types)
    lacking = [refusal for entry in chosen if (refusal := _missing_driver(recipe, entry, image))]
    if lacking and recipe.cloud != "local":
        raise CloudError("\n".join(reason for reason, _ in lacking), lacking[0][1])
    return [reason for reason, _ in lacking]


def suits_workload(recipe: Recipe, entry: InstanceType) -> bool:
    """True if the workload runs on a type, as far as is known: a command may need anything."""
    benchmark = BENCHMARKS.get(recipe.workload.benchmark or "")
    if benchmark is None:
        return True
    parameters = {benchmark.name: recipe.workload.parameters}
    return bool(fit([benchmark], machine_of_type(entry), parameters).benchmarks)


def _refuse_architectures(recipe: Recipe, chosen: Sequence[InstanceType], image: Image) -> None:
    """Refuse types that the image does not boot; one cluster has one image."""
    wrong = [entry for entry in chosen if image.architecture not in entry.architectures]
    if not wrong or not image.architecture:
        return
    named = ", ".join(f"{entry.name} ({entry.architecture})" for entry in wrong)
    if recipe.instances.image == "auto" and len(wrong) < len(chosen):
        others = ", ".join(entry.name for entry in chosen if entry not in wrong)
        raise CloudError(
            f"{named} cannot boot the {image.architecture} image of {others}: a cluster has one image",
            "name types of one architecture; dlcloud bench launches each type by itself",
        )
    raise CloudError(
        f"{named} cannot boot image {image.image_id} ({image.architecture})",
        "name types of the image's architecture, or instances.image: auto",
    )


def _refuse_workload(recipe: Recipe, entry: InstanceType, known_types: Sequence[KnownType]) -> None:
    """Refuse a type that the workload has no form for."""
    workload = recipe.workload
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is None:
        return
    reason = missing_form(benchmark, workload.parameters, machine_of_type(entry))
    if reason:
        would_do = _fitting(benchmark, workload.parameters, known_types)
        hint = f"types that would do: {would_do}; " if would_do else ""
        raise CloudError(
            f"{benchmark.name} has no form for this machine: {reason}",
            f"{hint}a workload.command runs anywhere",
        )


def _fitting(benchmark: Benchmark, parameters: Parameters, known_types: Sequence[KnownType]) -> str:
    """Return the cheapest current types on which a benchmark runs, in words."""
    needs_gpu = any(need.gpu for need in benchmark.needs_for(parameters))
    fitting = [
        candidate
        for candidate in known_types
        if candidate.hardware.status == "current" and candidate.hourly_usd is not None
        if candidate.hardware.has_nvidia_gpu == needs_gpu
        if fit([benchmark], machine_of_type(candidate.hardware), {benchmark.name: parameters}).benchmarks
    ]
    fitting.sort(key=lambda candidate: candidate.hourly_usd or Decimal(0))
    return ", ".join(describe(candidate) for candidate in fitting[:SUGGESTED])


def _missing_driver(recipe: Recipe, entry: InstanceType, image: Image) -> tuple[str, str] | None:
    """Return what an image lacks to drive a type's accelerators, and what would do; None if nothing is known.

    Source: EC2 user guide, "NVIDIA drivers", table of drivers by instance type: g6f and gr6f need the GRID
    driver; AWS's Deep Learning AMIs have the data-center driver.
    """
    accelerator = entry.accelerator
    if accelerator is None:
        return None
    if recipe.instances.image != "auto":
        return _old_gpu(entry, image)
    if accelerator.is_neuron:
        reason = f"image auto has no driver for {accelerator.name} ({entry.name})"
        return reason, f"instances.image: {NEURON_IMAGE}, or an image of yours"
    if accelerator.share < 1:
        reason = f"{entry.name} has {accelerator.describe()}: a part of a GPU needs NVIDIA's GRID driver"
        return f"{reason}, which image auto lacks", "name an image with that driver in instances.image"
    if not entry.has_nvidia_gpu:
        reason = f"image auto has no driver for {accelerator.name} ({entry.name})"
        return reason, "name an image with its driver in instances.image"
    return _old_gpu(entry, image)


def _old_gpu(entry: InstanceType, image: Image) -> tuple[str, str] | None:
    """Return why an image with NVIDIA's open driver cannot drive an old GPU."""
    words = image.name.lower().replace("/", "-").replace(" ", "-").split("-")
    if "oss" not in words or entry.accelerator is None or not entry.has_nvidia_gpu:
        return None
    if _capability(entry.accelerator.compute_capability) >= OPEN_DRIVER_FROM:
        return None
    reason = f"image {image.image_id} has NVIDIA's open driver, which {entry.name} is too old for"
    return reason, "name an image with the proprietary driver in instances.image"


def _capability(text: str) -> float:
    """Read a compute capability; a GPU that the table lacks is a new one."""
    return float(text) if text else OPEN_DRIVER_FROM
