"""How much memory a device has."""

from __future__ import annotations

import os

import torch


def memory_bytes(device: torch.device) -> int:
    """All of it, and not what is free: choices made by it are the same in a run and in its resumption."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
