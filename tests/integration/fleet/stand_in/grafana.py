#!/usr/bin/python3
"""A stand-in for Grafana: it reads its administrator's password where Grafana does, and shows a hash of it.

Called as `wget` (its own name in the image) it is the health check's program.
"""

from __future__ import annotations

import hashlib
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen


class Handler(BaseHTTPRequestHandler):
    """Answers everything with the hash of the password, or "none"."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        file = os.environ.get("GF_SECURITY_ADMIN_PASSWORD__FILE")
        text = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else "none"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    if Path(sys.argv[0]).name == "wget":
        urlopen(sys.argv[-1], timeout=5)
    else:
        HTTPServer(("0.0.0.0", 3000), Handler).serve_forever()
