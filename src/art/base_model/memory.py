"""How much memory a device has."""

from __future__ import annotations

import os
from pathlib import Path

import torch

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Linux, control groups version 2: what a container may take; "max" where there is no limit."""


def memory_bytes(device: torch.device) -> int:
    """All that the device, the machine or the container has, and not what is free: choices made by it are the same
    in a run and in its resumption."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if CGROUP_LIMIT.is_file() and (text := CGROUP_LIMIT.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total
