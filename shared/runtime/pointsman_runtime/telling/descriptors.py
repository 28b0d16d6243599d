"""How many files and connections this process may have open at a time."""

import resource

from pointsman_runtime.telling.logs import Log

MOST = 2**20
"""More than this isn't asked for: the kernel's own default of the hard limit."""

_log = Log("process")


def limit() -> int:
    """The soft limit; `MOST` for one that is higher."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def raise_limit() -> None:
    """Raise the soft limit to the hard one. Many systems set it to 1,024 for the sake of programs that use select(2);
    a gateway needs two descriptors for each open request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("descriptors_not_raised", soft=soft, hard=hard, reason=str(error))
