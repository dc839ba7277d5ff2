"""What all tests share."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: who broke something simple should not wait for a browser to learn it."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
