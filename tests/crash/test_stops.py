"""When a refusal is honest because the broker is about to stop."""

from __future__ import annotations

import pytest

from .audit import audit
from .story import Story


@pytest.mark.parametrize(("told", "ended", "honest"), [(-0.1, 1.0, True), (0.1, 1.0, False), (-9.0, -8.0, False)])
def test_only_a_broker_that_is_stopping_may_refuse(told: float, ended: float, honest: bool) -> None:
    """A call that was answered 503 after it was told to stop, and not one that was answered before or in another
    life."""
    story = Story()
    call = story.named["put again"]
    call.status = 503
    story.history.stops.append((call.answered + told, call.answered + ended))
    story.read()
    found = [text for text in audit(story.history, drained=True) if "503" in text]
    assert (not found) is honest, found
