"""A proxy in a process of its own that passes TCP connections on, as over a longer line.

What a client sends arrives at the server later, however much it is; answers go back at once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import cast


class Delay:
    """The proxy's process, which ends with this one too. ``address``: where clients reach the server through it."""

    def __init__(self, target: str, delay_ms: int) -> None:
        command = [sys.executable, "-m", __name__, target, str(delay_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


class _End(asyncio.Protocol):
    """One end of a connection: what comes in goes out at the ``other`` one after ``delay_s``."""

    def __init__(self, delay_s: float, other: asyncio.Transport | None = None) -> None:
        self._delay_s = delay_s
        self.other = other

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self.other.write, data)
        else:
            self.other.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            asyncio.get_running_loop().call_later(self._delay_s, self.other.close)


class _Client(_End):
    """The end towards a client, which is read once the server is connected."""

    def __init__(self, target: tuple[str, int], delay_s: float) -> None:
        super().__init__(delay_s)
        self._target = target

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast("asyncio.Transport", transport)
        client.pause_reading()
        self._connecting = asyncio.create_task(self._connect(client))

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
        elif not self._connecting.done():  # asyncio may begin to read although it was told to wait
            self._connecting.add_done_callback(lambda _: self.data_received(data))

    async def _connect(self, client: asyncio.Transport) -> None:
        try:
            self.other, _ = await asyncio.get_running_loop().create_connection(lambda: _End(0, client), *self._target)
        except OSError:
            client.close()
        else:
            client.resume_reading()


async def _serve(target: str, delay_ms: int) -> None:
    host, _, port = target.rpartition(":")
    loop = asyncio.get_running_loop()
    at = host, int(port)
    server = await loop.create_server(lambda: _Client(at, delay_ms / 1000), "127.0.0.1", 0, backlog=128)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the process that started it ends
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
