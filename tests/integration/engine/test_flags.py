"""Every profile's and every lever's flags against the pinned SGLang's own argument parser."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever, Profile, Stack
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.flags import make_flags
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime.check import refuse_unknown_flags

CONFIGS = Path(__file__).parents[3] / "configs"
CATALOG = Catalog(CONFIGS)


def with_words(plan: Plan, *words: str) -> Plan:
    from dataclasses import replace

    return replace(plan, argv=(*plan.argv, *words))


@pytest.mark.parametrize("host", ["rtx-pro-6000-x8", "rehearsal"])
@pytest.mark.parametrize("profile", CATALOG.names(Profile))
def test_profiles(profile: str, host: str) -> None:
    version = refuse_unknown_flags(resolve(CATALOG, profile, host=host))
    assert version == CATALOG.load(Stack, "rehearsal").versions.sglang


@pytest.mark.parametrize("name", CATALOG.names(Lever))
def test_levers(name: str) -> None:
    """A lever that does not apply to the reference box is parsed all the same: its flags must exist."""
    lever = CATALOG.load(Lever, name)
    flags = {key: value for key, value in lever.flags.items() if value != "from host"}
    refuse_unknown_flags(with_words(resolve(CATALOG, "eagle3"), *make_flags(flags)))


@pytest.mark.parametrize("name", CATALOG.names(Lever))
def test_environment_variables_are_known(name: str) -> None:
    """SGLang ignores an unknown variable without a word, so a typo would make a lever do nothing."""
    from sglang.srt.environ import envs

    lever = CATALOG.load(Lever, name)
    for variable in lever.environment:
        if variable.startswith("SGLANG_"):
            assert hasattr(envs, variable), f"{variable} is not read by this SGLang"


@pytest.mark.parametrize(
    "words",
    [
        ("--cuda-graph-max-bs", "32"),  # renamed; an abbreviation of two others
        ("--enable-quick-start",),
        ("--speculative-algorithmus", "EAGLE3"),
        ("--tp-size", "eight"),
        ("--moe-a2a-backend", "deepe"),
    ],
)
def test_an_unknown_renamed_or_wrong_flag_is_named(words: tuple[str, ...]) -> None:
    with pytest.raises(DeployKitError) as caught:
        refuse_unknown_flags(with_words(resolve(CATALOG, "baseline"), *words))
    assert caught.value.exit_code is ExitCode.ENGINE_FLAG
    assert words[0] in str(caught.value)


def test_what_the_deprecated_alias_became() -> None:
    """The story's own flag still parses; the plan uses its successor."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    lever = tomllib.loads((CONFIGS / "levers/sm120-fusion.toml").read_text())
    backend = lever["flags"]["flashinfer-allreduce-fusion-backend"]
    parsed = parser.parse_args(["--model-path", "x", "--flashinfer-allreduce-fusion-backend", backend])
    assert parsed.flashinfer_allreduce_fusion_backend == "trtllm"
