"""Checks that a port is free before anything is started."""

import errno
import socket

from pointsman_cli.words import CommandError


def claimable(port: int, what: str, option: str) -> None:
    """Raise CommandError when another process listens on this port of the loopback address. Port 0 is always free."""
    with socket.socket() as probe:
        # As servers do: a port whose last connections are still fading is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = "in use by another process" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise CommandError(
                f"port {port}, at which {what} should listen, is {reason}.",
                f"Choose another with {option}, or a free one with {option} 0.",
            ) from error


def is_free(port: int) -> bool:
    """Whether no process listens on this port of the loopback address."""
    try:
        claimable(port, "", "")
    except CommandError:
        return False
    return True


def free_port() -> int:
    """A port of the loopback address that no process listens on, for one that must know it before it starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
