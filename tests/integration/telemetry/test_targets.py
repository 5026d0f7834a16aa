"""The hook targets in SGLang's own source, of each version that is supported, without installing it.

DEPLOY_KIT_SGLANG_SOURCES names unpacked wheels (folders that hold `sglang/`), joined by the path separator:
`pip download --no-deps sglang==0.5.17` and unzip. Skipped without it; the installed version is tested against
the running engine in tests/integration/engine.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from deploy_kit.telemetry.plugin import DEVICE_TIME, FORWARD, START, TARGETS, VERIFIED

SOURCES = [Path(p) for p in os.environ.get("DEPLOY_KIT_SGLANG_SOURCES", "").split(os.pathsep) if p]
pytestmark = pytest.mark.skipif(not SOURCES, reason="DEPLOY_KIT_SGLANG_SOURCES is not set")


def method(source: Path, target: str) -> ast.FunctionDef:
    module, class_name, name = target.rsplit(".", 2)
    tree = ast.parse((source / (module.replace(".", "/") + ".py")).read_text())
    (owner,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name]
    (found,) = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found


def parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.rsplit(".", 1)[1])
def test_target_exists(source: Path, target: str) -> None:
    assert method(source, target)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_what_the_hooks_rely_on(source: Path) -> None:
    assert parameters(method(source, DEVICE_TIME))[:3] == ["self", "category", "t"]
    assert parameters(method(source, FORWARD))[:2] == ["self", "forward_batch"]
    assert parameters(method(source, VERIFIED)) == ["self", "result", "batch"]
    assert "num_correct_drafts_per_req_cpu" in ast.unparse(method(source, VERIFIED))
    installed = ast.unparse(method(source, START))
    for name in ("forward_pass_device_timer", "tp_worker.model_runner", "draft_runner_list", "draft_runner"):
        assert name in installed
