"""Words that a pattern cannot do without: looking for a word is far quicker than trying a pattern.

Whoever tries many patterns on a large text first asks for the words; only where one stands can a pattern fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SHORTEST = 3
_OPTIONAL = "*?{"


@dataclass(frozen=True)
class Sieved:
    """A pattern with the words of which every text that it fits holds at least one; no words: none are known.

    The words of a pattern that ignores case are in lower case.
    """

    pattern: re.Pattern[str]
    words: tuple[str, ...]

    def may_fit(self, text: str) -> bool:
        """Given a text (in lower case when the pattern ignores case), return False when nothing can fit."""
        for word in self.words:  # tried very often: a generator takes twice the time
            if word in text:
                return True
        return not self.words


def sieved(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> Sieved:
    """Given a pattern, return it compiled, with its words."""
    words = required_words(pattern)
    if flags & re.IGNORECASE:
        words = tuple(word.lower() for word in words)
    return Sieved(re.compile(pattern, flags), words)


def required_words(pattern: str) -> tuple[str, ...]:
    """Given a regular expression, return words of which every match holds at least one; none when some match
    may do without a word of three characters.

    >>> required_words(r"port (?P<port>\\d+) is taken|bind: address (?:already )?in use")
    (' is taken', 'bind: address ')
    """
    words: list[str] = []
    for alternative in _split(pattern):
        runs, groups = _runs_and_groups(alternative)
        longest = max(runs, key=len, default="")
        if len(longest) >= _SHORTEST:
            words.append(longest)
            continue
        inner = next((found for group in groups if (found := required_words(group))), ())
        if not inner:
            return ()
        words += inner
    return tuple(dict.fromkeys(words))


def _split(pattern: str) -> list[str]:
    """Return the alternatives of the outermost level."""
    parts = [""]
    for token in _tokens(pattern):
        if token == "|":  # noqa: S105
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _runs_and_groups(alternative: str) -> tuple[list[str], list[str]]:
    """Return the runs of plain characters that must be there, and the insides of groups that must."""
    runs, groups = [""], []
    tokens = list(_tokens(alternative))
    for token, following in zip(tokens, [*tokens[1:], ""], strict=False):
        optional = following[:1] != "" and following[0] in _OPTIONAL
        if token[0] == "(" and not optional and not token.startswith(("(?!", "(?<!", "(?=", "(?<=")):
            groups.append(re.sub(r"^\((?:\?(?:P<\w+>|:))?", "", token)[:-1])
        plain = token[1:] if token[0] == "\\" and not token[1:].isalnum() else token
        if len(plain) == 1 and (token[0] == "\\" or plain not in ".^$*+?{}()[]|") and not optional:
            runs[-1] += plain
        else:
            runs.append("")
    return runs, groups


def _tokens(pattern: str) -> Iterator[str]:
    """Yield single characters, escapes, whole character classes, whole groups, and repetitions in braces."""
    at = 0
    while at < len(pattern):
        end = _end_of_token(pattern, at)
        yield pattern[at:end]
        at = end


def _end_of_token(pattern: str, at: int) -> int:
    first = pattern[at]
    if first == "\\":
        return at + 2
    if first == "[":
        return _end_of_class(pattern, at)
    if first == "{":
        closing = pattern.find("}", at)
        return at + 1 if closing < 0 else closing + 1
    if first != "(":
        return at + 1
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[":
            at = _end_of_class(pattern, at)
            continue
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
        if depth == 0:
            break
    return at


def _end_of_class(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1] == "^" else 1
    if pattern[at] == "]":  # in first place a plain character
        at += 1
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
