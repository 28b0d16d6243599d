"""The only place where a NATS subject is spelt.

Grammar: `pm.<kind>.<domain>.<message>.v<major>[.<route>…]`. A token is `[A-Za-z0-9_/-]+`. Any other byte of a name is
written as `=` and two hexadecimal digits, as in `llama-3=2E1-8b`, so that names from users can neither break a subject
nor match a wildcard. NATS allows `=` and `/` in subjects and in the keys of buckets.

Up to the first release, such text was `b32-` and its lower-case base32 form. Stored tokens of that form are still read.
"""

import base64
import binascii
import re
from typing import Final

from pointsman_contracts.message import Message
from pointsman_contracts.services import STAGES

ROOT: Final = "pm"
ANY: Final = "*"
"""As a route token: any one value. For subscriptions only."""
REST: Final = ">"
"""As the last route token: everything that follows. For subscriptions only."""
EVENT_SUBJECTS: Final = f"{ROOT}.evt.{REST}"
OWED_SUBJECTS: Final = f"{ROOT}.owed.{REST}"
"""Where an event is sent again that the stream may have missed: only the stream listens there, and it stores the event
under its own subject. Subscribers had it when it was published."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_/-]+")
_OTHER: Final = re.compile(rb"[^A-Za-z0-9_/-]")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")
_FORMER: Final = "b32-"
_EMPTY: Final = "="


def token(text: str) -> str:
    """Encode any text as one subject token. Injective; `plain(token(x)) == x`."""
    if _PLAIN.fullmatch(text) and not text.startswith(_FORMER):
        return text
    data = _OTHER.sub(lambda other: b"=%02X" % other[0][0], text.encode("utf-8", "surrogatepass"))
    # The first letter of what only looks like a former token is escaped.
    return (data.replace(b"b", b"=62", 1) if text.startswith(_FORMER) else data).decode("ascii") or _EMPTY


def former_token(text: str) -> str:
    """The token that was made of this text before `=` escaped; for names that were stored under it."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", text) and not text.startswith(_FORMER):
        return text
    return _FORMER + base64.b32encode(text.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("=").lower()


def plain(subject_token: str) -> str:
    """The text that `token` or `former_token` encoded. Raises ValueError on a token that neither can have produced."""
    try:
        if subject_token.startswith(_FORMER):
            body = subject_token[len(_FORMER) :].upper()
            return base64.b32decode(body + "=" * (-len(body) % 8)).decode("utf-8", "surrogatepass")
        if "=" not in subject_token:
            return subject_token
        escaped = _ESCAPED.sub(lambda byte: bytes((int(byte[1], 16),)), subject_token.encode("ascii"))
        text = "" if subject_token == _EMPTY else escaped.decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(f"{subject_token!r} is not an encoded subject token") from error
    if token(text) != subject_token:
        raise ValueError(f"{subject_token!r} is not an encoded subject token")
    return text


def subject(message: type[Message], *route: str) -> str:
    """The subject of `message` for this route.

    `route` has one text for each name in the message's address; `ANY` stands for any one value, `REST`
    as the last one for all that follow. Raises ValueError when the number of tokens doesn't fit.
    """
    address = message.address
    if address.bucket:
        return f"$KV.{address.bucket}.{kv_key(message, *route)}"
    return f"{ROOT}.{_join(f'{address.kind}.{address.domain}.{address.name}.v{address.version}', address.route, route)}"


def owed_subject(event_subject: str) -> str:
    """Where the event of this subject is sent again, for the stream alone."""
    return f"{ROOT}.owed{event_subject[len(ROOT) + len('.evt') :]}"


def kv_key(message: type[Message], *route: str) -> str:
    """The key of `message` in its bucket. Raises ValueError when the number of tokens doesn't fit."""
    return _join("", message.address.route, route)


def stage_subject(stage: str, *route: str) -> str:
    """The queue-group subject of a stage, e.g. `pm.rpc.request.schedule.v1.<pool>`.

    The verb of a custom stage is its name.
    """
    service = STAGES.get(stage)
    verb, names = (token(stage), ()) if service is None else (service.verb, service.route)
    return f"{ROOT}.{_join(f'rpc.request.{verb}.v1', names, route)}"


def direct_subject(stage: str, instance: str, *route: str) -> str:
    """The subject that only one replica of a stage listens to.

    Forwarders use it while another replica of the stage is silent, because NATS goes on dealing messages
    to a stopped member of a queue group.
    """
    return f"{stage_subject(stage, *route)}.{instance if instance == ANY else token(instance)}"


def inbox(user: str) -> str:
    """Where answers for a login arrive, on subjects of its own below this one; a service without one uses its name."""
    return f"_INBOX.{token(user)}"


def _join(stem: str, names: tuple[str, ...], route: tuple[str, ...]) -> str:
    open_ended = bool(route) and route[-1] == REST
    if len(route) > len(names) if open_ended else len(route) != len(names):
        expected = ", ".join(names) or "no route"
        raise ValueError(f"{stem or 'the key'} takes {expected}; got {len(route)} route token(s): {route!r}")
    tokens = [part if part in (ANY, REST) else token(part) for part in route]
    return ".".join((stem, *tokens) if stem else tokens)
