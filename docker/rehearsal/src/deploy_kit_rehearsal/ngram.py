"""SGLang's own n-gram module (C++, not a stand-in), compiled when the image is made instead of at every
start.

SGLang compiles it on first use and caches the result under a key that holds the compiler's version and the
hashes of the system's headers, so a cache made elsewhere is no use on a machine without a compiler. Here the
same sources are compiled to a file in this package, and the plug-in hands that file to SGLang.
"""

import os
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODULE = "ngram_corpus"
SOURCES = ("result.cpp", "trie.cpp", "suffix_automaton.cpp", "ngram.cpp", "ngram_corpus_ffi.cpp")
LOAD = f"sglang.kernels.ops.speculative.{MODULE}.load_jit"


class CannotCompileError(Exception):
    """The compiler is missing or refused; the message says which and what it printed."""


def built_library() -> Path:
    """Return where the compiled module of the installed SGLang belongs."""
    return Path(__file__).parent / "_built" / f"{MODULE}-sglang-{version('sglang')}.so"


def compile_command(kernels: Path, output: Path, compiler: str) -> list[str]:
    """Given SGLang's kernel folder, return the compiler's command line: the flags that SGLang itself would
    pass."""
    from tvm_ffi import libinfo  # type: ignore[import-not-found,unused-ignore]

    runtime = Path(libinfo.find_libtvm_ffi())
    includes = dict.fromkeys(
        [str(kernels / "include"), libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    )
    return [
        compiler,
        *("-shared", "-fPIC", "-std=c++20", "-O3", "-s"),
        *(f"-I{folder}" for folder in includes),
        *(str(kernels / "csrc" / MODULE / source) for source in SOURCES),
        f"-L{runtime.parent}",
        f"-l{runtime.stem.removeprefix('lib')}",
        *("-o", str(output)),
    ]


def build() -> Path:
    """Compile the module and return its file. Raises CannotCompileError; leaves nothing half-written."""
    import importlib.util

    # Not of the submodule: that would import its parents, and the folder is all that is wanted.
    found = importlib.util.find_spec("sglang")
    if found is None or found.origin is None:
        raise CannotCompileError("SGLang is not installed in this environment")
    kernels = Path(found.origin).parent / "kernels" / "jit"
    library = built_library()
    library.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        output = Path(scratch) / library.name
        try:
            subprocess.run(
                compile_command(kernels, output, compiler), check=True, capture_output=True, text=True
            )
        except FileNotFoundError:
            raise CannotCompileError(
                f"no C++ compiler: {compiler} not found (set CXX, or install g++)"
            ) from None
        except subprocess.CalledProcessError as error:
            raise CannotCompileError(
                f"{compiler} exited with {error.returncode}:\n{error.stderr[-2000:]}"
            ) from None
        output.chmod(0o755)
        output.replace(library)
    return library


def load_built_module(load_jit: Any, *names: str, **options: Any) -> Any:
    """Stand around SGLang's `load_jit` in the n-gram module: load the compiled file where it is there."""
    library = built_library()
    if names != (MODULE,) or not library.is_file():
        return load_jit(*names, **options)
    from tvm_ffi import load_module

    return load_module(str(library))
