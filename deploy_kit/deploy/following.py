"""What shows a run on stderr while it goes on: the start and the end of its live part."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.progress import Progress

from deploy_kit.output import stderr_console


class Following:
    """A context: the live display (on a terminal only) runs while it is open."""

    def __init__(self) -> None:
        self._console = stderr_console()
        self._live: Live | Progress | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self._console.print(f"[{elapsed:4.0f} s] {text}", markup=False, soft_wrap=True)
