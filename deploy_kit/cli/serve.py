"""`deploy-kit serve`: the image's entrypoint."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit serve eagle3        (in the image; settings: DEPLOY_KIT_* variables)"
)
def serve(
    profile: str = typer.Argument(help="The profile to serve; 'all' with --check."),
    host: str | None = typer.Option(None, "--host", help="A host's name or file. [DEPLOY_KIT_HOST]"),
    stack: str | None = typer.Option(None, "--stack", help="A stack's name. [DEPLOY_KIT_STACK]"),
    model: str | None = typer.Option(None, "--model", help="A model's name. [DEPLOY_KIT_MODEL]"),
    drafter: str | None = typer.Option(None, "--drafter", help="Another drafter. [DEPLOY_KIT_DRAFTER]"),
    lever: list[str] = typer.Option([], "--lever", help="A lever; may be repeated. [DEPLOY_KIT_LEVERS]"),
    configs: Path | None = typer.Option(None, "--configs", help="The configurations' folder."),
    allow_missing_telemetry: bool = typer.Option(
        False,
        "--allow-missing-telemetry",
        help="Serve even when the telemetry plug-in did not apply. [DEPLOY_KIT_ALLOW_MISSING_TELEMETRY]",
    ),
    check: bool = typer.Option(False, "--check", help="Only check the plan's flags against this SGLang."),
    as_json: bool = typer.Option(False, "--json", help="With --check: print the result as JSON."),
) -> None:
    """Start SGLang for PROFILE as a child, pass its log through, forward signals, be ready only after a
    real completion, and end with a code that names the cause (docs/exit-codes.md)."""
    from dataclasses import replace

    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Profile
    from deploy_kit.output import print_json
    from deploy_kit.plan.resolve import resolve
    from deploy_kit.runtime.settings import read_settings

    settings = read_settings()
    settings = replace(
        settings,
        host=host or settings.host,
        stack=stack or settings.stack,
        model=model or settings.model,
        drafter=drafter or settings.drafter,
        levers=tuple(lever) or settings.levers,
        allow_missing_telemetry=allow_missing_telemetry or settings.allow_missing_telemetry,
    )
    catalog = Catalog.find(configs)
    if check:
        from deploy_kit.runtime.check import refuse_unknown_flags

        results = []
        for name in catalog.names(Profile) if profile == "all" else [profile]:
            plan = resolve(catalog, name, host=settings.host, stack=settings.stack, model=settings.model,
                           levers=settings.levers, address=settings.address, port=settings.port)  # fmt: skip
            version = refuse_unknown_flags(plan)
            results.append({"profile": name, "plan_id": plan.plan_id, "sglang": version, "flags": "ok"})
            if not as_json:
                typer.echo(f"{name}: plan {plan.plan_id}, every flag known to SGLang {version}")
        if as_json:
            print_json(results)
        return
    from deploy_kit.runtime.levers_off import LeversOff, texts_of
    from deploy_kit.runtime.serve import serve as run

    plan = resolve(
        catalog,
        profile,
        host=settings.host,
        stack=settings.stack,
        model=settings.model,
        drafter=settings.drafter,
        levers=settings.levers,
        address=settings.address,
        port=settings.port,
    )
    raise typer.Exit(run(plan, settings, LeversOff(texts_of(catalog, plan.levers))))
