"""The C library's allocator, told to keep what is freed, in huge pages, for the next step.

Else every large tensor goes back to the kernel when it is freed, and is filled with zeros anew a step later.
"""

import platform

NOT_GLIBC = "only glibc's allocator can be told to keep freed memory"

# Source: mallopt(3), M_MMAP_MAX and the others; glibc manual, "Memory Allocation Tunables", hugetlb (2.35).
HEAP_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def is_glibc() -> bool:
    """Tell whether the C library is glibc, whose allocator has these variables."""
    return platform.libc_ver()[0] == "glibc"
