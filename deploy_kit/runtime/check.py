"""`deploy-kit serve --check`: a plan's argv against the installed SGLang's own argument parser."""

from __future__ import annotations

import contextlib
import io

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import ENGINE


def refuse_unknown_flags(plan: Plan) -> str:
    """Parse the plan's flags with SGLang's parser (no GPU needed); return SGLang's version.

    Raises `DeployKitError` with the parser's own words when a flag is unknown, renamed, ambiguous or has a
    value that is not allowed. An abbreviated flag is refused too: it works until a longer one appears.
    """
    try:
        import sglang
        from sglang.srt.server_args import ServerArgs
    except Exception as error:  # a package of another version makes the import end in any of them
        absent = isinstance(error, ModuleNotFoundError) and error.name == "sglang"
        raise DeployKitError(
            f"SGLang {'is not installed' if absent else 'fails to import'} here, so no flag can be checked",
            found=f"{type(error).__name__}: {error}",
            remedy="run this inside the image: docker compose run --rm kimi-eagle serve --check PROFILE",
        ) from error
    import argparse

    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            parser.parse_args(list(plan.argv[len(ENGINE) :]))
    except SystemExit:
        said = words.getvalue().strip().rpartition("error: ")[2]
        raise DeployKitError(
            f"SGLang {sglang.__version__} does not take this plan's flags: {said}",
            key=f"profile {plan.profile}",
            found=said,
            remedy="the flag was renamed or removed; correct the configuration that sets it",
            exit_code=ExitCode.ENGINE_FLAG,
        ) from None
    return str(sglang.__version__)
