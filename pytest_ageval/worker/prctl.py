"""Process attributes that Python has no function for. Linux only."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION = 0x20080522

#: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID: what root is used to with its own files.
_FILE_CAPABILITIES = frozenset((0, 1, 3, 4, 6, 7))
#: Those of them by which a process becomes another user.
_USER_CAPABILITIES = frozenset((6, 7))

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl


def _set(option: int, value: int) -> None:
    if _prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def become_subreaper() -> None:
    """Orphans below this process become its children, in place of init's. Not inherited by forks."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when `parent` (which must have one thread) ends. Ends at once when it already has."""
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def give_up_capabilities(*, keep_files: bool, keep_users: bool = True) -> None:
    """Have no capability any more, and get none from any program that is started later.

    `keep_files` keeps those that concern the modes and owners of files, and with `keep_users` those by
    which root becomes another user.
    """
    keep = _FILE_CAPABILITIES if keep_files else frozenset[int]()
    if not keep_users:
        keep -= _USER_CAPABILITIES
    for number in range(64):
        if number in keep:
            continue
        try:
            _set(_PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # beyond the last one that this kernel has
                raise
            break
    mask = sum(1 << number for number in keep)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    if _libc.capset(header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")
    _set(_PR_SET_NO_NEW_PRIVS, 1)
