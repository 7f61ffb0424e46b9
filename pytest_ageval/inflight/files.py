"""How many files this process may have open: hundreds of attempts need more than the usual 1024."""

from __future__ import annotations

import resource

#: Files that one attempt has open at most: pipes of its processes, logs, a connection (measured: 10 to 11).
FILES = 16

#: What everything else has open.
SPARE_FILES = 256


def allow_files(number: int) -> None:
    """Raise the soft limit to `number`, as far as the hard one allows. It is never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
