"""Pictures: what they show, and files that are complete, repeatable or absent."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu import plots
from hyena_cpu.errors import InputError
from hyena_cpu.streams import WriteError

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
POINTS = [("chr1", 5, 0.5), ("chr2", 7, -2.0), ("chr1", 9, -0.25)]


@pytest.fixture
def needs_matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def piece(index: int, name: str, strand: str, positions: Any, values: Any) -> dict[str, Any]:
    n = len(positions)
    named = {"index": [index] * n, "id": [name] * n, "strand": [strand] * n}
    return {**named, "position": positions, "entropy": values}


def figure_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that are saved, kept for a look."""
    kept: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: kept.append(figure))
    return kept


@pytest.mark.usefixtures("needs_matplotlib")
@pytest.mark.parametrize("form", plots.FORMATS)
def test_equal_numbers_give_equal_files(tmp_path: Path, form: str) -> None:
    entropies = plots.Entropies()
    entropies.add(piece(0, "one", "fwd", [0, 1, 2, 3], [1.5, 1.0, np.nan, 2.0]))
    for name in ("a", "b"):
        plots.deltas(tmp_path / f"{name}.{form}", POINTS)
        entropies.draw(tmp_path / f"{name}e.{form}")
    for kind in ("", "e"):
        data = (tmp_path / f"a{kind}.{form}").read_bytes()
        assert data.startswith(MAGIC[form])
        assert data == (tmp_path / f"b{kind}.{form}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.usefixtures("needs_matplotlib")
def test_every_variant_is_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = figure_of(monkeypatch)
    plots.deltas(tmp_path / "x.svg", [point for point in POINTS if point[0] == "chr1"])
    plots.deltas(tmp_path / "x.svg", POINTS)
    plots.deltas(tmp_path / "x.svg", [])
    (one,), (two,), (none,) = [figure.axes for figure in kept]
    assert one.get_xlabel() == "position in chr1"
    np.testing.assert_array_equal(one.collections[0].get_offsets(), [[5, 0.5], [9, -0.25]])
    first, second = [c.get_offsets() for c in two.collections]
    np.testing.assert_array_equal(first[:, 1], [0.5, -0.25])
    np.testing.assert_array_equal(second[:, 1], [-2.0])
    assert second[:, 0].min() > first[:, 0].max()  # side by side
    assert [t.get_text() for t in two.get_xticklabels()] == ["chr1", "chr2"]
    assert not none.collections


@pytest.mark.usefixtures("needs_matplotlib")
def test_many_records_are_not_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = figure_of(monkeypatch)
    plots.deltas(tmp_path / "x.svg", [(f"r{i}", 1, 0.0) for i in range(90)])
    (panel,) = kept[0].axes
    assert len(panel.collections) == 90
    assert [t.get_text() for t in panel.get_xticklabels()] == [f"r{i}" for i in range(0, 90, 3)]


@pytest.mark.usefixtures("needs_matplotlib")
def test_a_panel_per_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = figure_of(monkeypatch)
    entropies = plots.Entropies()
    entropies.draw(tmp_path / "x.svg")
    for i in range(6):
        for strand in ("fwd", "rc"):
            steps = 1 if strand == "fwd" else -1
            for part in (slice(0, 2), slice(2, 4)):
                at = np.arange(4)[::steps][part]
                values = np.array([np.nan, 1.0, 2.0 - i / 10, 0.5])[at]
                entropies.add(piece(i, "same name", strand, at, values))
        entropies.add(piece(i, "", "", [], []))
        if i in (0, 5):
            entropies.draw(tmp_path / "x.svg")
    assert [len(figure.axes) for figure in kept] == [1, 2, plots.MOST_PANELS]
    assert [figure.get_suptitle() for figure in kept] == ["", "", "the first 8 of 12 sequences"]
    for i, panel in enumerate(kept[2].axes):
        np.testing.assert_array_equal(panel.lines[0].get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(panel.lines[0].get_ydata(), [1.0, 2.0 - i // 2 / 10, 0.5])
        other = ", reverse strand" if i % 2 else ""
        assert panel.get_title("left") == f"same name{other}"


@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats(0, 2)), max_size=40), max_size=12),
    st.sampled_from([2, 4, 16, 256]),
    st.booleans(),
)
def test_a_profile_holds_means_of_its_bins(pieces: Any, bins: int, backwards: bool) -> None:
    values = np.array([v for piece in pieces for v in piece], np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "BINS", bins)
        profile = plots.Profile()
        begin = 0
        for piece in pieces:
            at = np.arange(begin, begin + len(piece))
            begin += len(piece)
            profile.add(len(values) - 1 - at if backwards else at, piece)
        profile.add([-1], [9.0])  # a special token stands before the first position
        positions, means = profile.line()
    width = profile.width
    values = values[::-1] if backwards else values
    last = int(np.isfinite(values).nonzero()[0].max(initial=0))
    assert width == 1 or bins * width // 2 <= last < bins * width
    expected = []
    for begin in range(0, len(values), width):
        part = values[begin : begin + width]
        part = part[~np.isnan(part)]
        if len(part):
            expected.append((begin + (width - 1) / 2, part.mean()))
    np.testing.assert_allclose(np.stack([positions, means], 1), np.reshape(expected, (-1, 2)))


def test_pictures_of_another_form(tmp_path: Path) -> None:
    for name in ("x.jpg", "x", ".png"):
        with pytest.raises(InputError, match=r"plot is .* must end in one of png, svg, pdf"):
            plots.check(tmp_path / name)


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError
        return imported(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"plot needs matplotlib.*hyena-cpu\[plot\]"):
        plots.deltas(tmp_path / "x.png", POINTS)


@pytest.mark.usefixtures("needs_matplotlib")
def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=re.escape(f"cannot write {tmp_path}/absent/x.png")):
        plots.deltas(tmp_path / "absent" / "x.png", POINTS)
    (tmp_path / "x.png").mkdir()
    with pytest.raises(WriteError, match="cannot write"):
        plots.deltas(tmp_path / "x.png", POINTS)
    assert [p.name for p in tmp_path.iterdir()] == ["x.png"]
