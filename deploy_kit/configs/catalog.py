"""Finding and loading configuration files by name."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deploy_kit.configs.refusal import first_refusal
from deploy_kit.configs.schema import Host, Lever, Model, Profile, Stack, Strict
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

Kind = TypeVar("Kind", Stack, Model, Host, Profile, Lever)
AnyFile = TypeVar("AnyFile", bound=Strict)

_FOLDERS: dict[type[Strict], str] = {
    Stack: "stacks",
    Model: "models",
    Host: "hosts",
    Profile: "profiles",
    Lever: "levers",
}
FILE_LIMIT_BYTES = 4 * 2**20  # a device or a log in the place of a file must not be read for ever


@dataclass(frozen=True)
class Catalog:
    """The folder configs/: one file per stack, model, host, profile and lever."""

    folder: Path

    @classmethod
    def find(cls, folder: Path | None = None) -> Catalog:
        """Return the catalog in `folder`, else in $DEPLOY_KIT_CONFIGS, else beside the package or in the
        working directory; a `DeployKitError` says where it was looked for."""
        if folder is None and os.environ.get("DEPLOY_KIT_CONFIGS"):
            folder = Path(os.environ["DEPLOY_KIT_CONFIGS"])
        places = (
            [folder] if folder is not None else [*_working_folder(), Path(__file__).parents[2] / "configs"]
        )
        for place in places:
            if (place / "profiles").is_dir():
                return cls(place)
        raise DeployKitError(
            "the configurations are not there",
            key="--configs or DEPLOY_KIT_CONFIGS",
            found=", ".join(f"no {place}/profiles" for place in places),
            remedy="run from the repository's root, or name the folder that holds stacks/, models/, hosts/ …",
            exit_code=ExitCode.CONFIG,
        )

    def names(self, kind: type[Kind]) -> list[str]:
        """Return the names there are of this kind, sorted."""
        return sorted(path.stem for path in (self.folder / _FOLDERS[kind]).glob("*.toml"))

    def load(self, kind: type[Kind], name: str) -> Kind:
        """Return the configuration called `name`; when there is none, the error offers the nearest names."""
        path = self.folder / _FOLDERS[kind] / f"{name}.toml"
        known = self.names(kind)
        if name not in known:
            word = kind.__name__.lower()
            raise DeployKitError(
                f"no such {word}: {name}",
                file=self.folder / _FOLDERS[kind],
                found=name,
                allowed=nearest_names(name, known) or known,
                remedy=f"use one of these, or add {_FOLDERS[kind]}/{name}.toml",
                exit_code=ExitCode.UNKNOWN_NAME,
            )
        loaded = load_file(kind, path)
        if loaded.name != name:
            raise DeployKitError(
                f"a {kind.__name__.lower()} file must be called by its name",
                file=path,
                key="name",
                found=loaded.name,
                allowed=name,
                remedy="rename the file or correct the key; two files with one name are refused this way",
                exit_code=ExitCode.CONFIG,
            )
        return loaded

    def host(self, name_or_file: str) -> Host:
        """Return the host called so, or the one in that file when a path is given."""
        if "/" in name_or_file or name_or_file.endswith(".toml"):
            return load_file(Host, Path(name_or_file))
        return self.load(Host, name_or_file)


def load_file(kind: type[AnyFile], path: Path) -> AnyFile:
    """Read one TOML file and check it; errors name the file, the key, what was found and what is allowed."""
    word = kind.__name__.lower()
    # Windows editors begin a file with a mark.
    text = read_text(path, what=f"{word} file", limit_bytes=FILE_LIMIT_BYTES).removeprefix("\ufeff")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _no_toml(word, path, text, error) from error
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise _config_error(kind, path, error) from error


def _no_toml(word: str, path: Path, text: str, error: Exception) -> DeployKitError:
    place = re.search(r"at line (\d+), column \d+", str(error))
    number = int(place[1]) if place else len(text.splitlines())
    line = next(iter(text.splitlines()[number - 1 : number]), "")
    key = re.match(r"\s*([A-Za-z0-9_.\"-]+)\s*=", line)
    return DeployKitError(
        f"this {word} file is not TOML: {error}",
        file=path,
        key=key[1] if key else f"line {number}",
        found=repr(line[:120]) if line else "the end of the file",
        allowed='KEY = VALUE on one line, each key once, text in quotes ("…"); [TABLE] on a line of its own',
        remedy="correct the file; docs/configs.md lists every key",
        exit_code=ExitCode.CONFIG,
    )


def _config_error(kind: type[Strict], path: Path, error: ValidationError) -> DeployKitError:
    message, key, found, allowed, more = first_refusal(kind, error)
    suffix = f" (and {more} more problem{'s' if more > 1 else ''} in this file)" if more else ""
    return DeployKitError(
        f"{path.name}: {message}{suffix}",
        file=path,
        key=key,
        found=found,
        allowed=allowed,
        remedy="correct the file; docs/configs.md lists every key",
        exit_code=ExitCode.CONFIG,
    )


def _working_folder() -> list[Path]:
    try:
        return [Path.cwd() / "configs"]
    except OSError:  # the folder was removed under the shell
        return []
