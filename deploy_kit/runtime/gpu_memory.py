"""GPU memory in use, as one of the signs of life. Reads only, never waits: a broken driver may not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

INTERVAL_SECONDS = 2.0
# An answer older than this says nothing about now.
STALE_SECONDS = 15.0


class GpuMemory:
    """Asks NVML in a thread of its own, from the first `read` on. Where there is no GPU nothing is loaded.

    `query` returns the bytes in use over all GPUs that this container sees (other containers' use of the same
    GPUs included: NVML cannot tell processes of another process-id namespace apart).
    """

    def __init__(self, gpus: int, query: Callable[[], int] | None = None) -> None:
        self._gpus = gpus
        self._query = query
        self._bytes: int | None = None
        self._asked_at = time.monotonic()
        self._unknown = "NVML has not answered yet" if gpus else "no NVIDIA GPU here"
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def unknown(self) -> str:
        """Why `read` last returned None."""
        return self._unknown

    def read(self) -> int | None:
        """Return the bytes in use, at most `STALE_SECONDS` old; None when they are not known (`unknown`)."""
        if not self._gpus:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="gpu-memory", daemon=True)
            self._thread.start()
        quiet = time.monotonic() - self._asked_at
        if quiet > STALE_SECONDS and not self._over.is_set():
            self._bytes, self._unknown = None, f"NVML has not answered for {quiet:.0f} s"
        return self._bytes

    def close(self) -> None:
        """Stop asking."""
        self._over.set()

    def _ask(self) -> None:
        try:
            query = self._query or _open_nvml()
            while not self._over.is_set():
                self._bytes = query()
                self._asked_at = time.monotonic()
                self._over.wait(INTERVAL_SECONDS)
        except Exception as error:  # noqa: BLE001  (NVML's own classes; whatever it is, the value is unknown)
            self._bytes, self._unknown = None, f"NVML: {type(error).__name__}: {error}"
            self._over.set()


def _open_nvml() -> Callable[[], int]:
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return lambda: sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
