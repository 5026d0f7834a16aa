"""What options mean together: `up --profile auto`, and combinations that are refused instead of ignored."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy_kit.cli.firstlight import app as firstlight
from deploy_kit.cli.plan import app
from deploy_kit.cli.up import _decided
from deploy_kit.deploy.up import Wish
from deploy_kit.errors import DeployKitError

ROOT = Path(__file__).parents[3]


def test_without_receipts_up_serves_the_baseline_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    wish = _decided(Wish("auto", rehearsal=True), tmp_path)
    assert (wish.profile, wish.levers) == ("baseline", ())
    assert wish.variables()["engine_profile"] == "baseline"
    said = capsys.readouterr().err
    assert "auto: baseline" in said
    assert "no receipts" in said


@pytest.mark.parametrize(
    "option", [("--receipts", "nowhere"), ("--among", "eagle3"), ("--traffic", "1:100")], ids=lambda o: o[0]
)
def test_options_that_choose_are_refused_where_nothing_is_chosen(option: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["baseline", "--configs", str(ROOT / "configs"), *option])
    assert done.exit_code != 0
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_profile_has_one_server_in_a_first_light(tmp_path: Path) -> None:
    command = ["-o", str(tmp_path / "x.tar.gz"), "--dry-run"]
    servers = ["--server", "baseline=http://a:1", "--server", "baseline=http://b:1"]
    done = CliRunner().invoke(firstlight, [*command, *servers])
    assert isinstance(done.exception, DeployKitError)
    assert done.exception.found == "baseline=http://a:1 and baseline=http://b:1"
