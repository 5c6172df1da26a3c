"""Loads the team that is to take the place, beside the one that trades, and hands it over when it is ready.

A model takes its time to load: that happens in a thread, so that no decision is missed for it. Where the clock jumps
nobody is late, and it is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.paper.promotion.check import Promotable
from backend.paper.promotion.request import PromotionRequest, drop_request, read_request
from simulator.errors import UserError


class Promoter:
    """Who is to decide from now on, by the request in the session's `folder`: a `Succession` of it.

    Args:
        prove: checks a request anew and loads the team; raises `UserError` for one that is not to be met.
        refuse: gets why one was not met.
        waits: whether to wait for that.
        done: when the last promotion of the journal was asked for (ms).
    """

    def __init__(
        self,
        folder: Path,
        prove: Callable[[PromotionRequest], tuple[Promotable, LoadedTeam]],
        refuse: Callable[[str], None],
        waits: Callable[[], bool],
        done: int = 0,
    ) -> None:
        self._folder, self._prove, self._refuse, self._waits, self._done = folder, prove, refuse, waits, done
        self._request: PromotionRequest | None = None
        self._thread: threading.Thread | None = None
        self._proof: Promotable | None = None
        self._why_not = ""
        self.team: LoadedTeam | None = None  # the newest that was ready

    def look(self) -> Mapping[str, Any] | None:
        """See `Succession`."""
        if self._thread is None and not self._begin():
            return None
        assert self._thread is not None and self._request is not None
        if self._waits():
            self._thread.join()
        if self._thread.is_alive():
            return None
        if self._proof is None:
            self._refuse(self._why_not)
            self.settled()
            return None
        return {**asdict(self._proof), "asked": self._request.at}

    def settled(self) -> None:
        """See `Succession`."""
        if self._request is not None:
            self._done = self._request.at
        self._thread = self._request = self._proof = None
        drop_request(self._folder)

    def _begin(self) -> bool:
        request = read_request(self._folder)
        if request is None:
            return False
        if request.at and request.at == self._done:  # a kill came between the journal and the file
            drop_request(self._folder)
            return False
        self._request = request
        self._thread = threading.Thread(target=self._load, args=(request,), name="promotion", daemon=True)
        self._thread.start()
        return True

    def _load(self, request: PromotionRequest) -> None:
        try:
            self._proof, self.team = self._prove(request)
        except UserError as error:
            self._why_not = str(error)
        except Exception as error:  # noqa: BLE001  # the session goes on with its team, and its journal says why
            self._why_not = f"{type(error).__name__}: {error}"[:500]
