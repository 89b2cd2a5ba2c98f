"""The one layer around the page: who may read it, and who may change something.

A user of the buttons acts as the user who started the server. Every request passes
`Guard`, those for static files and those that end in an error included. It decides in
this order: the host, the token, where a change comes from; then it adds headers.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import final
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 20
"""Bytes of a form at most."""
BODY_S = 30.0
"""Seconds within which a form comes."""
MOST_WRONG, WRONG_S = 10, 60.0
"""Wrong tokens that are answered at once within so many seconds."""
ACCESS_LOG = logging.getLogger("shoal.ui.access")
"""Requests: method, path without query, status."""

FORM_TOKEN, LOGIN = "form_token", "/login"
FORM = "application/x-www-form-urlencoded"
SAFE = ("GET", "HEAD")

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; frame-ancestors 'none'; form-action 'self'; "
        "base-uri 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not no-referrer: browsers would send `Origin: null` with a form then.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}

_LOGIN_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title} - Shoal</title></head>
<body><main><h1>{title}</h1><p>{text}</p>{form}</main></body></html>
"""
_LOGIN_FORM = """<form method="post" action="{action}">
<p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required></p>
<p><button>Open</button></p></form>"""
_HOW = (
    "Open the link that shoal ui printed where it was started: it ends in "
    "?token=... . Or paste the token of that link here."
)


@final
@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may use the page.

    Args:
        token: Secret of the link, 256 bits as text.
        port: Port of the server.
        hosts: Names and addresses, without port, under which it may be asked for.
        base: Path before all pages, "" or such as "/shoal".
        is_encrypted: Whether it is reached by https.
        encrypted: Hosts that a proxy serves by https, whatever this server does.
    """

    token: str
    port: int
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "[::1]"})
    base: str = ""
    is_encrypted: bool = False
    encrypted: frozenset[str] = frozenset()

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies do not distinguish ports, so the name does."""
        return f"shoal-{self.port}"

    @property
    def session(self) -> str:
        """Value of the cookie; the token cannot be told from it."""
        return self._derived(b"session")

    @property
    def form_token(self) -> str:
        """Text that each form of a page carries."""
        return self._derived(b"form")

    def allows(self, host: str) -> bool:
        """Whether a request may be for a host, from its header.

        Example:
            >>> access = Access(token="x", port=8766)
            >>> [access.allows(host) for host in ("localhost:8766", "evil.example")]
            [True, False]
        """
        name, port = _parts(host)
        port = port or ("443" if self.is_encrypted else "80")
        is_named = name in self.hosts - LOOPBACK
        return name in self.hosts and (port == str(self.port) or is_named)

    def is_own(self, origin: str, host: str) -> bool:
        """Whether an `Origin` is that of the page under this host."""
        scheme = "https" if self.encrypts(host) else "http"
        return origin.lower() == f"{scheme}://{host.lower()}"

    def encrypts(self, host: str) -> bool:
        """Whether the page is reached by https under a host, by its header."""
        return self.is_encrypted or _parts(host)[0] in self.encrypted

    @property
    def names(self) -> list[str]:
        """Names and addresses of the page beside those of loopback."""
        return sorted(self.hosts - LOOPBACK)

    @property
    def scheme(self) -> str:
        """Scheme of its addresses."""
        return "https" if self.is_encrypted else "http"

    def knows(self, token: str) -> bool:
        """Whether a text is the token."""
        return _equal(token, self.token)

    def _derived(self, what: bytes) -> str:
        return hmac.new(self.token.encode(), what, hashlib.sha256).hexdigest()


LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def _parts(host: str) -> tuple[str, str]:
    """Returns name and port of a host, the port empty for none."""
    name, _, port = host.lower().rpartition(":")
    return (host.lower(), "") if not name or host.endswith("]") else (name, port)


@final
@dataclass
class Wrong:
    """Counts wrong tokens, so that they cannot be tried quickly.

    Args:
        clock: Returns monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _times: deque[float] = field(default_factory=deque[float])

    @property
    def are_many(self) -> bool:
        """Whether further ones are refused for a while."""
        since = self.clock() - WRONG_S
        while self._times and self._times[0] < since:
            self._times.popleft()
        return len(self._times) >= MOST_WRONG

    def add(self) -> None:
        """Counts one."""
        self._times.append(self.clock())


@final
class _Refused(Exception):
    """A request is refused.

    Args:
        status: HTTP status.
        title: Title of the page about it.
        text: Sentences about it.
        has_form: Whether a token can be entered.
    """

    def __init__(
        self, status: int, title: str, text: str, *, has_form: bool = False
    ) -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text
        self.has_form = has_form


@final
class Guard:
    """The layer around an application; see this file's beginning.

    Args:
        app: The application. Nothing may be mounted outside of the guard.
        access: Who may use it.
        wrong: Counter of wrong tokens.
    """

    def __init__(
        self, app: ASGIApp, access: Access, wrong: Wrong | None = None
    ) -> None:
        self._app, self._access, self._wrong = app, access, wrong or Wrong()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no sockets: streams are plain GETs
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                added = [
                    (name.encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.encode() not in given
                ]
                message["headers"] = [*message.get("headers", ()), *added]
                path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
                ACCESS_LOG.info("%s %s %s", scope["method"], path, message["status"])
            await send(message)

        try:
            await self._pass(scope, receive, guarded)
        except _Refused as refused:
            await self._refuse(refused, guarded)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        access, headers = self._access, _headers(scope)
        host = headers.get("host", "")
        if not access.allows(host):
            raise _Refused(400, "Unknown host", self._advice(host))
        path = scope["path"]
        if path != access.base and not path.startswith(f"{access.base}/"):
            raise _Refused(404, "Not here", f"The pages are below {access.base}/.")
        scope = {**scope, "path": path.removeprefix(access.base) or "/"}
        is_login = scope["method"] == "POST" and scope["path"] == LOGIN
        if await self._redirected(scope, send):
            return
        is_script = self._is_script(headers)
        if not (is_login or is_script or self._has_session(headers)):
            raise _Refused(401, "Token needed", _HOW, has_form=True)
        if scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        if scope["method"] != "POST":
            raise _Refused(405, "Not a way to ask", "Pages are read, or posted to.")
        if not is_script or "origin" in headers:
            self._check_origin(headers, host)
        body = await _body(receive)
        form = _form(headers, body)
        if is_login:
            await self._log_in(form, scope, send)
            return
        if not is_script and not _equal(form.get(FORM_TOKEN, ""), access.form_token):
            raise _Refused(403, "Refused", "The form is not of this page. Reload it.")
        await self._app(scope, _replayed(body, receive), send)

    def _advice(self, host: str) -> str:
        name, _ = _parts(host)
        if name in LOOPBACK:
            port = self._access.port
            return (
                f"The page is at port {port}, and was asked for at another one. "
                f"Forward the same port: ssh -L {port}:127.0.0.1:{port} HOST."
            )
        return (
            "This address is not one of this server's own. Use the link that shoal "
            "ui printed, or start it with --allow-host NAME."
        )

    def _check_origin(self, headers: Mapping[str, str], host: str) -> None:
        """Refuses a change that another site, or another port, asks for."""
        origin = headers.get("origin")
        if origin is None and headers.get("sec-fetch-site") == "same-origin":
            return
        if origin is not None and self._access.is_own(origin, host):
            return
        text = "The request comes from another page. Press the button on this one."
        if origin is not None and origin.lower() == f"https://{host.lower()}":
            text += (
                " If this is the page, a proxy encrypts it: start shoal ui with "
                "--allow-host https://NAME."
            )
        raise _Refused(403, "Refused", text)

    def _has_session(self, headers: Mapping[str, str]) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(self._access.cookie)
        return found is not None and _equal(found.value, self._access.session)

    def _is_script(self, headers: Mapping[str, str]) -> bool:
        """Whether a header holds the token; a wrong one is refused."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        self._check_token(token.strip())
        return True

    def _check_token(self, token: str) -> None:
        # The right one passes at any time: a page of another site can send wrong ones.
        if self._access.knows(token):
            return
        if self._wrong.are_many:
            raise _Refused(
                429, "Too many wrong tokens", "Wait a minute, or use the right one."
            )
        self._wrong.add()
        raise _Refused(401, "Wrong token", _HOW, has_form=True)

    async def _redirected(self, scope: Scope, send: Send) -> bool:
        """Answers a link with the token: the same page without it."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), True)
        tokens = [value for name, value in pairs if name == "token"]
        if not tokens or scope["method"] not in SAFE:
            return False
        self._check_token(tokens[0])
        rest = [(name, value) for name, value in pairs if name != "token"]
        query = f"?{urlencode(rest)}" if rest else ""
        # One slash only: two would begin the address of another host.
        path = "/" + scope["raw_path"].decode("latin-1").partition("?")[0].lstrip("/\\")
        await self._enter(f"{path}{query}", scope, send)
        return True

    async def _log_in(self, form: Mapping[str, str], scope: Scope, send: Send) -> None:
        given = form.get("token", "").strip()
        link = parse_qsl(urlsplit(given).query) if "token=" in given else []
        self._check_token(dict(link).get("token", given))
        await self._enter(f"{self._access.base}/", scope, send)

    async def _enter(self, place: str, scope: Scope, send: Send) -> None:
        access = self._access
        secure = "; Secure" if access.encrypts(_headers(scope)["host"]) else ""
        cookie = (
            f"{access.cookie}={access.session}; Path={access.base or '/'}; "
            f"HttpOnly; SameSite=Strict{secure}"
        )
        await _answer(send, 303, {"location": place, "set-cookie": cookie}, "")

    async def _refuse(self, refused: _Refused, send: Send) -> None:
        action = f"{self._access.base}{LOGIN}"
        form = _LOGIN_FORM.format(action=action) if refused.has_form else ""
        page = _LOGIN_PAGE.format(title=refused.title, text=refused.text, form=form)
        headers = {"content-type": "text/html; charset=utf-8"}
        if refused.status == 405:
            headers["allow"] = "GET, HEAD, POST"
        await _answer(send, refused.status, headers, page)


def _equal(one: str, other: str) -> bool:
    """Compares texts in constant time."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _headers(scope: Scope) -> dict[str, str]:
    """Returns the headers; of one that is there twice, both, which match nothing."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


async def _body(receive: Receive) -> bytes:
    parts = bytearray()
    try:
        with anyio.fail_after(BODY_S):
            while await _has_more(receive, parts):
                pass
    except TimeoutError:
        text = "The form did not arrive. Send it again."
        raise _Refused(408, "Too slow", text) from None
    return bytes(parts)


async def _has_more(receive: Receive, parts: bytearray) -> bool:
    """Adds the next part of a form; returns whether there are more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _Refused(400, "Broken off", "The form did not arrive.")
    parts += message.get("body", b"")
    if len(parts) > MOST_BYTES:
        raise _Refused(413, "Too large", "A form has 1 MB at most.")
    return message.get("more_body", False)


def _form(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        return {}
    return dict(parse_qsl(body.decode("utf-8", errors="replace"), True))


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives the body again."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(
    send: Send, status: int, headers: Mapping[str, str], text: str
) -> None:
    content = text.encode()
    pairs = {**headers, "content-length": str(len(content))}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in pairs.items()],
        }
    )
    await send({"type": "http.response.body", "body": content})
