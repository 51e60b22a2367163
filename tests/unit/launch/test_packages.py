"""PyTorch's build for CPUs where a type has no GPU, and only there."""

from dataclasses import replace

import pytest

from dlcloud.launch.setup import CPU_INDEX, requirements_on
from dlcloud.model.instance import Accelerator
from tests.fakes.samples import hardware

TORCH = "numpy==2.4.6\ntorch==2.13.0\n"
CPU = f"--extra-index-url {CPU_INDEX}\n{TORCH}"


@pytest.fixture
def managed(world):
    gpu = Accelerator(name="A10G", count=1, memory_mib=22888)
    world.cloud.known_hardware |= {
        "c7i.xlarge": hardware(),
        "c7g.xlarge": replace(hardware("c7g.xlarge"), architectures=("arm64",)),
        "g5.xlarge": replace(hardware("g5.xlarge"), accelerator=gpu),
    }
    return world.launcher


@pytest.mark.parametrize(
    ("name", "requirements", "installed"),
    [
        ("c7i.xlarge", TORCH, CPU),
        ("c7g.xlarge", TORCH, CPU),
        ("c7i.xlarge", "onnx==1.23.2\n", "onnx==1.23.2\n"),
        ("g5.xlarge", TORCH, TORCH),
        ("zz9.huge", TORCH, TORCH),
    ],
)
def test_a_type_without_a_gpu_installs_pytorch_without_cuda(managed, name, requirements, installed):
    assert requirements_on(managed, name, requirements) == installed


def test_a_rehearsal_installs_what_this_machine_is_configured_for(managed):
    local = replace(managed, cluster=replace(managed.cluster, cloud="local"))
    assert requirements_on(local, "c7i.xlarge", TORCH) == TORCH
