"""Words that a pattern cannot do without: every text that a pattern fits holds one of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy_kit.doctor.facts import kernel
from deploy_kit.patterns import Sieved, required_words, sieved
from deploy_kit.runtime import container_faults

RULES = {rule.id: rule.sieved for rule in container_faults.RULES} | dict(kernel._RULES)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("plain words", ("plain words",)),
        (r"port (\d+) is taken", (" is taken",)),
        (r"one|three four", ("one", "three four")),
        (r"colou?rs of", ("rs of",)),
        (r"ab(?:long enough|other)", ("long enough", "other")),
        (r"ab(?:long enough|o)", ()),
        (r"ab(?:long enough)?", ()),
        (r"x(?!never there)yz\.w", ("yz.w",)),
        (r"a[|)(]bcd", ("bcd",)),
        (r"a[])]bcd", ("bcd",)),
        (r"a[^]|]bcd", ("bcd",)),
        (r"a[\]|]bcd", ("bcd",)),
        (r"abcd{0,3}", ("abc",)),
        (r"abcd+e", ("abcd",)),
        (r"\(no (?:further|more) ", ("(no ",)),
        (r"\bab\d", ()),
        (r"(?P<name>\S+): manifest unknown", (": manifest unknown",)),
    ],
)
def test_known_patterns(pattern: str, words: tuple[str, ...]) -> None:
    assert required_words(pattern) == words


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_has_words(name: str) -> None:
    # Without words a rule is tried on the whole text: right, but slow.
    assert RULES[name].words


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("name", sorted(RULES))
def test_what_a_rule_fits_holds_one_of_its_words(name: str, data: st.DataObject) -> None:
    rule = RULES[name]
    ascii_only = st.characters(max_codepoint=126, min_codepoint=9)
    text = data.draw(st.from_regex(rule.pattern, alphabet=ascii_only))
    assert rule.may_fit(text.lower() if rule.pattern.flags & re.IGNORECASE else text)


PIECES = st.sampled_from(
    [
        "abc",
        "d",
        r"\d+",
        ".",
        r"\.",
        "[xyz]",
        "[^|]",
        "(?:uvw|rst)",
        "(k)?",
        "m*",
        "n{2}",
        "|",
        "(?:ab|c)+",
        "op+",
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECES, min_size=1, max_size=8), st.data())
def test_any_pattern(pieces: list[str], data: st.DataObject) -> None:
    rule: Sieved = sieved("".join(pieces))
    text = data.draw(st.from_regex(rule.pattern, alphabet=st.characters(max_codepoint=126, min_codepoint=32)))
    assert rule.may_fit(text)
