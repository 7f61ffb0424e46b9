"""In a worker: enter a view of the file system in which only a few places can be written.

A forked worker cannot be started through another program, so it does by itself what such a program
would do: its own user and mount namespace, everything read-only, some directories hidden, others
shown again; then every privilege over the new namespaces is given up. The network, the processes
and the sockets that are open stay as they are. Linux 5.12 or newer (``mount_setattr``).

Like everything that a worker loads, this imports nothing outside the standard library and `prctl`.
"""

# Paths are text on their way to system calls here, in a process that must be quick.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH120, PTH211

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence

from pytest_ageval.worker import prctl

#: What may be done to a place: ``hide`` (an empty directory or file, if there is one), ``tmp`` (an
#: empty directory that can be written), ``ro`` and ``rw`` (show a place of the host), ``link`` (make a
#: symbolic link that is not there any more). A step is ``[what, target, source]``; the source of
#: ``hide`` and ``tmp`` is "". ``own`` has a user and a group (decimal) in place of target and source: one
#: whose files root may change here too.
Step = Sequence[str]

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000

# These numbers are the same on every architecture but alpha.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446

_AT_FDCWD, _AT_RECURSIVE, _AT_SYMLINK_NOFOLLOW = -100, 0x8000, 0x100
_OPEN_TREE_FLAGS = 1 | os.O_CLOEXEC  # OPEN_TREE_CLONE
_MOVE_FROM_FD = 0x4  # MOVE_MOUNT_F_EMPTY_PATH
_ATTR_RDONLY = 0x1
_MS_NOSUID, _MS_NODEV, _MS_PRIVATE = 0x2, 0x4, 1 << 18

#: Devices that programs need, and none that is a disk or a terminal of the operator.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}

_libc = ctypes.CDLL(None, use_errno=True)


class NotContained(OSError):
    """The view could not be made; the text says at which step."""


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


class _Ruleset(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("fs", "net", "scoped"))


def enter(steps: Sequence[Step]) -> None:
    """Take the view that `steps` describe, parents before what lies in them. Only with one thread.

    Raises NotContained when this machine does not allow it; the process is then not fit for use.
    """
    uid, gid = os.geteuid(), os.getegid()
    others = [(int(step[1]), int(step[2])) for step in steps if step[0] == "own"]
    # Only someone outside may say who exists besides ourselves.
    mapper = _Mapper([(uid, gid), *others]) if others else None
    try:
        _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER), "a new user namespace")
        _write("setgroups", "deny")
        if mapper is None:
            _write("uid_map", f"{uid} {uid} 1")
            _write("gid_map", f"{gid} {gid} 1")
        else:
            mapper.map()
        _mount([step for step in steps if step[0] != "own"])
    except NotContained:
        raise
    except OSError as error:
        raise NotContained(error.errno, f"{error.strerror}: {error.filename}") from error
    finally:
        if mapper is not None:
            mapper.close()
    # Nobody becomes one of the others, who may have processes on this machine.
    prctl.give_up_capabilities(keep_files=uid == 0, keep_users=not others)
    _scope_signals()


def _write(name: str, text: str, process: str = "self") -> None:
    """Write a file of /proc that says who exists in a user namespace: everyone stays who they are."""
    file = os.open(f"/proc/{process}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


class _Mapper:
    """A process that stays outside of the new namespace and says who exists in it. For root only."""

    def __init__(self, ids: Sequence[tuple[int, int]]) -> None:
        self._ids = ids
        here, self._go = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            code = 1
            try:
                # Nothing is read when the parent has ended.
                code = self._work(parent) if os.read(here, 1) else 0
            except OSError as error:
                code = error.errno or 1
            finally:
                os._exit(min(code, 255))
        os.close(here)

    def _work(self, parent: int) -> int:
        for name, column in (("uid_map", 0), ("gid_map", 1)):
            numbers = dict.fromkeys(row[column] for row in self._ids)
            _write(name, "".join(f"{number} {number} 1\n" for number in numbers), str(parent))
        return 0

    def map(self) -> None:
        """Let it write. Raises NotContained when the kernel refuses."""
        os.write(self._go, b"1")
        code = self._end()
        if code:
            raise NotContained(code, f"who exists in the namespace: {os.strerror(code)}")

    def _end(self) -> int:
        os.close(self._go)
        self._go = -1
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def close(self) -> None:
        """End it, whether it was needed or not."""
        if self._go >= 0:
            self._end()


def _mount(steps: Sequence[Step]) -> None:
    devices = {name: _tree(f"/dev/{name}") for name in _DEVICES if os.path.exists(f"/dev/{name}")}
    trees = {step[1]: _tree(step[2], _AT_SYMLINK_NOFOLLOW) for step in steps if step[0] == "rw"}
    _set(_AT_FDCWD, "/", _AT_RECURSIVE, _MountAttributes(_ATTR_RDONLY, 0, _MS_PRIVATE, 0))
    trees |= {step[1]: _tree(step[2]) for step in steps if step[0] == "ro"}
    hidden = []
    for what, target, source in steps:
        if what in ("ro", "rw"):
            _attach(trees[target], target)
        elif what == "link":
            if not os.path.lexists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.symlink(source, target)
        elif os.path.isdir(target):
            _tmpfs(target, "mode=1777" if what == "tmp" else "mode=0755")
            hidden += [target] if what == "hide" else []
        elif os.path.exists(target):
            _attach(_tree("/dev/null"), target)
    for target in hidden:
        _set(_AT_FDCWD, target, 0, _MountAttributes(_ATTR_RDONLY, 0, 0, 0))
    _own_devices(devices)


def _own_devices(devices: dict[str, int]) -> None:
    _tmpfs("/dev", "mode=0755", _MS_NOSUID)
    for name, tree in devices.items():
        _attach(tree, f"/dev/{name}")
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    for name in ("shm", "pts"):
        os.mkdir(f"/dev/{name}")
    _tmpfs("/dev/shm", "mode=1777")  # noqa: S108 - it is this worker's own
    options = b"newinstance,ptmxmode=0666,mode=0620"
    _check(_libc.mount(b"devpts", b"/dev/pts", b"devpts", ctypes.c_ulong(_MS_NOSUID), options), "/dev/pts")
    _set(_AT_FDCWD, "/dev", 0, _MountAttributes(_ATTR_RDONLY, 0, 0, 0))


def _tree(path: str, more: int = 0) -> int:
    """A copy of what is mounted at `path`, not attached anywhere yet."""
    flags = ctypes.c_uint(_OPEN_TREE_FLAGS | _AT_RECURSIVE | more)
    return _check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), path)


def _attach(tree: int, target: str) -> None:
    if not os.path.exists(target):
        _make_place(target, os.fstat(tree).st_mode)
    place = os.fsencode(target)
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, place, _MOVE_FROM_FD), target)
    os.close(tree)


def _make_place(target: str, mode: int) -> None:
    if mode & 0o170000 == 0o040000:
        os.makedirs(target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _tmpfs(target: str, options: str, flags: int = _MS_NOSUID | _MS_NODEV) -> None:
    place = os.fsencode(target)
    _check(_libc.mount(b"tmpfs", place, b"tmpfs", ctypes.c_ulong(flags), options.encode()), target)


def _set(directory: int, path: str, flags: int, attributes: _MountAttributes) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    place = os.fsencode(path)
    _check(_libc.syscall(_MOUNT_SETATTR, directory, place, flags, ctypes.byref(attributes), size), path)


def _scope_signals() -> None:
    """Where the kernel can (Landlock 6, Linux 6.12): signals reach own processes only.

    The same for sockets with abstract names. Without it nothing is mounted differently, so an older
    kernel is no reason to refuse.
    """
    if _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1) < 6:
        return
    rules = _Ruleset(0, 0, 0x3)
    size = ctypes.c_size_t(ctypes.sizeof(rules))
    ruleset = _check(_libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), size, 0), "landlock")
    _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        hint = " (Linux 5.12 or newer is needed)" if code == errno.ENOSYS else ""
        raise NotContained(code, f"{what}: {os.strerror(code)}{hint}")
    return result


def main(steps: Sequence[Step]) -> None:
    """For the probe: enter `steps`, and write why that is not possible, if it is not."""
    try:
        enter(steps)
    except (OSError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        sys.stdout.write(reason or str(error))
