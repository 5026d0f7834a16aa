"""What a bench receipt says of its making: no folders of this machine, and where each version is from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.bench.about import without_folders
from deploy_kit.bench.run import ServerFacts, engine_words, merged_versions


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/me/plan.json", "plan.json"),
        ("--prompts=/data/deep/p.jsonl", "--prompts=p.jsonl"),
        ("~/key", "key"),
        ("plan.json", "plan.json"),
        ("http://127.0.0.1:30000/v1", "http://127.0.0.1:30000/v1"),
        ("--concurrency=1,8", "--concurrency=1,8"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_files_keep_their_names_only(word: str, kept: str) -> None:
    assert without_folders([word]) == (kept,)


@given(st.lists(st.text(alphabet="ab/.-=_ \n", min_size=1), min_size=1))
def test_no_absolute_path_is_left(parts: list[str]) -> None:
    for word in without_folders(["/" + "/".join(parts), "--x=/" + "/".join(parts)]):
        value = word.removeprefix("--x=")
        assert value == "/" or not value.startswith("/")


def test_the_engines_own_word_goes_before_the_stacks() -> None:
    stack = {"sglang": "0.5.23", "torch": "2.14.1", "stack": "current"}
    same = merged_versions(stack, ServerFacts(model="m", sglang_version="0.5.23"))
    assert same == (stack, {"sglang": "engine", "torch": "stack", "stack": "stack"}, [])
    versions, sources, remarks = merged_versions(stack, ServerFacts(model="m", sglang_version="0.5.17"))
    assert versions["sglang"] == "0.5.17"
    assert sources["sglang"] == "engine"
    assert remarks == ["the engine is SGLang 0.5.17, the plan's stack pins 0.5.23"]
    by_plugin = merged_versions({}, ServerFacts(model="m", plugin={"sglang_version": "0.5.23"}))
    assert by_plugin == ({"sglang": "0.5.23"}, {"sglang": "engine"}, [])
    assert merged_versions(stack, ServerFacts(model="m"))[1]["sglang"] == "stack"


def test_what_else_the_engine_says() -> None:
    facts = ServerFacts(model="m", device="cpu", plugin={"deploy_kit_version": "0.1.0", "hooks": "4"})
    assert engine_words(facts) == {"device": "cpu", "plugin_deploy_kit_version": "0.1.0", "plugin_hooks": "4"}
    assert engine_words(ServerFacts(model="m")) == {}
