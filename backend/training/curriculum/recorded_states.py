"""States that a paper session recorded: at which closes a team decided, and what its account held there.

A training that names them (`training.states`) starts its queries from these states in place of drawn ones. The file
lies beside the bars that the session saw, and says by their hash which those are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.documents import read_document
from simulator.errors import DataError
from simulator.files import write_whole
from simulator.market.market import Market
from simulator.market.timeframes import format_time

_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class RecordedStates:
    """What the session `session` held when it decided.

    Attributes:
        data_hash: the content hash of the market that the states are of.
        held: by the open time (ms) of the bar at whose close was decided, the exposure of each symbol, as a fraction of
            the equity; a symbol that is not named is not held.
    """

    session: str
    data_hash: str
    held: Mapping[int, Mapping[str, float]]

    def bars_in(self, market: Market) -> dict[int, dict[str, float]]:
        """The exposure of every symbol of `market` by bar. Raises `DataError` for states of another market."""
        if market.content_hash != self.data_hash:
            raise DataError(
                f"the states of session {self.session} are of other bars than those of {market.source}: train with "
                f"`train --from-paper {self.session}`, which brings both"
            )
        first, bars = int(market.open_time[0]), {}
        for time, exposures in self.held.items():
            bar, rest = divmod(time - first, market.interval)
            if rest or not 0 <= bar < len(market) or not exposures.keys() <= set(market.symbols):
                raise DataError(
                    f"session {self.session}: its state at {format_time(time)} is of no bar and symbol of "
                    f"{market.source}; make the data again with `train --from-paper {self.session}`"
                )
            bars[bar] = {symbol: exposures.get(symbol, 0.0) for symbol in market.symbols}
        return bars

    def write(self, path: Path) -> None:
        """Write them to `path` in one step."""
        states = [[time, dict(exposures)] for time, exposures in sorted(self.held.items())]
        document = {"session": self.session, "data_hash": self.data_hash, "states": states}
        write_whole(path, json.dumps(document) + "\n")


def read_states(path: Path) -> RecordedStates:
    """The states in a file. Raises `DataError` for one that is not there or is something else."""
    try:
        document = read_document(path, _MOST_BYTES)
        held = {
            int(time): {str(symbol): float(exposure) for symbol, exposure in exposures.items()}
            for time, exposures in document["states"]
        }
        if not all(math.isfinite(one) for exposures in held.values() for one in exposures.values()):
            raise ValueError("an exposure is not a number")
        return RecordedStates(str(document["session"]), str(document["data_hash"]), held)
    except FileNotFoundError:
        raise DataError(
            f"training.states = {path}: there is no such file; `train --from-paper SESSION` makes it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"training.states = {path}: these are not recorded states ({error}); make them again with "
            "`train --from-paper SESSION`"
        ) from error
