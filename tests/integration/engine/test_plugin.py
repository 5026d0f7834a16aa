"""The plug-in: active on the CPU engine, inert and saying so elsewhere; and the compiled n-gram module."""

import logging
from pathlib import Path

import pytest
from deploy_kit_rehearsal import ngram, plugin
from sglang.srt.plugins.hook_registry import HookRegistry


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    targets: list[str] = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, *_rest, **_more: targets.append(target))
    return targets


def test_inert_where_the_engine_is_not_the_cpu_one(
    monkeypatch: pytest.MonkeyPatch, registered: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert registered == []
    assert "nothing changed" in caplog.text


def test_active_on_the_cpu_engine_and_loud(
    monkeypatch: pytest.MonkeyPatch, registered: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert plugin.ATTENTION_FALLBACK in registered
    assert "REHEARSAL" in caplog.text


def test_the_hooked_names_exist_in_the_installed_sglang() -> None:
    """A hook on a missing name is only logged by SGLang: here it fails."""
    import pkgutil

    for target in (plugin.ATTENTION_FALLBACK, ngram.LOAD):
        assert callable(pkgutil.resolve_name(target)), target


def test_another_jit_module_is_left_to_sglang() -> None:
    asked = []
    result = ngram.load_built_module(
        lambda *names, **options: asked.append((names, options)), "other", header_only=True
    )
    assert result is None
    assert asked == [(("other",), {"header_only": True})]


def test_a_missing_compiler_is_one_clear_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(ngram, "built_library", lambda: tmp_path / "built" / "module.so")
    with pytest.raises(ngram.CannotCompileError, match="no-such-compiler not found"):
        ngram.build()
    assert list((tmp_path / "built").iterdir()) == []
