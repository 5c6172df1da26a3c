"""The door of the page against raw clients: nobody comes in without the token, from another page or by another name."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, expect
from uvicorn.config import LOGGING_CONFIG
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.ui.browsing import PATIENCE, needs_chromium, served, watched
from ui.door import COOKIE, NO_TOKEN, Door

TOKEN = "a-token-of-forty-characters-or-fewer-1"
PATHS = (
    "/",
    "/paper",
    "/_stcore/host-config",
    "/_stcore/upload_file/session/1",
    "/media/picture.png",
    "/static/index.js",
)
WORDS = st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=60)
NOBODY = 65_534  # the account that owns nothing


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real server with a token, and a store that is empty."""
    folder = tmp_path_factory.mktemp("door")
    with served(folder, token=TOKEN) as address:
        yield address
    said = (folder / "log").read_text()
    assert TOKEN not in said and "Traceback" not in said, "a token of the environment is written nowhere"


def asked(url: str, path: str = "/", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """The server's answer to one request, no redirect followed."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    answer.read()
    return answer


def cookie_of(url: str) -> str:
    return str(asked(url, f"/?token={TOKEN}").headers["set-cookie"]).partition(";")[0]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_without_the_token(url: str, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE", "OPTIONS"):
        assert asked(url, path, method).status == 403, method
        assert asked(url, f"{path}?token={TOKEN[:-1]}", method).status == 403, method
        assert asked(url, path, method, Cookie=f"{COOKIE}_{urlsplit(url).port}={TOKEN}").status == 403, method
    assert asked(url, "/_stcore/health").status == 200


def test_the_token_becomes_a_cookie_and_leaves_the_address(url: str) -> None:
    answer = asked(url, f"/paper?session=a+b&token={TOKEN}")
    assert answer.status == 303 and answer.headers["location"] == "/paper?session=a+b"
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie and "HttpOnly" in cookie and "SameSite=lax" in cookie
    assert asked(url, f"//evil.example/?token={TOKEN}").headers["location"].startswith("/evil")
    inside = asked(url, "/", Cookie=cookie.partition(";")[0])
    assert inside.status == 200
    assert inside.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in inside.headers["content-security-policy"]


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:1234", "http://evil.example", "null", "http://localhost", "http://127.0.0.1:1234", "http://["],
)
def test_another_origin_is_refused(url: str, origin: str) -> None:
    cookie = cookie_of(url)
    for path in PATHS:
        assert asked(url, path, Cookie=cookie, Origin=origin).status == 403
    with pytest.raises(InvalidStatus, match="403"):
        connect(stream(url), additional_headers={"Cookie": cookie}, origin=Origin(origin))


def stream(url: str) -> str:
    return f"{url.replace('http', 'ws')}/_stcore/stream"


def test_a_websocket_needs_the_cookie(url: str) -> None:
    for address in (stream(url), f"{stream(url)}?token={TOKEN}"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, origin=Origin(url))
    with connect(stream(url), additional_headers={"Cookie": cookie_of(url)}, origin=Origin(url)) as opened:
        opened.ping().wait(60)


def test_what_another_page_loads_or_frames_is_refused(url: str) -> None:
    cookie = cookie_of(url)
    for site in ("cross-site", "same-site"):
        for mode, dest in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("cors", "empty")):
            answer = asked(url, "/", Cookie=cookie, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode, Sec_Fetch_Dest=dest)
            assert answer.status == 403, (site, mode, dest)
        link = asked(url, "/", Cookie=cookie, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document")
        assert link.status == 200, "a link may lead here"


def test_a_name_of_another_machine_is_refused(url: str) -> None:
    cookie = cookie_of(url)
    for host in ("evil.example", "localhost.evil.example", "", "a:b:c"):
        assert asked(url, "/", Cookie=cookie, Host=host).status in (400, 403), host
    for host in (f"localhost:{urlsplit(url).port}", f"127.0.0.1:{urlsplit(url).port}"):
        assert asked(url, "/", Cookie=cookie, Host=host).status == 200, host


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_another_account_of_this_machine_stays_out(url: str) -> None:
    request = (
        f"exec 3<>/dev/tcp/localhost/{urlsplit(url).port}; printf 'GET / HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3"
    )
    said = subprocess.run(
        ["bash", "-c", f"{request}; head -1 <&3"], user=NOBODY, capture_output=True, text=True, check=True, cwd="/"
    )
    assert " 403 " in said.stdout


def passes(door: Door, kind: str = "http", query: str = "", **headers: str) -> bool:
    """Whether a door lets a request through, without a server."""
    reached: list[bool] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        reached.append(True)

    async def nothing(*_: Any) -> Any:
        return {"type": "http.disconnect"}

    door._app = behind
    scope = {
        "type": kind, "method": "GET", "path": "/", "server": ("localhost", 80),
        "query_string": query.encode("latin-1"),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
    }  # fmt: skip
    asyncio.run(door(scope, nothing, nothing))
    return bool(reached)


async def _none(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


@given(WORDS, st.sampled_from(["http", "websocket"]))
def test_no_word_but_the_token_opens_the_door(word: str, kind: str) -> None:
    door = Door(_none, TOKEN, "localhost")
    assert not passes(door, kind, query=f"token={word}", Host="localhost")
    assert not passes(door, kind, Host="localhost", Cookie=f"{COOKIE}_80={word}")


@given(WORDS)
def test_without_a_token_only_this_page_and_this_machine_pass(word: str) -> None:
    door = Door(_none, "", "localhost")
    assert passes(door, Host="localhost") and passes(door, Host="localhost", Origin="http://localhost")
    assert not passes(door, "websocket", Host="localhost", Origin=f"http://x{word}")
    assert not passes(door, Host=f"x{word}") and not passes(door, Host=f"{word}.example")


def test_the_servers_log_has_no_address() -> None:
    import ui.server

    ui.server.page("localhost", TOKEN)
    assert LOGGING_CONFIG["loggers"]["uvicorn.error"]["level"] == "WARNING"


@pytest.mark.slow
@needs_chromium
def test_a_browser_comes_in_with_the_address_alone(browser: Browser, url: str) -> None:
    page, faults = watched(browser, 1366, url)
    assert (answer := page.goto(url)) is not None and answer.status == 403
    expect(page.get_by_text(NO_TOKEN)).to_be_visible(timeout=PATIENCE)
    faults.clear()  # the refusal itself
    page.goto(f"{url}/?token={TOKEN}")
    expect(page.get_by_text("There are no runs yet")).to_be_visible(timeout=PATIENCE)
    assert TOKEN not in page.url and TOKEN not in page.content()
    assert COOKIE not in page.evaluate("document.cookie") and not faults
    page.goto(f"{url}/jobs")
    expect(page.get_by_text("There are no jobs yet")).to_be_visible(timeout=PATIENCE)
