"""Configuration files: the shipped ones load, bad ones are refused with file, key, found and allowed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog, load_file
from deploy_kit.configs.schema import Host, Lever, Model, Profile, Stack, version_tuple
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    return tmp_path / "configs"


@pytest.mark.parametrize("kind", [Stack, Model, Host, Profile, Lever])
def test_every_shipped_file_loads(kind: type) -> None:
    catalog = Catalog(CONFIGS)
    names = catalog.names(kind)
    assert names
    for name in names:
        assert catalog.load(kind, name).name == name


def refusal(path: Path, kind: type, text: str) -> DeployKitError:
    path.write_text(text)
    with pytest.raises(DeployKitError) as caught:
        load_file(kind, path)
    assert caught.value.file == str(path)
    return caught.value


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(DeployKitError) as caught:
        Catalog(CONFIGS).load(Profile, "eagel3")
    assert caught.value.exit_code is ExitCode.UNKNOWN_NAME
    assert (caught.value.allowed or "").startswith("eagle3")


def test_unknown_key_names_it_and_the_nearest_allowed(tmp_path: Path) -> None:
    error = refusal(tmp_path / "p.toml", Profile, 'name = "p"\ndescription = "x"\ndraft_token = 4\n')
    assert error.summary.endswith("unknown key")
    assert error.key == "draft_token"
    assert "draft_tokens" in (error.allowed or "")


def test_unknown_key_in_an_inner_table(tmp_path: Path) -> None:
    text = (CONFIGS / "hosts/rtx-pro-6000-x8.toml").read_text().replace("generation = 5", "generaton = 5")
    error = refusal(tmp_path / "h.toml", Host, text)
    assert error.key in ("pcie.generaton", "pcie.generation")
    assert "problem" in error.summary or "generation" in (error.allowed or "")


def test_wrong_type_is_not_converted(tmp_path: Path) -> None:
    text = (CONFIGS / "hosts/rehearsal.toml").read_text().replace("gpus = 0", 'gpus = "0"')
    error = refusal(tmp_path / "h.toml", Host, text)
    assert error.key == "gpus"
    assert error.found == '"0" (text)'


def test_two_units_are_refused(tmp_path: Path) -> None:
    text = (CONFIGS / "models/kimi-k2.5.toml").read_text()
    text = text.replace("weights_gb = 550.0", "weights_gb = 550.0\nweights_bytes = 550000000000")
    error = refusal(tmp_path / "m.toml", Model, text)
    assert "two units" in error.summary


def test_missing_unit_is_refused(tmp_path: Path) -> None:
    text = (CONFIGS / "models/kimi-k2.5.toml").read_text().replace("weights_gb = 550.0\n", "")
    assert "neither is given" in refusal(tmp_path / "m.toml", Model, text).summary


def test_broken_toml_says_where(tmp_path: Path) -> None:
    error = refusal(tmp_path / "p.toml", Profile, 'name = "p\n')
    assert "line 1" in error.summary


def test_toml_nested_too_deeply_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a=" + "[" * 5000)
    with pytest.raises(DeployKitError, match="not TOML"):
        load_file(Host, tmp_path / "deep.toml")


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(DeployKitError):
        load_file(Profile, tmp_path / "absent.toml")


def test_a_file_must_be_called_by_its_name(copy: Path) -> None:
    shutil.copy(copy / "stacks/current.toml", copy / "stacks/other.toml")
    with pytest.raises(DeployKitError) as caught:
        Catalog(copy).load(Stack, "other")
    assert (caught.value.found, caught.value.allowed) == ("current", "other")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("drafter = ", "# "), "drafter"),
        (("draft_tokens = 4", "draft_tokens = 8"), "draft_tokens"),
        (("draft_tokens = 4\n", ""), "draft_tokens"),
        (("steps = 3\n", ""), "steps, topk"),
        (('speculative_algorithm = "EAGLE3"\n', ""), "drafter"),
        (('"EAGLE3"', '"EAGEL3"'), "speculative_algorithm"),
        (("steps = 3", "steps = 0"), "steps"),
    ],
)
def test_profiles_that_sglang_would_accept_silently(
    tmp_path: Path, change: tuple[str, str], key: str
) -> None:
    text = (CONFIGS / "profiles/eagle3.toml").read_text().replace(*change)
    assert refusal(tmp_path / "p.toml", Profile, text).key == key


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("gpus = [4, 5, 6, 7]", "gpus = [3, 5, 6, 7]"), "once"),
        (('[nccl]\nNCCL_P2P_LEVEL = "SYS"', '[nccl]\nPATH = "SYS"'), "NCCL_"),
        (('capability = "12.0"\n', ""), "capability"),
        (('capability = "12.0"', 'capability = "sm120"'), "pattern"),
        (('cpus = "0-63,128-191"', 'cpus = "all"'), "pattern"),
        (("gpu_memory_gib = 96.0\n", ""), "neither"),
    ],
)
def test_hosts_that_contradict_themselves(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    text = (CONFIGS / "hosts/rtx-pro-6000-x8.toml").read_text().replace(*change)
    assert words in str(refusal(tmp_path / "h.toml", Host, text))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_mangled_files_never_show_anything_but_our_error(tmp_path: Path, data: st.DataObject) -> None:
    original = (CONFIGS / "hosts/rtx-pro-6000-x8.toml").read_bytes()
    start = data.draw(st.integers(0, len(original)))
    end = data.draw(st.integers(start, min(len(original), start + 40)))
    path = tmp_path / "h.toml"
    path.write_bytes(original[:start] + data.draw(st.binary(max_size=12)) + original[end:])
    try:
        host = load_file(Host, path)
    except DeployKitError as error:
        assert error.file == str(path)
    else:
        assert host.gpus >= 1


def test_versions_compare_by_number() -> None:
    assert version_tuple("0.5.9") < version_tuple("0.5.17") < version_tuple("0.5.23")
    assert version_tuple("2.13.0+cpu") == (2, 13, 0)


REHEARSAL = (CONFIGS / "hosts/rehearsal.toml").read_text()
BIG = (CONFIGS / "hosts/rtx-pro-6000-x8.toml").read_text()
CUDA_OR_CPU = "'cuda' or 'cpu'"
KIMI = (CONFIGS / "models/kimi-k2.5.toml").read_text()
EAGLE = (CONFIGS / "profiles/eagle3.toml").read_text()
STACK = (CONFIGS / "stacks/current.toml").read_text()


@pytest.mark.parametrize(
    ("kind", "text", "old", "new", "key", "found", "allowed"),
    [
        (Host, REHEARSAL, "gpus = 0", 'gpus = "0"', 'gpus', '"0" (text)', "a whole number, at least 0"),
        (Host, REHEARSAL, "gpus = 0", "gpus = -1", "gpus", "-1 (int)", "at least 0"),
        (Host, REHEARSAL, "gpus = 0", "gpus = 0.5", "gpus", "0.5 (float)", "a whole number, at least 0"),
        (Host, REHEARSAL, "rehearsal = true", "rehearsal = 1", "rehearsal", "1 (int)", "true or false"),
        (Host, REHEARSAL, 'accelerator = "cpu"', 'accelerator = "tpu"', "accelerator", "tpu", CUDA_OR_CPU),
        (Host, BIG, "generation = 5", "generation = 9", "pcie.generation", "9 (int)", "1 to 7"),
        (Host, BIG, "generation = 5", "generation = 0", "pcie.generation", "0 (int)", "1 to 7"),
        (Host, BIG, "ion = 5", 'ion = "5"', "pcie.generation", '"5" (text)', "a whole number, 1 to 7"),
        (Host, BIG, "width = 16", "width = 12", "pcie.width", "12 (int)", "1, 2, 4, 8 or 16"),
        (Host, BIG, 'name = "rtx-pro-6000-x8"', "name = 8", "name", "8 (int)", "text"),
        (Host, BIG, "node = 0", "node = true", "numa.0.node", "True (bool)", "a whole number, at least 0"),
        (Model, KIMI, "weights_gb = 550.0", "weights_gb = 0.0", "weights_gb", "0.0 (float)", "above 0"),
        (Model, KIMI, "gb = 550.0", "gb = [1]", "weights_gb", "[1] (list)", "a number, above 0"),
        (Model, KIMI, "element_bytes = 2", "element_bytes = 16", "element_bytes", "16 (int)", "1 to 4"),
        (Profile, EAGLE, "draft_tokens = 4", "draft_tokens = 1", "draft_tokens", "1 (int)", "at least 2"),
        (Profile, EAGLE, "adaptive", "adaptiv", "adaptiv", None, None),
    ],
)  # fmt: skip
def test_a_wrong_value_says_what_is_allowed(
    tmp_path: Path,
    kind: type,
    text: str,
    old: str,
    new: str,
    key: str,
    found: str | None,
    allowed: str | None,
) -> None:
    if old not in text:
        text = text + "\nadaptive = false\n" if old == "adaptive" else text
    assert old in text
    error = refusal(tmp_path / "x.toml", kind, text.replace(old, new, 1))
    assert error.key == key
    if found is not None:
        assert (error.found, error.allowed) == (found, allowed)
    else:
        assert "adaptive" in (error.allowed or "")


@pytest.mark.parametrize(
    ("kind", "text", "old", "new", "key", "found", "allowed"),
    [
        (Profile, EAGLE, "draft_tokens = 4", "draft_tokens = 9", "draft_tokens", "9", "4"),
        (Profile, EAGLE, "steps = 3\n", "", "steps, topk", "no steps", "at least 1"),
        (Profile, EAGLE, 'drafter = "eagle3"\n', "", "drafter", "nothing", "drafters"),
        (Profile, EAGLE, 'name = "eagle3"', 'name = "eagle3"\nname = "x"', "name", 'name = "x"', "each key"),
        (Profile, EAGLE, "topk = 1", "topk 1", "line 6", "'topk 1'", "KEY = VALUE"),
        (Host, BIG, "gpus = [0, 1, 2, 3]", "gpus = [0, 1, 2, 4]", "numa", "2, 4, 4, 5", "0 to 7 once"),
        (Host, BIG, 'cpus = "0-63,128-191"', 'cpus = "63-0"', "numa.0.cpus", "63-0", "rise"),
        (Host, BIG, 'cpus = "0-63,128-191"', 'cpus = "0-9000"', "numa.0.cpus", "0-9000", "0 to 8191"),
        (Host, BIG, "gpu_memory_gib = 96.0\n", "", "gpu_memory_bytes or gpu_memory_gib", "nothing", "one of"),
        (Model, KIMI, "weights_gb = 550.0", "weights_gb = inf", "weights_gb", "inf (float)", "finite"),
        (Stack, STACK, 'sglang = "0.5.23"', 'sglang = "latest"', "versions.sglang", "latest", "text that"),
    ],
)  # fmt: skip
def test_a_contradiction_says_what_was_found_and_what_is_allowed(
    tmp_path: Path, kind: type, text: str, old: str, new: str, key: str, found: str, allowed: str
) -> None:
    assert old in text
    error = refusal(tmp_path / "x.toml", kind, text.replace(old, new, 1))
    assert error.key == key
    assert found in (error.found or "")
    assert allowed in (error.allowed or "")
    assert error.remedy


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_bytes(b"\xef\xbb\xbf" + EAGLE.replace("\n", "\r\n").encode())
    assert load_file(Profile, tmp_path / "p.toml").steps == 3


def test_a_flag_of_several_types_is_one_problem(tmp_path: Path) -> None:
    text = 'name = "x"\ndescription = "x"\n[flags]\ncontext-length = { a = 1 }\n'
    error = refusal(tmp_path / "x.toml", Profile, text)
    assert error.key == "flags.context-length"
    assert error.allowed == "true or false, a whole number, a number, text or a list"
    assert "more problem" not in error.summary


def test_missing_keys_say_what_belongs_there(tmp_path: Path) -> None:
    error = refusal(tmp_path / "x.toml", Host, BIG.replace("generation = 5\n", "", 1))
    assert error.key == "pcie.generation"
    assert error.allowed == "a whole number (1 to 7): this key has no default"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["gpus", "nvlink", "name", "description", "tensor_parallel", "accelerator", "rehearsal"]),
    st.sampled_from(["-7", "1.5", "true", '"x y"', "[1]", "{ a = 1 }", "1979-05-27", "inf", "nan"]),
)
def test_every_refusal_of_a_single_value_carries_what_is_allowed(
    tmp_path: Path, key: str, value: str
) -> None:
    text = f"{key} = {value}\n" + "".join(
        line for line in REHEARSAL.splitlines(keepends=True) if not line.startswith(f"{key} ")
    )
    (tmp_path / "x.toml").write_text(text)
    try:
        load_file(Host, tmp_path / "x.toml")
    except DeployKitError as error:
        assert error.found
        assert error.allowed
