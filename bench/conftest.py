"""Benchmarks print, after their run, what counts: ratios of medians within one group and run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line per peer: its median over ours, and the extra facts of our own line."""
    session = getattr(config, "_benchmarksession", None)
    groups: dict[str, list[Any]] = defaultdict(list)
    for bench in session.benchmarks if session is not None else []:
        if not bench.has_error:
            groups[bench.group or bench.name].append(bench)
    for group, benches in groups.items():
        ours = next((b for b in benches if b.extra_info.get("ours")), None)
        if ours is None:
            continue
        terminalreporter.section(f"{group}: times against ours", sep="-")
        for bench in sorted(benches, key=lambda b: float(b.stats.median)):
            ratio = bench.stats.median / ours.stats.median
            facts = ", ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in bench.extra_info.items()
                if key not in ("ours", "peer")
            )
            peer = bench.extra_info.get("peer", bench.name)
            milliseconds = bench.stats.median * 1e3
            terminalreporter.write_line(
                f"{peer:24} {ratio:6.2f}x  {milliseconds:10.3f} ms  {facts}"
            )
