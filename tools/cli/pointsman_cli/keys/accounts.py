"""The server's accounts as text: permissions, which are no secret, and users with hashed passwords. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence

from pointsman_cli.keys.permissions import (
    AgentIdentity,
    Permissions,
    of_agent,
    of_producer,
    of_service,
    of_stage,
    producer_user,
)
from pointsman_contracts.parties import AUDITOR, BUNDLE, OPERATOR, SHARED_LOGINS

LOGINS = (*SHARED_LOGINS, BUNDLE, OPERATOR, AUDITOR)
"""The logins of every gateway."""
SYSTEM = "system"
"""The login of the server's own account, for those who look after the server."""
HEADING = (
    "# Written by `pointsman nats permissions`; every subject follows from contracts/pointsman_contracts/parties.py.\n"
)


def permissions(stages: Sequence[str] = ()) -> str:
    """`permissions.conf`: a variable for each login, in a gateway with these foreign stages."""
    parts = [f"{_variable(login)}: {_block(of_service(login, stages))}\n" for login in LOGINS]
    return "\n".join([HEADING, *parts])


def users(
    hashes: Mapping[str, str],
    agents: Iterable[AgentIdentity] = (),
    stages: Iterable[str] = (),
    queues: Iterable[str] = (),
) -> str:
    """`users.conf`: who may log in, with bcrypt hashes by user. It includes `permissions.conf` beside it."""
    lines = [f"{_login(login, hashes)}, permissions: ${_variable(login)}}}" for login in LOGINS]
    own = [(agent.user, of_agent(agent)) for agent in agents] + [(stage, of_stage(stage)) for stage in stages]
    own += [(producer_user(queue), of_producer(queue)) for queue in queues]
    lines += [f"{_login(user, hashes)}, permissions: {_block(allowed, '      ')}}}" for user, allowed in own]
    return "\n".join(
        [
            'include "permissions.conf"',
            "",
            "accounts: {",
            "  POINTSMAN: {",
            "    jetstream: enabled",
            "    users: [",
            *(f"      {line}" for line in lines),
            "    ]",
            "  }",
            f"  SYSTEM: {{users: [{_login(SYSTEM, hashes)}}}]}}",
            "}",
            "system_account: SYSTEM",
            "",
        ]
    )


def _login(user: str, hashes: Mapping[str, str]) -> str:
    return f"{{user: {json.dumps(user)}, password: {json.dumps(hashes[user])}"


def _variable(login: str) -> str:
    return f"{login.upper().replace('-', '_')}_PERMISSIONS"


def _block(allowed: Permissions, indent: str = "") -> str:
    lines = [
        "{",
        *_subjects("publish", allowed.publish),
        *_subjects("subscribe", allowed.subscribe),
        *(('  allow_responses: {max: 1, expires: "2m"}',) if allowed.answers else ()),
        "}",
    ]
    return f"\n{indent}".join(lines)


def _subjects(what: str, subjects: tuple[str, ...]) -> list[str]:
    # An empty list would allow everything.
    if not subjects:
        return [f'  {what}: {{deny: [">"]}}']
    return [f"  {what}: {{allow: [", *(f"    {json.dumps(subject)}" for subject in subjects), "  ]}"]
