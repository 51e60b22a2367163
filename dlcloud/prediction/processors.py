"""Data sheets of the processors that EC2 types have.

Source: AWS's pages of instance types and the data sheets of Intel, AMD and Arm, from memory. Checked by
`tests/performance/type_table.py` against the base clocks that types stated of themselves (Spare Cores): the
clocks of the 29 x86 processors are 1.10 to 1.73 times their base clocks. Arm's are not checked. Estimates are
the all-core clock of processors that are made for AWS alone, and the operations of one core in a cycle (dense
8-bit integer dot products, as a power of two; AMX is not counted: the recorded programs did not use it).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One processor: its clock with all cores busy; memory bandwidth, cores and L3 cache of a socket."""

    name: str
    design: str
    vendor: str
    log2_operations: float
    ghz: float
    memory_gb_s: float
    cores: int
    l3_mb: int


_SHEETS = (
    ("7571", "zen1", "amd", 4.0, 2.7, 170, 32, 64),
    ("7R32", "zen2", "amd", 5.0, 3.3, 205, 48, 192),
    ("7R13", "zen3", "amd", 5.0, 3.6, 205, 48, 192),
    ("9R14", "zen4", "amd", 6.0, 3.7, 460, 96, 384),
    ("9R45", "zen5", "amd", 6.6, 4.5, 576, 96, 384),
    ("9R05", "zen5", "amd", 6.6, 5.0, 576, 64, 384),
    ("E5-2650", "snb", "intel", 3.6, 2.4, 51, 8, 20),
    ("E5-2665", "snb", "intel", 3.6, 2.8, 51, 8, 20),
    ("E5-2651 V2", "ivb", "intel", 3.6, 2.2, 59, 12, 30),
    ("E5-2670 V2", "ivb", "intel", 3.6, 2.9, 59, 10, 25),
    ("E5-2680 V2", "ivb", "intel", 3.6, 3.1, 59, 10, 25),
    ("E5-2676 V3", "hsw", "intel", 5.0, 2.8, 68, 12, 30),
    ("E5-2666 V3", "hsw", "intel", 5.0, 3.2, 68, 10, 25),
    ("E7-8880 V3", "hsw", "intel", 5.0, 2.6, 85, 18, 45),
    ("E5-2686 V4", "bdw", "intel", 5.0, 2.7, 77, 18, 45),
    ("8175M", "skx", "intel", 5.3, 3.1, 128, 24, 33),
    ("8176M", "skx", "intel", 5.3, 2.8, 128, 28, 38),
    ("8124M", "skx", "intel", 5.3, 3.4, 128, 18, 25),
    ("8151", "skx", "intel", 5.3, 4.0, 128, 12, 25),
    ("8259CL", "clx", "intel", 5.5, 3.1, 141, 24, 36),
    ("8275CL", "clx", "intel", 5.5, 3.6, 141, 24, 36),
    ("8223CL", "clx", "intel", 5.5, 3.6, 141, 18, 25),
    ("8280L", "clx", "intel", 5.5, 3.3, 141, 28, 38),
    ("8252C", "clx", "intel", 5.5, 4.5, 141, 12, 25),
    ("8375C", "icx", "intel", 5.9, 3.5, 205, 32, 54),
    ("8488C", "spr", "intel", 6.2, 3.2, 307, 48, 105),
    ("8477C", "spr", "intel", 6.2, 3.2, 307, 48, 105),
    ("6455B", "spr", "intel", 6.2, 3.9, 307, 32, 60),
    ("8559C", "emr", "intel", 6.2, 3.2, 358, 48, 320),
    ("6975P", "gnr", "intel", 6.2, 3.9, 537, 96, 480),
    ("CORTEX-A72", "a72", "arm", 3.0, 2.3, 38, 16, 8),
    ("NEOVERSE-N1", "n1", "arm", 5.0, 2.5, 205, 64, 32),
    ("NEOVERSE-V1", "v1", "arm", 5.9, 2.6, 307, 64, 32),
    ("NEOVERSE-V2", "v2", "arm", 5.9, 2.8, 537, 96, 36),
    ("NEOVERSE-V3", "v3", "arm", 6.0, 3.3, 720, 192, 192),
)
PROCESSORS = {
    name: Processor(
        name=name,
        design=design,
        vendor=vendor,
        log2_operations=operations,
        ghz=ghz,
        memory_gb_s=bandwidth,
        cores=cores,
        l3_mb=l3,
    )
    for name, design, vendor, operations, ghz, bandwidth, cores, l3 in _SHEETS
}


def find_processor(model: str) -> Processor | None:
    """Return the data sheet of a processor by the model that `lscpu` prints; None for an unlisted one."""
    upper = model.upper()
    return next((sheet for name, sheet in PROCESSORS.items() if name in upper), None)
