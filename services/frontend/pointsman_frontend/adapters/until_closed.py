"""Answers without a length for HTTP/1.0, which knows no chunks (RFC 9112, 6.1): they end with the connection."""

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pointsman_runtime.service.http_server import App, Receive, Scope, Send


def without_chunks(app: App, cycle: RequestResponseCycle) -> App:
    """`app` for one request of HTTP/1.0. Its `cycle` closes the connection in the end, and frames what has no length
    in chunks unless it is told of each piece's."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        unframed = False

        async def send_as_is(message: Scope) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                unframed = all(name != b"content-length" for name, _ in message.get("headers", ()))
                if unframed:
                    cycle.chunked_encoding = False
            elif unframed:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_as_is)

    return serve
