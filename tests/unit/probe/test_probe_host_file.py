import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import load_file
from deploy_kit.configs.schema import Host
from deploy_kit.errors import DeployKitError
from deploy_kit.probe.candidates import TUNED_VARIABLES
from deploy_kit.probe.host_file import with_setting, write_setting

REAL = Path(__file__).parents[3] / "configs" / "hosts" / "rtx-pro-6000-x8.toml"
LL = {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}


def test_the_reference_host_keeps_everything_else_byte_for_byte() -> None:
    old = REAL.read_text(encoding="utf-8")
    new = with_setting(old, LL, TUNED_VARIABLES, "LL+8ch, receipt abc")
    assert tomllib.loads(new) == {**tomllib.loads(old), "nccl": LL}
    kept = [line for line in old.splitlines() if not line.startswith("NCCL_P2P_LEVEL")]
    assert [line for line in new.splitlines() if line in kept] == kept


def test_writing_twice_replaces_its_own_lines_and_remark(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_bytes(REAL.read_bytes())
    path.chmod(0o640)
    assert write_setting(path, LL, TUNED_VARIABLES, "first")
    assert write_setting(path, {"NCCL_PROTO": "Simple"}, TUNED_VARIABLES, "second")
    text = path.read_text(encoding="utf-8")
    assert load_file(Host, path).nccl == {"NCCL_PROTO": "Simple"}
    assert "first" not in text
    assert text.count("Measured by deploy-kit") == 1
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_same_setting_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_bytes(REAL.read_bytes())
    write_setting(path, LL, TUNED_VARIABLES, "first")
    before = path.read_bytes()
    assert not write_setting(path, LL, TUNED_VARIABLES, "later")
    assert path.read_bytes() == before


def test_variables_the_probe_does_not_own_stay() -> None:
    ours = 'NCCL_SOCKET_IFNAME = "eth0" # ours\n'
    old = f'name = "h"\n[nccl]\n{ours}NCCL_PROTO="LL"\n[other]\nNCCL_PROTO = "keep"\n'
    new = with_setting(old, {}, TUNED_VARIABLES, "default")
    assert tomllib.loads(new) == {
        "name": "h",
        "nccl": {"NCCL_SOCKET_IFNAME": "eth0"},
        "other": {"NCCL_PROTO": "keep"},
    }
    assert ours in new


@pytest.mark.parametrize(
    "text",
    ['nccl = { NCCL_PROTO = "LL" }\n', 'nccl.NCCL_PROTO = "LL"\n', '[nccl]\nNCCL_PROTO = """L\nL"""\n'],
)
def test_forms_that_cannot_be_edited_safely_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeployKitError) as caught:
        write_setting(path, {"NCCL_PROTO": "Simple"}, TUNED_VARIABLES, "r")
    assert caught.value.key == "nccl"
    assert str(path) in str(caught.value)
    assert path.read_text(encoding="utf-8") == text


def test_a_broken_file_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text("[nccl\n", encoding="utf-8")
    with pytest.raises(DeployKitError, match="not TOML"):
        write_setting(path, LL, TUNED_VARIABLES, "r")
    assert path.read_text(encoding="utf-8") == "[nccl\n"


lines = st.lists(
    st.sampled_from(
        [
            "# remark",
            "",
            "[pcie]",
            "width = 16",
            "[[numa]]",
            "[nccl]",
            'NCCL_PROTO = "LL"',
            "NCCL_DEBUG='WARN'",
            "x = 1",
            'text = """',
            "'''",
            "\ufeff",
            "[ nccl ] # here",
            'name = "NCCL_PROTO = [nccl]"',
            "nccl = 1",
        ]
    ),
    max_size=12,
)


@given(lines, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.text(max_size=30))
def test_any_file_is_either_refused_or_changed_in_these_variables_only(
    parts: list[str], ending: str, ends: bool, remark: str
) -> None:
    old = ending.join(parts) + (ending if ends else "")
    try:
        before = tomllib.loads(old)
    except tomllib.TOMLDecodeError:
        before = None
    try:
        new = with_setting(old, LL, TUNED_VARIABLES, remark)
    except DeployKitError:
        return
    assert before is not None
    kept = {key: value for key, value in before.get("nccl", {}).items() if key not in TUNED_VARIABLES}
    assert tomllib.loads(new) == {**before, "nccl": {**kept, **LL}}
