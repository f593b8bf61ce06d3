"""What the processors of this machine are and can do, as far as code for the target depends on it."""

from __future__ import annotations

import ctypes
from pathlib import Path

POSSIBLE_CPUS = Path("/sys/devices/system/cpu/possible")
_getauxval = ctypes.PyDLL(None).getauxval
_getauxval.argtypes, _getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
_AT_HWCAP2, _HWCAP2_FSGSBASE = 26, 2  # <asm/hwcap2.h>


def cpu_count() -> int:
    """Possible CPUs, or some more: one ring for each."""
    try:
        last = POSSIBLE_CPUS.read_text().strip().rpartition(",")[2].rpartition("-")[2]
    except OSError:
        # There are containers without /sys. The kernel prints masks with a bit for each possible CPU.
        status = Path("/proc/self/status").read_text()
        mask = status.partition("\nCpus_allowed:\t")[2].partition("\n")[0]
        return 4 * len(mask.replace(",", ""))
    return int(last) + 1


def reads_fs_base() -> bool:
    """Whether the kernel lets programs read the fs base."""
    # Not from /proc/self/auxv, which who gave up privileges may not read.
    return bool(_getauxval(_AT_HWCAP2) & _HWCAP2_FSGSBASE)


def has_rdpid() -> bool:
    with open("/proc/cpuinfo") as lines:
        return any(line.startswith("flags") and " rdpid" in line for line in lines)
