"""`deploy-kit down`; the last file, so that the tests before it find the deployment up."""

import httpx
import pytest

from .conftest import deploy_kit, run

pytestmark = [pytest.mark.docker, pytest.mark.engine]


def test_down_leaves_nothing() -> None:
    answer = deploy_kit("down", "--keep-docker")
    assert {"kimi-eagle", "prometheus", "alertmanager", "node-exporter"} <= set(answer["stopped_services"])
    label = "label=com.docker.compose.project=deploy-kit"
    assert run("docker", "ps", "--all", "--quiet", "--filter", label).stdout == ""
    assert run("docker", "network", "ls", "--quiet", "--filter", label).stdout == ""
    for port in (30000, 9090, 9093):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/", timeout=2)
    assert deploy_kit("down", "--keep-docker")["stopped_services"] == []
