"""`pointsman nats users`: makes a password for each login, once, and writes what the server and the services need."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import bcrypt
import yaml

from pointsman_cli.keys import accounts
from pointsman_cli.keys.permissions import AgentIdentity, producer_user
from pointsman_cli.words import CommandError
from pointsman_contracts.parties import AGENT, BUNDLE, SHARED_LOGINS
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import ANY, REST, former_token, token
from pointsman_core.config.stages import STAGE_NAME
from pointsman_core.config.work_queue import QUEUE_NAME

ROUNDS: Final = 4
"""bcrypt's minimum. The passwords are 256 random bits and can't be guessed; more rounds would make a restarted server
spend a tenth of a second on each connection."""
_RANKS: Final = "@ranks="
_MOST_RANKS: Final = 1024
_PASSWORD: Final = "POINTSMAN_NATS_PASSWORD="  # noqa: S105 - the variable's name


def worker(text: str) -> AgentIdentity:
    """Parse `POOL/WORKER`, or `POOL/WORKER@ranks=N` of an engine with so many data-parallel ranks. Raises
    CommandError."""
    written, _, ranks = text.partition(_RANKS)
    pool, slash, name = written.partition("/")
    if not slash or not pool or not name or {pool, name} & {ANY, REST} or (_RANKS in text and not _is_count(ranks)):
        raise CommandError(
            f"--agent {text}: not a pool and a worker.",
            "Write e.g. llama-8b/engine-1, or llama-8b/engine-1@ranks=8 where each of 8 ranks is a worker.",
        )
    return AgentIdentity(pool, name, int(ranks or 1))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_RANKS


def refuse(stages: Sequence[str]) -> None:
    """Raise CommandError for a name that a custom stage can't have."""
    for stage in stages:
        if stage in STAGES or stage in accounts.LOGINS or stage in (AGENT, accounts.SYSTEM):
            raise CommandError(f"--stage {stage}: this is the name of a service or login of Pointsman.")
        if not STAGE_NAME.fullmatch(stage):
            raise CommandError(f"--stage {stage!r}: not the name of a stage.", "It has letters, digits, _ and -.")


def write(
    folder: Path,
    agents: Sequence[AgentIdentity],
    stages: Sequence[str],
    queues: Sequence[str] = (),
    *,
    kubernetes: bool,
) -> list[Path]:
    """Write the server's files and a file of credentials for each login; returns them. Passwords that are there stay.

    Raises CommandError where `refuse` does, and when the folder can't be used.
    """
    refuse(stages)
    for queue in queues:
        if not QUEUE_NAME.fullmatch(queue):
            raise CommandError(
                f"--queue {queue!r}: not the name of a queue.", "It has 1 to 64 letters, digits, _ and -."
            )
    try:
        return _write(folder, agents, stages, queues, kubernetes=kubernetes)
    except OSError as error:
        raise CommandError(f"{error.filename or folder}: {(error.strerror or str(error)).lower()}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{folder}: a file of credentials isn't text.") from error


def _write(
    folder: Path, agents: Sequence[AgentIdentity], stages: Sequence[str], queues: Sequence[str], *, kubernetes: bool
) -> list[Path]:
    credentials = folder / "credentials"
    credentials.mkdir(parents=True, exist_ok=True)
    credentials.chmod(0o700)
    producers = [producer_user(queue) for queue in queues]
    users = (*accounts.LOGINS, accounts.SYSTEM, *(agent.user for agent in agents), *stages, *producers)
    passwords = {user: _password(credentials / _file(user), credentials / _file(user, former_token)) for user in users}
    hashes = {user: _hash(password) for user, password in passwords.items()}
    texts = {
        folder / "permissions.conf": accounts.permissions(stages),
        folder / "users.conf": accounts.users(hashes, agents, stages, queues),
        **{credentials / _file(user): _environment(user, password) for user, password in passwords.items()},
    }
    if kubernetes:
        own = (*accounts.LOGINS, *stages, *producers)
        texts[folder / "secrets.yaml"] = _secrets(
            {path.name: text for path, text in texts.items() if path.parent == folder},
            {user: passwords[user] for user in own},
            {f"{agent.pool}.{agent.worker}": (agent.user, passwords[agent.user]) for agent in agents},
        )
    for path, text in texts.items():
        _keep_to_oneself(path, text)
    return list(texts)


def _file(user: str, encode: Callable[[str], str] = token) -> str:
    return ".".join(encode(part) for part in user.split("/")) + ".env"


def _password(path: Path, former: Path) -> str:
    """The one in the file, or in the file that had its name before, or a new one."""
    lines = [line for each in (path, former) if each.exists() for line in each.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line.startswith(_PASSWORD):
            return line.removeprefix(_PASSWORD)
    return secrets.token_urlsafe(32)


def _hash(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(ROUNDS, prefix=b"2a")).decode()


def _environment(user: str, password: str) -> str:
    return f"POINTSMAN_NATS_USER={user}\n{_PASSWORD}{password}\n"


def _keep_to_oneself(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")


def _secrets(server: dict[str, str], logins: dict[str, str], agents: dict[str, tuple[str, str]]) -> str:
    """Secrets for `kubectl apply`: the server's, one for each login, and one with a settings file for each agent."""
    documents = [_secret("pointsman-nats-users", server)]
    for user, password in logins.items():
        kind = user if user in (*SHARED_LOGINS, BUNDLE) else f"login-{user}"
        documents.append(
            _secret(f"pointsman-nats-{kind}", {"POINTSMAN_NATS_USER": user, "POINTSMAN_NATS_PASSWORD": password})
        )
    if agents:
        files = {
            name: yaml.safe_dump({"nats_user": user, "nats_password": password})
            for name, (user, password) in agents.items()
        }
        documents.append(_secret("pointsman-nats-agents", files))
    return yaml.safe_dump_all(documents, sort_keys=False)


def _secret(name: str, data: dict[str, str]) -> dict[str, object]:
    labels = {"app.kubernetes.io/part-of": "pointsman"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels},
        "type": "Opaque",
        "stringData": data,
    }
