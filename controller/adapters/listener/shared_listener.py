"""A frontend's way to the endpoint's listening socket."""

import asyncio
import logging
import socket
from pathlib import Path

from controller.adapters.listener.keeper import Keeper, receive
from controller.adapters.listener.listening_socket import set_write_timeout

log = logging.getLogger(__name__)

HEAD = "head"


class SharedListener:
    """The head process keeps the socket. Each frontend keeps it for the others too, so that a
    frontend which starts again finds the socket although the head has died."""

    def __init__(self, folder: Path, frontend_id: str) -> None:
        self._folder = folder
        self._frontend_id = frontend_id
        self._kept: socket.socket | None = None
        self._keeper: Keeper | None = None

    async def open(self) -> socket.socket:
        self._kept = await asyncio.to_thread(self._find)
        self._keeper = Keeper(self._kept, keeper_path(self._folder, self._frontend_id))
        return self._kept.dup()  # the server closes the one that it got when it drains

    def set_write_timeout(self, write_timeout_s: float) -> None:
        assert self._kept is not None
        set_write_timeout(self._kept, write_timeout_s)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _find(self) -> socket.socket:
        first = keeper_path(self._folder, HEAD)
        others = sorted(path for path in self._folder.glob("*.sock") if path != first)
        for path in (first, *others):
            try:
                return receive(path)
            except OSError as error:
                log.warning("no listening socket from %s: %s", path.stem, error)
        raise ConnectionError(
            "nobody keeps the endpoint's socket any more; llumctl down, then: llumctl up"
        )


def keeper_path(folder: Path, holder: str) -> Path:
    return folder / f"{holder}.sock"
