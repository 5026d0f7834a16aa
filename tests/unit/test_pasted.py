"""Pasted text: the carrier goes, the content stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.doctor.blocks import clean
from deploy_kit.metrics.explain import explain
from deploy_kit.pasted import plain, unquoted

SCRAPE = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="target",tp_rank="0"} 3.0
"""


@pytest.mark.parametrize(
    "paste",
    [
        SCRAPE,
        SCRAPE.replace("\n", "\r\n"),
        "\ufeff" + SCRAPE,
        SCRAPE.encode("utf-16").decode(errors="replace"),
        SCRAPE.encode("utf-16-be").decode(errors="replace"),
        f"\x1b[32m{SCRAPE}\x1b[0m",
        "".join(f"> {line}\n" for line in SCRAPE.splitlines()),
        "\n" + "".join(f">> {line}\n" for line in SCRAPE.splitlines()),
    ],
    ids=["plain", "crlf", "utf-8-mark", "utf-16", "utf-16-be", "coloured", "quoted", "quoted-twice"],
)
def test_a_scrape_is_read_whatever_carried_it(paste: str) -> None:
    answer = explain(paste)
    assert (answer.verdict, answer.facts["running"]) == ("ok", 3)


@given(st.text(alphabet="ab> \n", max_size=60))
def test_a_quote_gives_back_what_was_quoted(text: str) -> None:
    quoted = "\n".join(f"> {line}" for line in text.split("\n"))
    once = unquoted(quoted)
    # A text that is a quote itself is unquoted whole.
    assert once in (text, unquoted(text)) or not text.strip()


@pytest.mark.parametrize("text", ["> a\nb\n", "a\n> b\n", "", "\n", "GPU0 > GPU1\n"])
def test_what_is_no_quote_stays(text: str) -> None:
    assert plain(text) == unquoted(text) == text
    assert clean(text) == text


def test_the_doctor_reads_quotes_too() -> None:
    assert clean("> a\n>\n> b\n") == "a\n\nb\n"
