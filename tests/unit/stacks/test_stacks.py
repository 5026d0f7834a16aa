"""Stacks: what is generated agrees with its source, and each way to disagree is named."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever, Stack
from deploy_kit.errors import DeployKitError
from deploy_kit.stacks.locks import normalised, parse_lock, read_lock
from deploy_kit.stacks.patches import apply, first_failure, state_of
from deploy_kit.stacks.verify import (
    Check,
    check_base,
    check_lever_packages,
    check_patches,
    check_versions,
    difference,
    verify,
)

ROOT = Path(__file__).parents[3]
CATALOG = Catalog(ROOT / "configs")
HASH = "0" * 64


@pytest.mark.parametrize("name", ["current", "rollback", "rehearsal"])
def test_everything_generated_agrees_with_its_stack(name: str) -> None:
    assert [check for check in verify(CATALOG.load(Stack, name), ROOT) if not check.ok] == []


def edited(name: str, old: str, new: str) -> Stack:
    text = (ROOT / f"configs/stacks/{name}.toml").read_text()
    assert old in text
    return Stack.model_validate(tomllib.loads(text.replace(old, new)))


def failures(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.ok]


def test_a_version_that_the_lock_does_not_pin() -> None:
    stack = edited("current", 'nccl = "2.30.7"', 'nccl = "2.30.8"')
    assert failures(list(check_versions(stack, read_lock(ROOT / stack.requirements)))) == ["nccl"]
    assert failures(list(check_versions(stack, {}))) == [
        "sglang",
        "torch",
        "nccl",
        "sglang_kernel",
        "flashinfer",
    ]


def test_a_version_prefix_is_not_a_match() -> None:
    stack = edited("current", 'torch = "2.14.1"', 'torch = "2.14.10"')
    assert failures(list(check_versions(stack, read_lock(ROOT / stack.requirements)))) == ["torch"]


def test_a_base_without_its_digest_or_with_another() -> None:
    stack = CATALOG.load(Stack, "current")
    text = (ROOT / "docker/Dockerfile").read_text()
    assert failures(list(check_base(stack, text))) == []
    assert failures(list(check_base(stack, text.replace(f"@{stack.base.digest}", "")))) == ["base"]
    assert failures(list(check_base(stack, text + "FROM python:3.11 AS x\n"))) == ["base"]
    (check,) = check_base(stack, text.replace(f"@{stack.base.digest}", ""))
    assert "docker/Dockerfile, FROM: found debian:bookworm-20260918-slim, allowed debian:" in check.detail
    other = edited("current", "sha256:3783", "sha256:3784")
    assert failures(list(check_base(other, text))) == ["base"]


def test_a_changed_or_missing_patch(tmp_path: Path) -> None:
    stack = CATALOG.load(Stack, "current")
    assert failures(list(check_patches(stack, tmp_path))) == [stack.patches[0].file]
    path = tmp_path / stack.patches[0].file
    path.parent.mkdir(parents=True)
    path.write_bytes((ROOT / stack.patches[0].file).read_bytes() + b"\n")
    assert failures(list(check_patches(stack, tmp_path))) == [stack.patches[0].file]


def test_a_lever_s_package_that_the_lock_does_not_pin() -> None:
    stack = CATALOG.load(Stack, "current").model_copy(update={"lever_packages": ["ninja", "mscclpp"]})
    (good, bad) = check_lever_packages(stack, read_lock(ROOT / stack.requirements))
    assert good.ok
    assert (bad.ok, bad.name) == (False, "package mscclpp")
    assert "docker/requirements/current.txt: found none" in bad.detail


def test_the_difference_in_words() -> None:
    one, other = CATALOG.load(Stack, "rollback"), CATALOG.load(Stack, "current")
    lines = difference(one, other, read_lock(ROOT / one.requirements), read_lock(ROOT / other.requirements))
    assert "sglang: 0.5.17 in rollback, 0.5.23 in current" in lines
    assert "patch for sm120-fusion: only in current" in lines
    assert difference(one, one, {}, {}) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a==1\n", "no hash"),
        (f"a>=1 --hash=sha256:{HASH}\n", "not a pinned package"),
        (f"a==1 --hash=sha256:{HASH}\nb\n", "not a pinned package"),
        ("a @ file:///x.whl\n", "not a pinned package"),
    ],
)
def test_locks_that_are_none(text: str, words: str) -> None:
    with pytest.raises(DeployKitError, match=words) as caught:
        parse_lock(text, Path("lock.txt"))
    assert caught.value.file == "lock.txt"
    assert caught.value.key is not None


@pytest.mark.parametrize(
    "bad", [f"sha256:{HASH[:-1]}", f"sha256:{HASH}0", f"md5:{HASH}", f"sha256:{HASH[1:]}G"]
)
def test_a_hash_that_is_none_is_refused_beside_good_ones(bad: str) -> None:
    text = f"b==2 --hash=sha256:{HASH}\na==1 \\\n    --hash=sha256:{HASH} \\\n    --hash={bad}\n"
    with pytest.raises(DeployKitError, match="a hash in a lock is none") as caught:
        parse_lock(text, Path("lock.txt"))
    assert (caught.value.file, caught.value.key, caught.value.found) == ("lock.txt", "line 4: a", bad)
    assert "64 characters" in str(caught.value.allowed)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
        st.from_regex(r"\d\.\d{1,2}", fullmatch=True),
        max_size=6,
    )
)
def test_locks_are_read_back(pins: dict[str, str]) -> None:
    text = "".join(
        f"{name}=={version} \\\n    --hash=sha256:{HASH}\n    # via x\n" for name, version in pins.items()
    )
    assert {name: pin.version for name, pin in parse_lock(text, Path("l")).items()} == pins


def test_names_as_indexes_write_them() -> None:
    assert normalised("Flash_Attn..4") == "flash-attn-4"


def site(folder: Path, version: str) -> Path:
    """A made-up site-packages with one file of seven lines."""
    (folder / f"sglang-{version}.dist-info").mkdir(parents=True)
    (folder / "m.py").write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\n")
    return folder


@pytest.fixture
def made_up(tmp_path: Path) -> tuple[Stack, Path]:
    """A stack whose one patch changes a made-up file."""
    patch = "--- a/m.py\n+++ b/m.py\n@@ -2,5 +2,5 @@\n two\n three\n-four\n+4\n five\n six\n"
    (tmp_path / "p.patch").write_text(patch)
    stack = CATALOG.load(Stack, "current")
    entry = stack.patches[0].model_copy(update={"file": "p.patch"})
    return stack.model_copy(update={"patches": [entry]}), tmp_path


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_a_patch_is_applied_once(made_up: tuple[Stack, Path]) -> None:
    stack, root = made_up
    folder = site(root / "site", "0.5.23")
    assert state_of(stack.patches[0], stack, root, folder).state == "not applied"
    assert (folder / "m.py").read_text().splitlines()[3] == "four"
    for _ in range(2):
        assert apply(stack.patches[0], stack, root, folder).state == "applied"
    assert (folder / "m.py").read_text().splitlines()[3] == "4"


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("change", ["offset", "context"])
def test_a_patch_that_moved_or_no_longer_fits_names_the_hunk(
    made_up: tuple[Stack, Path], change: str
) -> None:
    stack, root = made_up
    folder = site(root / "site", "0.5.23")
    text = (folder / "m.py").read_text()
    (folder / "m.py").write_text("zero\n" + text if change == "offset" else text.replace("three", "III"))
    before = (folder / "m.py").read_text()
    state = state_of(stack.patches[0], stack, root, folder)
    assert state.state == "failed"
    assert "m.py: Hunk #1" in state.why
    assert "0.5.23" in state.why
    with pytest.raises(DeployKitError):
        apply(stack.patches[0], stack, root, folder)
    assert (folder / "m.py").read_text() == before
    assert not list(folder.glob("*.rej"))


def test_a_patch_for_another_version_is_skipped(made_up: tuple[Stack, Path]) -> None:
    stack, root = made_up
    state = state_of(stack.patches[0], stack, root, site(root / "site", "0.5.17"))
    assert (state.state, "0.5.17" in state.why) == ("skipped", True)
    (root / "empty").mkdir()
    assert state_of(stack.patches[0], stack, root, root / "empty").state == "skipped"


def test_what_patch_says_is_read() -> None:
    said = "checking file x.py\nHunk #1 succeeded at 3 (offset 1 line).\n"
    assert first_failure(said) == "x.py: Hunk #1 succeeded at 3 (offset 1 line)."
    assert first_failure("") == "patch said nothing"


def test_the_page_on_levers_has_each_with_its_status() -> None:
    rows = [line for line in (ROOT / "docs/levers.md").read_text().splitlines() if line.startswith("| `")]
    page = {line.split("`")[1]: line.split("|")[4] for line in rows}
    assert sorted(page) == sorted(CATALOG.names(Lever))
    for name, said in page.items():
        assert CATALOG.load(Lever, name).status_on_sm120 in said, name
