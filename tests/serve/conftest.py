"""Every test of the server runs on both lanes of HTTP."""

from __future__ import annotations

import pytest
import serve_kit


@pytest.fixture(params=["fast", "web"], autouse=True)
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lane that `serve_kit.server` has."""
    name: str = request.param
    monkeypatch.setattr(serve_kit, "LANE", name)
    return name
