"""How much memory a device has, and how much of it a process may take."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import torch

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Linux, control groups version 2: what a container may take; "max" where there is no limit."""
STATUS = Path("/proc/self/status")
"""Linux: what this process has mapped, and how much of it is in memory."""


def memory_bytes(device: torch.device) -> int:
    """All that the device, the machine or the container has, and not what is free: choices made by it are the same
    in a run and in its resumption."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if CGROUP_LIMIT.is_file() and (text := CGROUP_LIMIT.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total


def limit_private_memory(limit: float | None) -> None:
    """Let allocations fail that would take this process over `limit` bytes; None lifts what was set here.

    Linux gives out more memory than there is, and ends a process that uses it. An allocation that fails can be
    answered. Limited is what is mapped; what is mapped and in no use at the time of the call, such as stacks and freed
    memory, comes on top. Elsewhere nothing is limited: Windows does not overcommit, and macOS has no such limit.
    """
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    mapped, used = private_memory()
    wanted = resource.RLIM_INFINITY if limit is None else int(limit) + max(0, mapped - used)
    if hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard):
        wanted = hard
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def private_memory() -> tuple[int, int]:
    """Linux: (bytes that this process has mapped for itself, bytes of those that are in memory)."""
    found = dict(re.findall(r"^(VmData|RssAnon):\s+(\d+) kB", STATUS.read_text(), re.MULTILINE))
    return int(found["VmData"]) * 1024, int(found["RssAnon"]) * 1024


def return_freed_memory() -> None:
    """Give memory that was freed back to the machine, where the C library keeps it and can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
