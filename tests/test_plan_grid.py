"""The plan holds: measured <= plan <= 1.10 x measured + 16 MiB, over models, calls and lengths.

The points that run always take about half a minute; HYENA_CPU_SLOW=1 runs the whole grid of
`plan_points`, lengths of up to a million tokens, which takes about ten minutes and 3 GB.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_points import POINTS, Models, Point, measure

QUICK = {
    "tiny-score-8192-2",
    "tiny-prefill-32768-2",
    "tiny-room-8192-2",
    "tiny-drop-32768-2",
    "tiny-extend-8192-2",
    "tiny-step-4x500-2",
    "tiny-step-7168+40-2",
    "order3-step-1024+40-2",
    "tiny-step-2x1000+4000-2",
    "tiny-last-32x500-2",
    "tiny-lengths-32768-2",
    "small-run-32768-2",
    "small-score-8192-1",
    "small-last-8192-2",
    "small-prefill-8192-2",
    "hybrid-score-8192-2",
    "hybrid-prefill-8192-2",
    "hybrid-score-32x500-2",
    "order3-score-8192-2",
    "order3-prefill-8192-1",
    "longconv-logits-8192-2",
    "circle-hidden-8192-2",
    "longconv-prefill-8192-2",
    "longconv-drop-1024-2",
    "longconv-far-1024+24000-2",
    "attention-prefill-1024-2",
    "words-logits-8192-2",
    "words-score-8192-2",
    "words-prefill-8192-2",
    "tiny-score-160000-2",
}
CHOSEN = POINTS if os.environ.get("HYENA_CPU_SLOW") else [p for p in POINTS if p.name in QUICK]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads Linux memory figures"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def test_the_quick_points_are_points() -> None:
    assert {p.name for p in POINTS} >= QUICK
    assert len(POINTS) == len({p.name for p in POINTS}) >= 60


@pytest.mark.parametrize("point", CHOSEN, ids=lambda point: point.name)
def test_a_run_takes_what_was_said(point: Point, models: Models) -> None:
    found = measure(point, models)
    print(point.name, found)
    assert found.problem is None, found
