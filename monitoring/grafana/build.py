"""Write the dashboards' JSON from their code, or (--check) say whether the committed JSON still equals it.

python monitoring/grafana/build.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER / "code"))


def render(name: str) -> str:
    """Return one dashboard's JSON text: panels numbered from 1 in their order."""
    from boards import BOARDS
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    content: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(BOARDS[name]().build()))
    lay_out(content["panels"])
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def lay_out(panels: list[dict[str, Any]]) -> None:
    """Number the panels from 1 and place them in reading order, 24 columns wide; a row is as high as its
    highest panel. (The SDK's own flow lets a panel stick out at the right.)"""
    x = y = row = 0
    for number, panel in enumerate(panels, start=1):
        width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
        if x + width > 24:
            x, y, row = 0, y + row, 0
        panel["id"] = number
        panel["gridPos"] = {"x": x, "y": y, "w": width, "h": height}
        x, row = x + width, max(row, height)


def main() -> int:
    """Write or check all dashboards; return the process's exit code."""
    from boards import BOARDS

    stale = []
    for name in BOARDS:
        path = FOLDER / "dashboards" / f"{name}.json"
        text = render(name)
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        sys.stderr.write(f"not equal to their code: {', '.join(stale)}; run monitoring/grafana/build.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
