"""Access to the pages: a browser on this machine that was given the token, asking for this host by name,
with GET.

The pages show texts of models, which are hostile input: the content security policy forbids every script,
style, frame, form and request that is not the explorer's own, and lets the browser refuse HTML in texts
(trusted types).
"""

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; require-trusted-types-for"
    " 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), clipboard-read=()",
}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
AGAIN = "again"
REFUSED = "Open the address that the terminal shows: it contains the token that this page needs.\n"


@dataclass(frozen=True)
class Access:
    """The token and the host names of a server."""

    host: str = "127.0.0.1"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    cookie: str = "lark-explorer"
    codes: set[str] = field(default_factory=set, repr=False)
    """Tokens that are accepted once."""

    def single_use(self) -> str:
        """A token for the command line of a browser, which other users of the machine can read: the first
        use is the last.
        """
        code = secrets.token_urlsafe(24)
        self.codes.add(code)
        return code

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK or _address(self.host, loopback=True)

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server. A page elsewhere can make its own name resolve to this
        machine (DNS rebinding), but it cannot make the browser send another name. The port may differ: it
        can be forwarded.
        """
        name = _host_name(header)
        if name is None:
            return False
        if name in LOOPBACK:
            return True
        if self.is_loopback:
            return False
        if _address(name):  # cannot be rebound: no name was looked up
            return True
        return name in {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    def allows_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def exchanges(self, token: str) -> bool:
        """Whether a token of an address may be exchanged for the cookie. A single-use token is used up."""
        if token in self.codes:
            self.codes.remove(token)
            return True
        return self.allows_token(token)


def _host_name(header: str) -> str | None:
    """The name in a Host header, without the port; None if it is not one."""
    if header.startswith("["):
        name, closed, port = header[1:].partition("]")
        return name.lower() if closed and (not port or port[1:].isdecimal()) else None
    name, _, port = header.partition(":")
    return name.lower() if name and (not port or port.isdecimal()) else None


def _address(name: str, loopback: bool = False) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback if loopback else True


class Guard:
    """Refuses every request that is not allowed, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._check(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (refused or self.app)(scope, receive, with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """The refusal or the redirection, if there is one."""
        headers = Headers(scope=scope)
        if scope["method"] != "GET":
            return PlainTextResponse(
                "Only GET is allowed: the explorer is read-only.\n",
                HTTPStatus.METHOD_NOT_ALLOWED,
                {"allow": "GET"},
            )
        if len(headers.getlist("host")) != 1 or not self.access.allows_host(headers.get("host", "")):
            return PlainTextResponse(
                "This server does not answer to that host name.\n", HTTPStatus.MISDIRECTED_REQUEST
            )
        # A navigation from elsewhere is only a link: the other site does not see the page.
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Other sites cannot read these pages.\n", HTTPStatus.FORBIDDEN)
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["path"] == "/" and "token" in query:
            return self._exchange(query["token"][-1])
        if self._has_cookie(headers):
            return None
        return self._refuse(scope, AGAIN in query)

    def _exchange(self, token: str) -> Response:
        """The token of the address becomes a cookie that no script can read, and leaves the address bar."""
        if not self.access.exchanges(token):
            return PlainTextResponse(f"This token is not valid (any more). {REFUSED}", HTTPStatus.FORBIDDEN)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER, {"cache-control": "no-store"})
        response.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict", path="/")
        return response

    def _has_cookie(self, headers: Headers) -> bool:
        for header in headers.getlist("cookie"):
            token = cookie_parser(header).get(self.access.cookie)
            if token is not None and self.access.allows_token(token):
                return True
        return False

    @staticmethod
    def _refuse(scope: Scope, again: bool) -> Response:
        """Refuse without a cookie. If the address was opened from another site (a terminal in a browser),
        the browser holds the cookie back once: the page loads itself again, and that request has it.
        """
        headers = {"cache-control": "no-store"}
        if scope["path"] != "/" or again:
            return PlainTextResponse(REFUSED, HTTPStatus.FORBIDDEN, headers)
        refresh = f'<meta http-equiv="refresh" content="0; url=/?{AGAIN}">'
        page = f'<!doctype html><meta charset="utf-8">{refresh}<title>LARK</title>{REFUSED}'
        return Response(page, HTTPStatus.FORBIDDEN, headers, "text/html; charset=utf-8")
