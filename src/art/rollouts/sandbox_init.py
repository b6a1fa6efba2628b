"""The first process of a sandbox: `python -I -S sandbox_init.py STATUS_FD PLAN`. It imports nothing of ART.

With namespaces it makes a user, mount, process, network, IPC and host-name namespace, becomes the first process in
them, and starts the command without any privilege. Without them it adopts what the command leaves behind. What it has to
say goes to STATUS_FD, a JSON object a line: `refused` (a limit cannot be set here), `cannot_start`, `status`.
Sources: namespaces(7), user_namespaces(7), mount_setattr(2), capabilities(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC = 1, 2, 4, 8
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
DEATH_SIGNAL, DROP_BOUND, SUBREAPER, NO_NEW_PRIVILEGES = 1, 24, 36, 38
MOUNT_SETATTR = 442
"""The system call's number, the same on every architecture since Linux 5.12."""
AT_CWD, AT_RECURSIVE = -100, 0x8000
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 1
DEVICES = ("null", "zero", "full", "random", "urandom")
SECCOMP, FILTER = 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
SOCKET_CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine -> its name in a filter, and the number of socket(2) on it."""
OTHER_NUMBERS, IO_URING_SETUP = 0x40000000, 425
"""From where on x86-64 counts its calls a second time (x32); the number that every machine has."""
CAPABILITIES = 64
"""More than there are: the first that the kernel does not know ends the loop."""
ADOPTED_SECONDS = 2.0
"""How long what a command left behind is looked for and killed."""

Plan = dict[str, Any]


class Unavailable(Exception):
    """A limit that cannot be set here: its name, and the system's reason."""


def main() -> int:
    """Set up, run the command, tell how it ended."""
    status_fd = int(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        plan: Plan = json.load(file)
    os.set_inheritable(status_fd, False)
    try:
        control(DEATH_SIGNAL, signal.SIGKILL)
        control(NO_NEW_PRIVILEGES, 1)
        if not plan["namespaces"]:
            return supervise(plan, status_fd)
        enter(plan)
        control(DEATH_SIGNAL, signal.SIGKILL)  # a change of who one is may have taken it back
    except Unavailable as error:
        tell(status_fd, refused=str(error.args[0]), cause=str(error.args[1]))
        return 1
    first = os.fork()  # a new process namespace begins with the next child
    if first == 0:
        control(DEATH_SIGNAL, signal.SIGKILL)
        os._exit(supervise(plan, status_fd))
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


def tell(fd: int, **said: object) -> None:
    """One line for whoever started the sandbox."""
    os.write(fd, json.dumps(said).encode() + b"\n")


# -- namespaces


def enter(plan: Plan) -> None:
    """New namespaces, and a file system of which only the working directory can be written."""
    uid, gid = os.geteuid(), os.getegid()
    step("namespaces", unshare, NEW_USER)
    step("namespaces", map_ids, uid, gid)
    network = 0 if plan["network"] else NEW_NETWORK
    step("namespaces", unshare, NEW_MOUNTS | NEW_PIDS | NEW_IPC | NEW_HOSTNAME | network)
    if network:
        step("network", loopback_up)
        if os.uname().machine not in SOCKET_CALLS:
            raise Unavailable("network", f"other sockets cannot be cut off on {os.uname().machine}")
    step("file system", mount, None, "/", None, RECURSIVE | PRIVATE)
    for path in plan["hidden"]:
        step("file system", hide, path, plan["empty"])
    if plan["read_only"]:
        step("file system", protect, plan["folder"], plan["devices"])


def step(limit: str, function: Any, *arguments: Any) -> None:
    """Unavailable, naming the limit, where the system refuses."""
    try:
        function(*arguments)
    except (OSError, AttributeError) as error:
        raise Unavailable(limit, f"{getattr(function, '__name__', '')}: {error}") from error


def map_ids(uid: int, gid: int) -> None:
    """The user and group stay who they are; all others become nobody."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def loopback_up() -> None:
    """A program may talk to itself: the new network has one interface, and it starts switched off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sH22x", b"lo", INTERFACE_UP))


def hide(path: str, empty: str) -> None:
    """An empty folder, or the empty file, in the place of what is there."""
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "size=4k")
    else:
        mount(empty, path, None, BIND)


def protect(folder: str, devices: str) -> None:
    """Everything read-only and without devices, but for `folder` and harmless devices, which are put together in `devices`."""
    mount(folder, folder, None, BIND | RECURSIVE)
    mount("tmpfs", devices, "tmpfs", NO_SUID | NO_EXEC, "size=64k,mode=755")
    for name in DEVICES:
        os.close(os.open(f"{devices}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        mount(f"/dev/{name}", f"{devices}/{name}", None, BIND)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{devices}/{name}")
    os.mkdir(f"{devices}/shm")
    mount(devices, "/dev", None, BIND | RECURSIVE)
    mount_attributes("/", AT_RECURSIVE, add=READ_ONLY | NO_SUID | NO_DEVICES)
    mount_attributes(folder, 0, remove=READ_ONLY)
    for name in DEVICES:
        mount_attributes(f"/dev/{name}", 0, remove=NO_DEVICES | READ_ONLY)


# -- the command


def supervise(plan: Plan, status_fd: int) -> int:
    """Start the command, collect every process that ends, and tell how the command did."""
    if plan["namespaces"]:
        fresh_proc()
    else:
        control(SUBREAPER, 1)
    command = os.fork()
    if command == 0:
        execute(plan, status_fd)
    signal.signal(signal.SIGTERM, lambda *_: end(command))
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:  # the signal's handler has ended and collected all
            return 1
        if ended == command:
            break
    tell(status_fd, status=os.waitstatus_to_exitcode(status))
    if not plan["namespaces"]:  # with them, everything ends with this process
        end(command)
    return 0


def fresh_proc() -> None:
    """What /proc shows are this sandbox's processes; a container may forbid it, and then it shows those outside, which cannot be touched."""
    try:
        mount("proc", "/proc", "proc", READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC)
    except OSError:
        return


def execute(plan: Plan, status_fd: int) -> None:
    """Become the command. Never returns."""
    try:
        os.setsid()
        os.chdir(plan["folder"])
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_AS, plan["memory"])
        limit(resource.RLIMIT_FSIZE, plan["file"])
        if plan["tasks"] is not None:
            limit(resource.RLIMIT_NPROC, plan["tasks"])
        drop_privileges()
        if plan["namespaces"] and not plan["network"]:
            forbid_other_sockets()
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        os.execvpe(plan["command"][0], plan["command"], plan["environment"])
    except (OSError, ValueError) as error:
        tell(status_fd, cannot_start=str(error))
    os._exit(127)


def limit(what: int, most: int) -> None:
    """Both limits, soft and hard; one that is lower already stays."""
    _, hard = resource.getrlimit(what)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (least, least))


def drop_privileges() -> None:
    """No capability can be had any more by this process or what it starts. Who has none to begin with cannot, and need not."""
    for capability in range(CAPABILITIES):
        try:
            control(DROP_BOUND, capability)
        except OSError:
            return


def forbid_other_sockets() -> None:
    """Sockets of the network namespace alone: others, as docker's or a key agent's in the file system, lead out of it.

    A seccomp filter for this process and all it starts, over `struct seccomp_data`: the call's number at 0, the machine at 4,
    the first argument at 16. Calls by another machine's numbers, and io_uring, which opens sockets past a filter, are
    refused too. Source: seccomp(2), linux/audit.h.
    """
    machine, number = SOCKET_CALLS[os.uname().machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    program = [
        (load, 0, 0, 4),
        (equal, 0, 8, machine),
        (load, 0, 0, 0),
        (at_least, 6, 0, OTHER_NUMBERS),
        (equal, 5, 0, IO_URING_SETUP),
        (equal, 0, 5, number),
        (load, 0, 0, 16),
        (equal, 3, 0, socket.AF_INET),
        (equal, 2, 0, socket.AF_INET6),
        (equal, 1, 0, socket.AF_NETLINK),
        (give, 0, 0, REFUSE | errno.EACCES),
        (give, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: a short, then a pointer at its own alignment.
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)))
    none = ctypes.c_ulong(0)
    checked(libc().prctl(SECCOMP, ctypes.c_ulong(FILTER), filters, none, none))


def end(command: int) -> None:
    """Kill the command's group and everything adopted, until nothing is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGKILL)
    deadline = time.monotonic() + ADOPTED_SECONDS
    while time.monotonic() < deadline:
        for child in children():
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Of this process; none where the system does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


# -- system calls that Python 3.11 lacks


def libc() -> Any:
    """The C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    """OSError where a call has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """New namespaces for this process (of processes: for its children)."""
    checked(libc().unshare(flags))


def control(option: int, value: int) -> None:
    """prctl(2)."""
    none = ctypes.c_ulong(0)
    checked(libc().prctl(option, ctypes.c_ulong(value), none, none, none))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    source_, kind_, data_ = (None if text is None else text.encode() for text in (source, kind, data))
    checked(libc().mount(source_, target.encode(), kind_, ctypes.c_ulong(flags), data_))


def mount_attributes(path: str, flags: int, *, add: int = 0, remove: int = 0) -> None:
    """mount_setattr(2): attributes of one mount, or of all below it."""
    attributes = struct.pack("QQQQ", add, remove, 0, 0)
    number = ctypes.c_long(MOUNT_SETATTR)
    size = ctypes.c_size_t(len(attributes))
    checked(libc().syscall(number, AT_CWD, path.encode(), flags, attributes, size))


if __name__ == "__main__":
    sys.exit(main())
