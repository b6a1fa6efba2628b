"""What a worker process finds in its environment."""

from __future__ import annotations

import os

from art.ipc import FD_VARIABLE

# Measured on decoding: huge pages give 29 to 56 %; freed arenas are kept, because each step asks for the
# same sizes again. glibc reads these at process start only, so they cannot be set by the worker itself.
MALLOC_TUNABLES = (
    "glibc.malloc.hugetlb=1",
    "glibc.malloc.mmap_max=0",
    "glibc.malloc.trim_threshold=17179869184",
)


# At the end of every parallel region OpenMP's threads spin before they sleep, by default for milliseconds. Engine
# and trainer may compute at the same time on the same cores, and two spinning pools starve each other: measured
# on two cores, a batch-1 step took 4 times as long. Not to spin at all costs 30 to 50 % of an idle machine's speed,
# since every layer has several regions. This many turns (about 0.5 ms) keeps 9 tenths of it and bounds the harm.
SPIN_COUNT = 10_000
OPENMP_VARIABLES = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
"""Set by whoever starts the server, they are left as they are."""


def worker_environment(*, fd: int, threads: int | None) -> dict[str, str]:
    """The parent's environment plus the channel's descriptor, the allocator's settings and the thread count."""
    inherited = os.environ.get("GLIBC_TUNABLES", "")
    names = {item.split("=")[0] for item in inherited.split(":") if item}
    ours = [item for item in MALLOC_TUNABLES if item.split("=")[0] not in names]
    environment = {
        **os.environ,
        FD_VARIABLE: str(fd),
        "GLIBC_TUNABLES": ":".join([item for item in (inherited, *ours) if item]),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not OPENMP_VARIABLES & environment.keys():
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment
