"""What all tests share."""

from collections.abc import Iterator
from typing import Any

import pytest
from browser import Lab, chromium_browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: who broke something simple should not wait for a browser to learn it."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the tests of one file: while it is open, asyncio cannot start anything in this thread."""
    with chromium_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab for the browser; its `root` is an empty folder."""
    server = Lab(tmp_path_factory.mktemp("lab"))
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
