"""A TCP proxy before the S3 server, which answers 503 to everything while a file exists.

python -m tests.chaos.s3_proxy 10.0.0.4:8333 10.0.0.4:8334 folder/refuse
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

BODY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>'
HEAD = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


class Proxy:
    """Passes connections on to `target`, or refuses their requests while `refuse` exists."""

    def __init__(self, target: tuple[str, int], refuse: Path) -> None:
        self._target = target
        self._refuse = refuse
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            if self._refuse.exists():
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(HEAD % len(BODY) + (b"" if request.startswith(b"HEAD") else BODY))
                await writer.drain()
            else:
                to_server, from_server = writer, reader
                from_target, to_target = await asyncio.open_connection(*self._target)
                self._writers |= {to_server, to_target}
                await asyncio.gather(self._copy(from_server, to_target), self._copy(from_target, to_server))
                self._writers -= {to_server, to_target}
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def watch(self) -> None:
        """Cut open connections when refusing begins: their next requests would pass."""
        while True:
            await asyncio.sleep(0.1)
            if self._refuse.exists():
                for writer in list(self._writers):
                    writer.transport.abort()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def main() -> None:
    listen, target, refuse = sys.argv[1:]
    proxy = Proxy(_address(target), Path(refuse))
    server = await asyncio.start_server(proxy.serve, *_address(listen))
    async with server:
        await proxy.watch()


if __name__ == "__main__":
    asyncio.run(main())
