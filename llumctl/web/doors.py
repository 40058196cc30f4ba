"""Who gets in to the dashboard in a browser: which hosts, which origins, which codes and cookies.

A one-time code stands in the address that the operator opens. It is exchanged for a cookie, so that
the address in the browser's history opens nothing.
"""

import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.api.hosts import is_own_host

CODE_LIFE_S = 300.0
LOGIN_LIFE_S = 12 * 3600.0
MAX_LOGINS = 16
"""The oldest login is forgotten for another."""


def refusal(hosts: Sequence[str], origins: Sequence[str], *, is_socket: bool) -> str:
    """Why a request with these Host and Origin headers is refused; empty: it is not.

    A page whose name was pointed to this machine (DNS rebinding) has a foreign Host, and any other
    page has a foreign Origin. Browsers send an Origin with every web socket, but not with a page.
    """
    if len(hosts) != 1 or len(origins) > 1:
        return "one Host and at most one Origin, please"
    if not is_own_host(hosts[0], ()):
        return "this Host is not the dashboard's: open it as http://127.0.0.1:PORT"
    if origins and origins[0].lower() != f"http://{hosts[0]}".lower():
        return "no page of another origin may use the dashboard"
    if is_socket and not origins:
        return "a web socket needs an Origin"
    return ""


@dataclass(frozen=True, slots=True)
class Login:
    """`room`: the first part of the paths that this login may use. The cookie is limited to it:
    browsers send a cookie to all ports of a host, and so to the servers of other users there."""

    room: str
    secret: str
    until_s: float


class Doors:
    """The code that is good now, and the logins that came of codes. Kept in memory only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._code = ""
        self._code_until_s = 0.0
        self._logins: dict[str, Login] = {}

    def new_code(self) -> str:
        """A code that can be used once, for CODE_LIFE_S; the one before is good no more."""
        self._code = secrets.token_urlsafe(24)
        self._code_until_s = self._clock() + CODE_LIFE_S
        return self._code

    def enter(self, code: str) -> Login | None:
        """Uses up the code; None if it is not the one that is good now."""
        now_s = self._clock()
        if not self._code or not _same(code, self._code):
            return None
        self._code = ""
        if now_s > self._code_until_s:
            return None
        login = Login(secrets.token_hex(8), secrets.token_urlsafe(32), now_s + LOGIN_LIFE_S)
        while len(self._logins) >= MAX_LOGINS:
            del self._logins[next(iter(self._logins))]
        self._logins[login.room] = login
        return login

    def admits(self, room: str, cookie: str) -> bool:
        login = self._logins.get(room)
        return login is not None and _same(cookie, login.secret) and self._clock() < login.until_s


def _same(given: str, kept: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), kept.encode())
