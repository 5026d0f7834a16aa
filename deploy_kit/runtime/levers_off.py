"""Which levers the engine leaves off although the plan asks for them: it says so in its log, and serves on.

Whoever measures such an engine measures the plan without the lever under the lever's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever

_MAX_LINE_BYTES = 8192  # of a line without an end, the last so many are kept
_MAX_SAID = 300
_SAID_BEFORE = 120  # of it before the text: time stamp, rank, class


class LeversOff:
    """Reads the engine's log (`feed`) for the texts by which it says that it leaves a lever off.

    `texts`: lever → texts, any of which in one line says so. `found`: lever → the first such line.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self._texts = {
            lever: [text.encode() for text in said] for lever, said in texts.items() if len(said) > 0
        }
        self._rest = b""
        self.found: dict[str, str] = {}

    def feed(self, chunk: bytes) -> list[str]:
        """Take in a piece of the log; return the levers that were found off by it."""
        if not self._texts:
            return []
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-_MAX_LINE_BYTES:]
        before = set(self.found)
        for line in lines:
            for lever, texts in self._texts.items():
                at = next((line.index(text) for text in texts if text in line), None)
                if lever not in self.found and at is not None:
                    start = max(0, at - _SAID_BEFORE)
                    self.found[lever] = line[start : start + _MAX_SAID].decode(errors="replace").strip()
        return [lever for lever in self.found if lever not in before]


def texts_of(catalog: Catalog, levers: Sequence[str]) -> dict[str, list[str]]:
    """Given the names of levers, return what the engine logs when it leaves each off."""
    return {name: list(catalog.load(Lever, name).off_when_logged) for name in levers}
