"""The command itself: lazy, typed exit codes, errors as one block, JSON when asked."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy_kit.cli.app import COMMANDS

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy_kit", *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys; sys.argv = ['deploy-kit', '--help']\n"
        "from deploy_kit.cli.app import main\n"
        "try:\n main()\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'pydantic', 'httpx', 'docker', 'ansible_runner', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage:")


def test_unknown_command_offers_the_nearest() -> None:
    done = run("plna")
    assert done.returncode == 2
    assert "allowed: plan" in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_are_one_block_and_json_when_asked() -> None:
    done = run("plan", "eagel3")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("deploy-kit: no such profile: eagel3\n  file: ")
    done = run("plan", "eagel3", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"]) == (4, 4)
    assert answer["allowed"].startswith("eagle3")


def test_plan_json_is_the_plan() -> None:
    done = run("plan", "eagle3", "--json")
    plan = json.loads(done.stdout)
    assert (plan["profile"], len(plan["plan_id"])) == ("eagle3", 12)


# What may import what: a package may import those before it, never those after it.
LAYERS = (
    ("errors", "exit_codes", "files", "output", "pasted", "patterns"),
    ("configs", "receipts"),
    ("stacks",),
    ("plan",),
    ("startup", "metrics", "telemetry"),
    ("exporter",),
    ("runtime",),
    ("deploy",),
    ("doctor", "probe", "drafter", "bench"),
    ("decision", "provision"),
    ("campaign",),
    ("report",),
    ("firstlight",),
    ("cli",),
)


def test_imports_run_one_way() -> None:
    level = {package: i for i, layer in enumerate(LAYERS) for package in layer}
    wrong = []
    for path in sorted((ROOT / "deploy_kit").rglob("*.py")):
        parts = path.relative_to(ROOT / "deploy_kit").parts
        own = parts[0].removesuffix(".py")
        if own in ("__init__", "__main__"):
            continue
        assert own in level, f"{own} has no layer"
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) and node.module
                else [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            )  # fmt: skip
            for name in names:
                target = name.split(".")
                if target[0] == "deploy_kit" and len(target) > 1 and level.get(target[1], 0) > level[own]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)
