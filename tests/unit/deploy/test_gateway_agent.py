"""The list of workers, and what smg says of one."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.deploy.gateway_agent import (
    EMPTY,
    change_manifest,
    in_flight,
    read_manifest,
    with_worker,
    without_worker,
)

urls = st.sampled_from([f"http://192.0.2.{number}:30000" for number in range(5)])


@given(st.lists(st.tuples(urls, st.booleans())))
def test_the_list_is_the_set_of_what_was_put_in(changes: list[tuple[str, bool]]) -> None:
    manifest, right = dict(EMPTY), set[str]()
    for url, present in changes:
        manifest = with_worker(manifest, url) if present else without_worker(manifest, url)
        right = right | {url} if present else right - {url}
    assert [worker["url"] for worker in manifest["workers"]] == sorted(right)


def test_a_change_that_changes_nothing_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    assert change_manifest(path, "http://a:1", present=True) is True
    before = path.stat().st_ino
    assert change_manifest(path, "http://a:1", present=True) is False
    assert path.stat().st_ino == before
    assert change_manifest(path, "http://a:1", present=False) is True
    assert read_manifest(path)["workers"] == []


def test_requests_of_every_registration_count() -> None:
    listing = {
        "workers": [
            {"url": "http://a:1", "status": "draining", "load": 2},
            {"url": "http://a:1", "status": "draining", "load": 1},
            {"url": "http://b:1", "status": "ready", "load": 9},
        ]
    }
    assert in_flight(listing, "http://a:1") == ("draining", 3)
    assert in_flight(listing, "http://c:1") == ("absent", 0)
