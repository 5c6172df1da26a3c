"""The page's server, as `cryptosentinel ui` starts it.

What takes seconds is done before it answers, so that a first visit does not wait for it: libraries are imported, the
first figure is drawn, and the table of runs and the newest run are read.
"""

from __future__ import annotations

import ast
import errno
import gc
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from starlette.middleware import Middleware
from streamlit.web.server.starlette import App
from uvicorn.config import LOGGING_CONFIG

from simulator.errors import UserError
from ui.door import Door

HERE = Path(__file__).parent
_STORE_SECONDS = 8.0  # for which the server waits for what is in the store; a store that answers late is read beside

_LATER = ("paper",)  # pages that need the libraries of models and exchanges, which take long: they wait for their visit
# What is imported when a page is first drawn; a version of Streamlit that has not one of them needs it not.
_BEHIND = ("pyarrow.pandas_compat", "streamlit.emojis", "streamlit.material_icon_names")
# After each drawing Streamlit looks through all objects of the process, which are some millions here, and answers
# nobody meanwhile; pages that follow something are drawn each second. Python's own collector does what is needed.
_OPTIONS = {
    "runner.postScriptGC": False,
    # As in `.streamlit/config.toml`, which Streamlit reads in the repository only: nothing leaves this machine, and no
    # library's files are watched, which would import all of them.
    "browser.gatherUsageStats": False,
    "server.fileWatcherType": "none",
    "server.enableXsrfProtection": True,
    "server.headless": True,
    "logger.hideWelcomeMessage": True,  # it would print the address without its token
    "client.toolbarMode": "viewer",
    "client.showErrorLinks": False,
    "theme.light.primaryColor": "#0072b2",
    "theme.dark.primaryColor": "#56b4e9",
}

_log = logging.getLogger(__name__)


def check_port(host: str, port: int) -> None:
    """Raise `UserError` where another program answers at this address, before seconds are spent."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind(address)
        except OSError as error:
            other = f"choose another port, as --port {port + 1 if port < 65_535 else 8501}"
            if error.errno == errno.EADDRINUSE:
                other = f"another program uses it, perhaps another page: end that one, or {other}"
            raise UserError(f"the page cannot answer at {host}, port {port} ({error.strerror}): {other}") from None


def serve(host: str, port: int, token: str, ready: Callable[[], None]) -> None:
    """Serve the page at an address of this machine until a signal ends it, behind a door that `token` opens; empty:
    that is open to anyone. `ready` is called when all is read and the address is about to be opened."""
    check_port(host, port)
    import_all()
    reading = threading.Thread(target=_read, name="what the first visit needs", daemon=True)
    reading.start()
    reading.join(_STORE_SECONDS)
    gc.collect()
    gc.freeze()  # what is there now stays, so that the collector need not look at it again
    sys.argv = [str(HERE / "server.py")]  # Streamlit takes the rest for the page's arguments
    app = page(host, token)
    ready()
    app.run(config={**_OPTIONS, "server.address": host, "server.port": port})


def page(host: str, token: str) -> App:
    """The page as an ASGI application behind its door."""
    # Uvicorn logs the address of each WebSocket, and an address may hold the token.
    LOGGING_CONFIG["loggers"]["uvicorn.error"]["level"] = "WARNING"
    return App(HERE / "app.py", middleware=[Middleware(Door, token=token, host=host)])


def import_all() -> None:
    """Import what a first visit needs."""
    for name in [*needed_modules(), *filter(find_spec, _BEHIND)]:
        import_module(name)


def needed_modules() -> list[str]:
    """All that the pages import but those of `_LATER`, in order of name."""
    paths = [path for path in (HERE / "views").glob("*.py") if path.stem not in _LATER]
    return sorted({name for path in paths for name in _imported(path)})


def _imported(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            yield node.module


def _read() -> None:
    """What the first visit shows, as far as it can be had: what is wrong with the store is said on the page."""
    from simulator.errors import UserError
    from ui.parts.ready import prepare

    try:
        prepare()
    except UserError as error:
        _log.info("the page begins without its store: %s", error)
