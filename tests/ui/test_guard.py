"""The guard as a table of raw requests, against a real server on loopback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from starlette.routing import Route

from shoal.runs.catalogue import run_ids
from shoal.runs.control import read_stop
from shoal.ui import app as pages
from shoal.ui import guard, server
from shoal.ui.guard import HEADERS, MOST_BYTES, MOST_WRONG, Access, Wrong
from tests.ui.conftest import TOKEN, Served, Serving, make_run


@pytest.fixture
def served(serving: Serving, root: Path) -> Served:
    make_run(root, "fish")
    return serving.start(root)


def target(path: str, root: Path) -> str:
    """A route with a run that is there."""
    [run] = run_ids(root)
    named = {"{root}": "runs", "{run}": run, "{name}": "plan.json"}
    for name, value in named.items():
        path = path.replace(name, value)
    return path


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1",
     "localhost.evil.example:{port}", "127.0.0.1:{port}.evil.example", "[::1",
     "127.0.0.1:{port}, evil.example", "0.0.0.0:{port}"],
)  # fmt: skip
def test_a_foreign_host_is_refused_everywhere(host: str, served: Served, root: Path):
    given = {"Host": host.format(port=served.port)}
    for path in [*pages.READ, *pages.CHANGE, "/static/page.css", "/help", "/none"]:
        assert served.ask(target(path, root), headers=given).status == 400
    link = f"/?token={TOKEN}"
    assert served.ask(link, headers=given, has_cookie=False).status == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_loopback_has_several_names(host: str, served: Served):
    assert served.ask("/", headers={"Host": f"{host}:{served.port}"}).status == 200


def test_nothing_is_shown_without_a_token(served: Served, root: Path):
    for path in [*pages.READ, "/static/page.css", "/static/none", "/help", "/none"]:
        answer = served.ask(target(path, root), has_cookie=False)
        assert answer.status == 401
        assert "shoal ui printed" in answer.text
        assert "fish" not in answer.text
    for cookie in ("", "x", f"shoal-{served.port}=", f"shoal-{served.port}={TOKEN}",
                   f"shoal-1={served.site.access.session}"):  # fmt: skip
        answer = served.ask("/", headers={"Cookie": cookie}, has_cookie=False)
        assert answer.status == 401


def test_the_link_gives_a_cookie_and_loses_its_token(served: Served):
    answer = served.ask(f"/?q=a+b&token={TOKEN}&state=failed", has_cookie=False)
    assert answer.status == 303
    assert answer.headers["location"] == "/?q=a+b&state=failed"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"shoal-{served.port}=")
    assert "HttpOnly; SameSite=Strict" in cookie
    assert TOKEN not in cookie
    given = {"Cookie": cookie.partition(";")[0]}
    assert served.ask("/", headers=given, has_cookie=False).status == 200


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "///x", "/\\/x"])
def test_the_link_redirects_to_this_page_only(path: str, served: Served):
    answer = served.ask(f"{path}?token={TOKEN}", has_cookie=False)
    if answer.status == 303:
        assert answer.headers["location"].startswith("/")
        assert answer.headers["location"][1:2] not in ("/", "\\")


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], f"{TOKEN}x", "\u00fc"])
def test_wrong_tokens(token: str, served: Served):
    for headers in ({}, {"Authorization": f"Bearer {token.encode().hex()}"}):
        path = "/" if headers else f"/?token={token.encode().hex()}"
        answer = served.ask(path, headers=headers, has_cookie=False)
        assert answer.status == 401
        assert "set-cookie" not in answer.headers
    assert served.post("/login", {"token": token}).status == 401


def test_many_wrong_tokens_are_slowed_down(served: Served):
    for _ in range(MOST_WRONG):
        assert served.ask("/?token=x", has_cookie=False).status == 401
    assert served.ask("/?token=x", has_cookie=False).status == 429
    assert served.post("/login", {"token": "x"}).status == 429
    # A page of another site can send wrong ones: they lock nobody out.
    assert served.ask(f"/?token={TOKEN}", has_cookie=False).status == 303
    assert served.post("/login", {"token": TOKEN}).status == 303
    assert served.ask("/").status == 200


def test_wrong_tokens_are_forgotten():
    now = 0.0
    wrong = Wrong(clock=lambda: now)
    for _ in range(MOST_WRONG):
        wrong.add()
    assert wrong.are_many
    now = 61.0
    assert not wrong.are_many


@pytest.mark.parametrize("given", [TOKEN, f" {TOKEN}\n", f"http://x/?token={TOKEN}"])
def test_a_pasted_token_opens_the_page(given: str, served: Served):
    answer = served.post("/login", {"token": given})
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_a_script_has_a_header(served: Served, root: Path):
    given = {"Authorization": f"Bearer {TOKEN}", "Cookie": ""}
    assert served.ask("/", headers=given, has_cookie=False).status == 200
    stop = target("/runs/{root}/{run}/stop", root)
    answer = served.ask(stop, method="POST", headers=given, has_cookie=False)
    assert answer.status == 303
    foreign = {**given, "Origin": "http://evil.example"}
    answer = served.ask(stop, method="POST", headers=foreign, has_cookie=False)
    assert answer.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"}, {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://localhost:{port}"}, {"Origin": "http://127.0.0.1"},
        {"Origin": "", "Sec-Fetch-Site": "same-site"},
        {"Origin": "", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-origin"},
    ],
)  # fmt: skip
def test_changes_from_elsewhere_do_nothing(
    headers: dict[str, str], serving: Serving, root: Path
):
    run = make_run(root, "fish", status="running")
    served = serving.start(root)
    given = {k: v.format(port=served.port) for k, v in headers.items()}
    form = {"run": f"runs/{run.id}", "sure": "yes"}
    for path in [*pages.CHANGE, "/login"]:
        answer = served.post(target(path, root), {**form, "token": TOKEN}, given)
        assert answer.status == 403
    assert run_ids(root) == [run.id]
    assert read_stop(run.folder) is None


@pytest.mark.parametrize("token", ["", "x"])
def test_changes_without_the_token_of_the_form_do_nothing(
    token: str, serving: Serving, root: Path
):
    run = make_run(root, "fish", status="running")
    served = serving.start(root)
    for path in pages.CHANGE:
        form = {"form_token": token, "run": f"runs/{run.id}", "sure": "yes"}
        assert served.post(target(path, root), form).status == 403
    assert run_ids(root) == [run.id]
    assert read_stop(run.folder) is None


def test_a_form_of_the_page_itself_passes(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    served = serving.start(root)
    stop = target("/runs/{root}/{run}/stop", root)
    given = {"Origin": "", "Sec-Fetch-Site": "same-origin"}
    for headers in ({}, given):
        assert served.post(stop, headers=headers).status == 303
    asked = read_stop(run.folder)
    assert asked is not None
    assert "(shoal ui, process " in asked.by


def test_actions_are_posted_only(served: Served, root: Path):
    for path in pages.CHANGE:
        assert served.ask(target(path, root)).status == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        for path in [*pages.READ, *pages.CHANGE]:
            assert served.ask(target(path, root), method=method).status == 405


def test_the_table_of_routes_is_the_application(served: Served):
    """A new route cannot be forgotten by these tests: all are in two tables."""
    inner = pages.make_app(served.site)._app  # type: ignore[attr-defined]
    assert all(isinstance(route, Route) for route in inner.routes)
    known = {*pages.READ, *pages.CHANGE, "/help", "/static/{name}"}
    assert {route.path for route in inner.routes} == known
    posted = {r.path for r in inner.routes if "POST" in r.methods}
    assert posted == pages.CHANGE.keys()


BAD = [
    "..", ".", "%2e%2e", "%2e%2e%2f%2e%2e", "..%2f..%2fetc", "%2fetc%2fpasswd",
    "s3:%2f%2fevil%2fx", "http:%2f%2fevil%2fx", "file:%2f%2f%2fetc", "memory:%2f%2fx",
    "%00", "2026", "~", "*", "%ff", "2026-01-01-fish", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_ids_are_compared_with_known_runs(bad: str, served: Served, root: Path):
    (root.parent / "secret").mkdir()
    (root.parent / "secret" / "events").mkdir()
    [run] = run_ids(root)
    for path in [*pages.READ, *pages.CHANGE]:
        for asked in (
            path.replace("{run}", bad).replace("{root}", "runs"),
            path.replace("{root}", bad).replace("{run}", run),
        ):
            if asked == path:
                continue
            asked = asked.replace("{name}", "plan.json")
            is_change = path in pages.CHANGE
            answer = served.post(asked) if is_change else served.ask(asked)
            assert answer.status in (404, 405)
    for name in ("..%2f..%2fsecret", "%2e%2e", "writer.lock", "control%2fstop.json"):
        assert served.ask(f"/runs/runs/{run}/files/{name}").status == 404
        assert served.ask(f"/static/{name}").status == 404
    form = {"run": f"runs/{bad}", "sure": "yes"}
    assert served.post("/remove", form).status == 303
    assert run_ids(root) == [run]


def test_headers_are_on_every_answer(served: Served):
    for path in ("/", "/none", "/static/page.css", "/runs/x/y"):
        for has_cookie in (True, False):
            answer = served.ask(path, has_cookie=has_cookie)
            for name, value in HEADERS.items():
                assert answer.headers[name] == value


def test_large_forms_are_refused(served: Served, root: Path):
    stop = target("/runs/{root}/{run}/stop", root)
    assert served.post(stop, {"x": "y" * MOST_BYTES}).status == 413


def test_a_socket_of_any_origin_is_refused(served: Served):
    answer = served.ask(
        "/",
        headers={
            "Connection": "Upgrade", "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x" * 22 + "==",
            "Origin": "http://evil.example",
        },
    )  # fmt: skip
    assert answer.status != 101


def test_bytes_that_are_no_request(served: Served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as link:
        link.sendall(b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert b" 400 " in link.recv(4096)


def test_a_page_for_reading_has_no_actions(serving: Serving, root: Path):
    run = make_run(root, "fish", status="running")
    served = serving.start(root, is_read_only=True)
    for path in ("/", f"/runs/runs/{run.id}"):
        text = served.ask(path).text
        assert "Stop the run" not in text
        assert "Remove chosen" not in text
    for path in pages.CHANGE:
        form = {"sure": "yes", "run": f"runs/{run.id}"}
        assert served.post(target(path, root), form).status == 403
    assert read_stop(run.folder) is None


def test_a_proxy_that_encrypts_is_named(serving: Serving, root: Path):
    make_run(root, "fish")
    named = frozenset({"page.example"})
    served = serving.start(root, hosts=named, encrypted=named)
    given = {"Host": "page.example", "Origin": "https://page.example"}
    answer = served.post("/login", {"token": TOKEN}, given)
    assert answer.status == 303
    assert answer.headers["set-cookie"].endswith("; Secure")
    plain = {**given, "Origin": "http://page.example"}
    assert served.post("/login", {"token": TOKEN}, plain).status == 403
    own = served.post("/login", {"token": TOKEN})  # of this machine, without it
    assert own.status == 303
    assert "Secure" not in own.headers["set-cookie"]


def test_a_proxy_that_is_not_known_to_encrypt(serving: Serving, root: Path):
    served = serving.start(root, hosts=frozenset({"page.example"}))
    given = {"Host": "page.example", "Origin": "https://page.example"}
    answer = served.post("/login", {"token": TOKEN}, given)
    assert answer.status == 403
    assert "--allow-host https://NAME" in answer.text


def test_another_port_of_loopback_is_explained(served: Served):
    answer = served.ask("/", headers={"Host": "localhost:1"})
    assert answer.status == 400
    assert f"ssh -L {served.port}:127.0.0.1:{served.port}" in answer.text


def test_a_form_that_does_not_come(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "BODY_S", 0.01)
    head = (
        f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        f"Origin: http://127.0.0.1:{served.port}\r\nContent-Length: 5\r\n\r\nx"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as link:
        link.sendall(head.encode())
        assert b" 408 " in link.recv(4096)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_a_request_that_does_not_come(
    sent: bytes, served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "REQUEST_S", 0.01)
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as link:
        link.sendall(sent)
        assert not link.recv(4096)


def test_a_second_request_that_does_not_come(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    whole = f"GET /none HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as link:
        link.sendall(whole)
        assert b" 401 " in link.recv(65536)
        monkeypatch.setattr(server, "REQUEST_S", 0.01)
        link.sendall(b"GET / HTTP/1.1\r\n")
        while link.recv(65536):
            pass


def test_requests_are_told_without_their_query(
    served: Served, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", guard.ACCESS_LOG.name)
    served.ask(f"/?q=fish&token={TOKEN}", has_cookie=False)
    served.ask("/none/%0a")
    assert caplog.messages == ["GET / 303", "GET /none/%0a 404"]


def test_names_behind_a_proxy_have_no_port_to_check():
    hosts = frozenset({"127.0.0.1", "shoal.example"})
    access = Access(token="x", port=8766, hosts=hosts)
    assert access.allows("shoal.example")
    assert access.allows("shoal.example:443")
    assert not access.allows("other.example")
    assert not access.allows("127.0.0.1")
