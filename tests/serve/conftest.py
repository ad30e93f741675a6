"""Every test of the server runs on both lanes of HTTP."""

from __future__ import annotations

from typing import Any

import pytest
import serve_kit

from queen_actors.serve import listen


@pytest.fixture(params=["fast", "web"], autouse=True)
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lane that `serve_kit.server` has. A server with the other one is none of this test: settings that a test
    makes itself say `lane=serve_kit.LANE`."""
    name: str = request.param
    monkeypatch.setattr(serve_kit, "LANE", name)

    class Server(listen._Server):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            assert (self.fast is not None) == (name == "fast"), "a server on the lane that the test has not"

    monkeypatch.setattr(listen, "_Server", Server)
    return name
