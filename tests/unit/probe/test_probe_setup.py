import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Host
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.probe import setup
from deploy_kit.probe.candidates import nccl_candidate

HOST = Catalog.find().load(Host, "rtx-pro-6000-x8")


@given(st.text(max_size=20))
def test_any_text_is_token_counts_or_an_error(text: str) -> None:
    try:
        found = setup.parse_tokens(text)
    except DeployKitError as error:
        assert error.exit_code == ExitCode.USAGE
    else:
        assert found == tuple(sorted(set(found)))
        assert all(1 <= tokens <= 65536 for tokens in found)


def test_tokens_are_sorted_and_once() -> None:
    assert setup.parse_tokens("4, 1,4") == (1, 4)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1,x", "99999999", "٣"])
def test_bad_tokens_are_named(text: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        setup.parse_tokens(text)
    assert caught.value.key == "--tokens"


def test_grids_and_axes_name_what_is_allowed() -> None:
    assert setup.parse_grid("protocol=LL,Simple channels=2") == {
        "protocol": ["LL", "Simple"],
        "channels": ["2"],
    }
    assert setup.parse_axes("channels,protocol") == ["protocol", "channels"]
    for text in ("protocol=ll", "protocol", "protokol=LL", "=LL"):
        with pytest.raises(DeployKitError):
            setup.parse_grid(text)
    with pytest.raises(DeployKitError) as caught:
        setup.parse_axes("chanels")
    assert caught.value.allowed == "channels"


def test_a_gpu_host_is_never_silently_rehearsed() -> None:
    assert setup.choose_backend("auto", 8, HOST) == "nccl"
    assert setup.choose_backend("auto", 0, None) == "gloo"
    assert setup.choose_backend("gloo", 8, HOST) == "gloo"
    for asked in ("auto", "nccl"):
        with pytest.raises(DeployKitError) as caught:
            setup.choose_backend(asked, 0, HOST)
        assert caught.value.exit_code == ExitCode.NO_GPU
    with pytest.raises(DeployKitError):
        setup.choose_backend("mpi", 8, None)


def test_ranks_come_from_the_host_the_gpus_or_the_option() -> None:
    assert setup.choose_ranks(None, "nccl", 8, HOST) == 8
    assert setup.choose_ranks(None, "nccl", 2, None) == 2
    assert setup.choose_ranks(None, "gloo", 0, None) == 2
    assert setup.choose_ranks(4, "nccl", 8, HOST) == 4
    for asked, backend, gpus in ((None, "nccl", 4), (1, "gloo", 0), (9, "nccl", 8), (65, "gloo", 0)):
        with pytest.raises(DeployKitError) as caught:
            setup.choose_ranks(asked, backend, gpus, HOST if backend == "nccl" else None)
        assert caught.value.key == "--ranks"


def test_visible_gpus_follow_device_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert setup.visible_gpus(tmp_path) == 3
    for listed, count in (("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3", 3)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert setup.visible_gpus(tmp_path) == count


def test_an_interpreter_without_torch_is_unknown_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(setup.PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeployKitError) as caught:
        setup.find_python(None)
    assert caught.value.exit_code == ExitCode.VERDICT_UNKNOWN
    with pytest.raises(DeployKitError, match="no such interpreter"):
        setup.find_python("no-such-python")
    assert Path(setup.find_python("python3")).name == "python3"


def test_settings_under_test_are_not_inherited_from_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    request = setup.Request(
        host=None,
        model="kimi-k2.5",
        tokens="1",
        count=None,
        ranks=2,
        budget_seconds=10,
        candidates="",
        backend="gloo",
        python=os.environ.get(setup.PYTHON_VARIABLE) or "python3",
        step_limit_seconds=5,
        configs=None,
    )
    prepared = setup.prepare(request)
    environment = prepared.settings.environment(nccl_candidate({"channels": "8"}))
    assert "NCCL_PROTO" not in environment
    assert environment["NCCL_P2P_DISABLE"] == "1"
    assert environment["NCCL_NVLS_ENABLE"] == "1"  # the caller's word on what serving sets goes first
    assert environment["NCCL_MIN_NCHANNELS"] == "8"
    assert prepared.settings.count == 12  # a rehearsal makes fewer; 122 would take minutes over gloo
