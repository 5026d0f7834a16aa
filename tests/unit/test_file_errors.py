"""What is said of a file that may not be read or written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error


@pytest.mark.parametrize(
    ("doing", "remedy"), [("cannot read the log", "let this user read it"), ("cannot write", "may write to")]
)
def test_the_remedy_is_for_what_was_tried(doing: str, remedy: str) -> None:
    error = file_error(doing, Path("x"), PermissionError(errno.EACCES, "Permission denied"))
    assert error.exit_code is ExitCode.PERMISSION
    assert remedy in (error.remedy or "")
