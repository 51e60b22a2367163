"""The packages of an instance: a workload's, with the build of PyTorch that suits the instance type."""

from typing import TYPE_CHECKING

from dlcloud.launch.setup import packages_of

if TYPE_CHECKING:  # pydantic, which `logs` and `ssh` never need
    from dlcloud.launch.managed import ManagedCluster

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's builds for CPUs, `2.13.0+cpu` of 2.13.0, which pip takes for the newer ones of the same version.

PyPI's builds for Linux, those for aarch64 too, bring CUDA's libraries, 4 GB. Source: pytorch.org, "Start
Locally"; metadata of torch 2.13.0 on PyPI, read 2026-11.
"""


def requirements_on(managed: "ManagedCluster", instance_type: str, requirements: str) -> str:
    """Return the requirements for a type: PyTorch without CUDA where the type has no GPU.

    A rehearsal installs what this machine's pip is configured for, whatever the type. Where the hardware of
    the type is not known, PyPI's build serves.
    """
    if managed.cluster.cloud == "local":
        return requirements
    if not any(package.startswith("torch") for package in packages_of(requirements)):
        return requirements
    hardware = managed.cloud.types.hardware([instance_type]).get(instance_type)
    if hardware is None or hardware.gpu is not None:
        return requirements
    return f"--extra-index-url {CPU_INDEX}\n{requirements}"
