"""The addresses that a URL of a configuration may lead to. Pure.

A process makes requests with rights that the writer of a configuration may not have. A cloud's metadata service gives
credentials to every process of its machine; private addresses need an explicit setting.
"""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""AWS, Google, Azure and most others; Alibaba; Azure's wire server; Oracle; AWS and Google over IPv6."""
_SHARED: Final = ipaddress.ip_network("100.64.0.0/10")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_METADATA_NAMES: Final = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data")
_PRIVATE_ENDINGS: Final = (".internal", ".local", ".svc", ".home.arpa", ".lan")
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*")
_SAY_SO: Final = "`private: true` allows it"


def check_url(url: str, *, private: bool) -> None:
    """Raise ValueError for a URL that a configuration may not use, as far as its text shows. `private`: private
    addresses are allowed. A loopback address in digits is always allowed."""
    host = urlsplit(url).hostname or ""
    if not host.isascii() or "%" in host:
        raise ValueError(f"{host!r}: write the host in ASCII letters, without `%`")
    address = _written_out(host)
    if address is not None:
        if not _inner(address).is_loopback:
            check_address(host, address, private=private)
        return
    name = host.rstrip(".")
    if name in _METADATA_NAMES:
        raise ValueError(f"{host} is a cloud's metadata service, which is never asked")
    if not private and name != "localhost" and ("." not in name or name.endswith(_PRIVATE_ENDINGS)):
        raise ValueError(f"{host} is a name of a private network; {_SAY_SO}")


def check_address(host: str, address: Address, *, private: bool) -> None:
    """Raise ValueError for an address of `host` that may not be connected to."""
    inner = _inner(address)
    if inner.is_link_local or inner in _METADATA:
        raise ValueError(f"{host} is {address}: link-local addresses and metadata services are never asked")
    if inner.is_unspecified or inner.is_multicast:
        raise ValueError(f"{host} is {address}: no host has this address")
    if private or (inner.is_loopback and host.rstrip(".") == "localhost"):
        return
    site_local = isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local
    if inner.is_private or site_local or (isinstance(inner, ipaddress.IPv4Address) and inner in _SHARED):
        raise ValueError(f"{host} is {address}, a private address; {_SAY_SO}")


def _written_out(host: str) -> Address | None:
    """The address that a URL has instead of a name, in any of the spellings that connecting takes (`0xA9FEA9FE`)."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    # Parsed like inet_aton: one to four numbers, of which the last fills the remaining bytes.
    numbers = host.rstrip(".").lower().split(".")
    if len(numbers) > 4 or not all(_NUMBER.fullmatch(number) for number in numbers):
        return None
    *first, last = [int(number, _base(number)) for number in numbers]
    if any(number > 0xFF for number in first) or last >= 1 << 8 * (4 - len(first)):
        return None
    return ipaddress.IPv4Address(sum(number << 8 * (3 - at) for at, number in enumerate(first)) + last)


def _base(number: str) -> int:
    if number.startswith("0x"):
        return 16
    return 8 if number.startswith("0") else 10


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address
