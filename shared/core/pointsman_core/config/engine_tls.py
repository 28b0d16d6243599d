"""How the gateway connects to engines whose URLs begin with https://."""

from pointsman_core.config.section import Section


class EngineTls(Section):
    """Certificates of a pool's engines, and the gateway's own. The files are read by every process that connects to the
    engines, on its host: frontends, metrics-collectors and Envoy. A file that is renewed is read again."""

    ca: str | None = None
    """PEM file with the authorities that engines' certificates are accepted from. Default: those of the system."""
    server_name: str | None = None
    """Name that an engine's certificate must have, and that it is asked for (SNI), e.g. where engines are addressed by
    IP address. Default: the host of its URL."""
    client_certificate: str | None = None
    """PEM file with the gateway's certificate and its key, for engines that ask for one."""
    verify: bool = True
    """`false` accepts any certificate: anything that can take an engine's address then reads requests and answers."""
