"""One input may hold several scrapes, one after another, under separator lines."""

from __future__ import annotations

import re

_SEPARATOR = re.compile(r"^(?:---+\s*(?P<dashes>.*?)\s*-*|#\s*(?P<command>(?:cmd|curl|\$)\b.*))$")


def split_sections(text: str) -> list[tuple[str, str]]:
    """Given a text, return its scrapes as (title, text). Lines that start with `---`, `# cmd` or `# curl`
    separate them; the text before the first has the title ""."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines(keepends=True):
        matched = _SEPARATOR.match(line.strip())
        if matched:
            sections.append(((matched["dashes"] or matched["command"] or "").strip(), []))
        else:
            sections[-1][1].append(line)
    if len(sections) > 1 and not "".join(sections[0][1]).strip():
        del sections[0]
    return [(title, "".join(lines)) for title, lines in sections]
