"""A server in a process of its own that accepts from the kept socket, as a frontend does; it
answers its name. SIGTERM drains it: it stops accepting and ends.

    python -m tests.unit.endpoint.listening_process FOLDER NAME
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop
from uvicorn import Config, Server

from controller.adapters.connections import KeepAlive
from controller.adapters.listener import SharedListener
from controller.adapters.vllm.endpoint.answers import error_body


class NamedServer(Server):
    """Signals are this module's affair."""

    def handle_exit(self, *_: Any) -> None:
        self.should_exit = True


async def main(folder: str, name: str) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(name)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": name.encode()})

    listening = await SharedListener(Path(folder), name).open()
    http: Any = KeepAlive(1000, error_body)  # uvicorn only calls it
    config = Config(app, http=http, log_level="critical", lifespan="off")
    server = NamedServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.001)
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await serving


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(main(*sys.argv[1:]))
