"""`deploy-kit stack`: the pinned stacks."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show, lock, verify and compare the pinned stacks."
)
_CONFIGS = typer.Option(None, "--configs", help="The configurations' folder.")
_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command(epilog="Example: deploy-kit stack show current")
def show(
    name: str = typer.Argument("current"), configs: Path | None = _CONFIGS, as_json: bool = _JSON
) -> None:
    """Show a stack's pins."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.output import print_json

    stack = Catalog.find(configs).load(Stack, name)
    if as_json:
        print_json(stack.model_dump())
        return
    typer.echo(f"{stack.name}: {stack.description}\n  image          {stack.image}")
    typer.echo(f"  base           {stack.base.image}@{stack.base.digest}")
    for key, version in stack.versions.model_dump().items():
        typer.echo(f"  {key:<14} {version or 'none'}")
    typer.echo(f"  architectures  {', '.join(stack.architectures) or 'any CPU'}")
    typer.echo(f"  lock           {stack.requirements}")
    for patch in stack.patches:
        typer.echo(f"  patch          {patch.file} (lever {patch.lever}): {patch.why}")


@app.command(
    epilog="Example: deploy-kit stack verify            (all stacks; --online also asks the package index)"
)
def verify(
    name: str | None = typer.Argument(None, help="A stack; all when left out."),
    online: bool = typer.Option(
        False, "--online", help="Ask the index whether every pinned file is still there."
    ),
    image: str | None = typer.Option(
        None, "--image", help="With NAME: also compare this built image's labels."
    ),
    configs: Path | None = _CONFIGS,
    as_json: bool = _JSON,
) -> None:
    """Check that a stack's file, lock, patches, the Dockerfile and the flake agree. Exit 21 when not."""
    from dataclasses import asdict

    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json, stderr_console
    from deploy_kit.stacks.locks import read_lock
    from deploy_kit.stacks.verify import verify as run

    if image is not None and name is None:
        raise typer.BadParameter("--image needs the NAME of the stack it was built from")
    catalog = Catalog.find(configs)
    root = catalog.folder.parent
    results = {}
    for one in [name] if name else catalog.names(Stack):
        stack = catalog.load(Stack, one)
        checks = run(stack, root)
        if online:
            from rich.progress import Progress

            from deploy_kit.stacks.index import check_index

            pins = read_lock(root / stack.requirements).values()
            with Progress(console=stderr_console(), transient=True) as progress:
                task = progress.add_task(f"{one}: asking the index", total=len(pins))
                checks += check_index(pins, advance=lambda p=progress, t=task: p.advance(t))  # type: ignore[misc]
        if image is not None:
            from deploy_kit.deploy.stack_images import read_labels
            from deploy_kit.stacks.verify import check_labels

            checks += check_labels(stack, image, read_labels(image))
        results[one] = checks
    bad = sum(not check.ok for checks in results.values() for check in checks)
    if as_json:
        print_json({one: [asdict(check) for check in checks] for one, checks in results.items()})
    else:
        for one, checks in results.items():
            for check in checks:
                if not check.ok or not online or len(checks) < 20:
                    typer.echo(f"{'ok     ' if check.ok else 'DIFFERS'} {one}: {check.name}: {check.detail}")
            typer.echo(f"{one}: {sum(check.ok for check in checks)} of {len(checks)} agree")
    raise typer.Exit(int(ExitCode.VERDICT_FAIL if bad else ExitCode.OK))


@app.command(epilog="Example: deploy-kit stack diff rollback current")
def diff(one: str, other: str, configs: Path | None = _CONFIGS, as_json: bool = _JSON) -> None:
    """Say in words what differs between two stacks."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.output import print_json
    from deploy_kit.stacks.locks import read_lock
    from deploy_kit.stacks.verify import difference

    catalog = Catalog.find(configs)
    first, second = catalog.load(Stack, one), catalog.load(Stack, other)
    root = catalog.folder.parent
    lines = difference(
        first, second, read_lock(root / first.requirements), read_lock(root / second.requirements)
    )
    if as_json:
        print_json({"stacks": [one, other], "differences": lines})
    else:
        typer.echo("\n".join(lines) or "no difference")


@app.command(epilog="Example: deploy-kit stack lock current --dry-run")
def lock(
    name: str,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say whether the lock would change."),
    configs: Path | None = _CONFIGS,
    as_json: bool = _JSON,
) -> None:
    """Resolve a stack's requirements again into its lock, with hashes and without addresses."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.output import print_json
    from deploy_kit.stacks.lock import make_lock, write_lock

    catalog = Catalog.find(configs)
    stack = catalog.load(Stack, name)
    text, changed = make_lock(stack, catalog.folder.parent)
    if changed and not dry_run:
        write_lock(stack, catalog.folder.parent, text)
    if as_json:
        print_json(
            {
                "stack": name,
                "lock": stack.requirements,
                "changed": changed,
                "written": changed and not dry_run,
            }
        )
    else:
        outcome = "unchanged" if not changed else "would change" if dry_run else "written"
        typer.echo(f"{stack.requirements}: {outcome}")


@app.command("assert", epilog="Example (in the image's build): deploy-kit stack assert current --output FILE")
def assert_(
    name: str = typer.Argument("current"),
    site: Path | None = typer.Option(
        None, "--site", help="The site-packages folder; this Python's by default."
    ),
    only: list[str] = typer.Option(
        [],
        "--slice",
        help="A package; repeated: the folder holds only these, and what needs others is skipped.",
    ),
    output: Path | None = typer.Option(None, "--output", help="Also write the result there, as JSON."),
    configs: Path | None = _CONFIGS,
    as_json: bool = _JSON,
) -> None:
    """Check that an installed engine is exactly what its stack says: versions, one NCCL, patches, plug-in,
    compiled modules, no caches. Exit 21, with a sentence for each difference, when it is not."""
    import json
    import sysconfig
    from dataclasses import asdict

    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.files import write_atomically
    from deploy_kit.output import print_json
    from deploy_kit.stacks.engine import examine, examine_slice

    catalog = Catalog.find(configs)
    stack = catalog.load(Stack, name)
    root, folder = catalog.folder.parent, site or Path(sysconfig.get_path("purelib"))
    checks = examine_slice(stack, root, folder, only) if only else examine(stack, root, folder)
    result = {"stack": stack.name, "ok": all(check.ok for check in checks), "checks": [*map(asdict, checks)]}
    if output is not None:
        write_atomically(output, json.dumps(result, indent=1) + "\n")
    if as_json:
        print_json(result)
    else:
        for check in checks:
            typer.echo(f"{'ok     ' if check.ok else 'FAILED '} {check.name}: {check.detail}")
    raise typer.Exit(int(ExitCode.OK if result["ok"] else ExitCode.VERDICT_FAIL))


@app.command(epilog="Example: deploy-kit stack layers deploy-kit/sglang:0.5.23-cu130 lmsysorg/sglang:v0.5.20")
def layers(
    image: str = typer.Argument(help="A local image."),
    against: str | None = typer.Argument(None, help="Another one, to compare the whole sizes."),
    as_json: bool = _JSON,
) -> None:
    """Print an image's size by layer, unpacked, and compare it with another image's."""
    from dataclasses import asdict

    from deploy_kit.output import print_json
    from deploy_kit.stacks.layers import read_layers, total_bytes

    names = [image, *([against] if against else [])]
    found = {name: read_layers(name) for name in names}
    totals = {name: total_bytes(parts) for name, parts in found.items()}
    ratio = totals[image] / totals[against] if against and totals[against] else None
    if as_json:
        sizes = {
            name: {"size_bytes": totals[name], "layers": [asdict(layer) for layer in parts]}
            for name, parts in found.items()
        }
        print_json({"images": sizes, "ratio": ratio})
        return
    for name, parts in found.items():
        typer.echo(f"{name}: {totals[name] / 1e6:,.1f} MB")
        for layer in parts:
            typer.echo(f"  {layer.size_bytes / 1e6:>10,.1f}  {layer.made_by}")
    if ratio is not None:
        typer.echo(f"{image} is {ratio:.2f} of {against}")


@app.command(epilog="Example: deploy-kit stack build current        (the slice: --target slice)")
def build(
    name: str = typer.Argument("current"),
    target: str = typer.Option("gpu", "--target", help="gpu, slice or gpu-sbom."),
    tag: str | None = typer.Option(None, "--tag", help="The image's name; the stack's own by default."),
    output: Path | None = typer.Option(None, "--output", help="A folder for the files of gpu-sbom."),
    configs: Path | None = _CONFIGS,
    as_json: bool = _JSON,
) -> None:
    """Build a GPU stack's image. Needs 25 GB of disk and the better part of an hour on two cores."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.deploy.stack_images import TARGETS, build_target
    from deploy_kit.output import print_json, stderr_console

    if target not in TARGETS:
        raise typer.BadParameter(f"no such target: found {target}, allowed {', '.join(TARGETS)}")
    catalog = Catalog.find(configs)
    stack = catalog.load(Stack, name)
    if stack.rehearsal:
        raise typer.BadParameter(f"{name} is no GPU stack; `deploy-kit up` builds it")
    chosen = tag or (stack.image if target == "gpu" else f"{stack.image}-{target}")
    with stderr_console().status(f"building {chosen} (log: var/build-{target}.log)"):
        done = build_target(stack, catalog.folder.parent, target, tag=chosen, output=output)
    if as_json:
        print_json(done)
    elif output is not None:
        typer.echo("\n".join(str(path) for path in sorted(output.iterdir())))
    else:
        typer.echo(f"{done['tag']}: {done['id']}{'' if done['changed'] else ' (unchanged)'}")
