"""score --per-position --plot, and what --plot refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dna_toy import bases, dna_folder

from hyena_cpu import plots
from hyena_cpu.cli import main

REFERENCE = bases(300)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    dna_folder(folder / "model")
    (folder / "a.fa").write_text(f">one\n{REFERENCE}\n>bad\nAC-T\n>two\n{REFERENCE[:50]}\n")
    return folder


@pytest.fixture
def score(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(home)

    def run(*args: str) -> tuple[int, str, str]:
        capfd.readouterr()
        model = [] if "-m" in args else ["-m", "model"]
        return (main(["score", *model, "-t", "1", *args]), *capfd.readouterr())

    return run


def test_entropy_along_sequences(home: Path, score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kept: list[Any] = []
    save = plots._save

    def keeping(figure: Any, path: Path) -> None:
        kept.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", keeping)
    args = ["--fasta", "a.fa", "--per-position", "--strand", "both"]
    code, out, _ = score(*args, "--plot", "x.svg")
    assert code == 4  # for the record with a gap
    assert (home / "x.svg").read_text().startswith("<?xml")
    (home / "x.svg").unlink()
    assert out == score(*args)[1]
    head, *lines = [line.split("\t") for line in out.splitlines()]
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    names = [("0", "fwd"), ("0", "rc"), ("2", "fwd"), ("2", "rc")]
    assert len(kept[0].axes) == 4
    for (index, strand), panel in zip(names, kept[0].axes, strict=True):
        found = {
            int(row["position"]): float(row["entropy"])
            for row in rows
            if (row["index"], row["strand"]) == (index, strand) and row["entropy"] != "NA"
        }
        drawn = dict(zip(*panel.lines[0].get_data(), strict=True))
        assert drawn.keys() == found.keys()
        np.testing.assert_allclose([drawn[at] for at in found], list(found.values()), rtol=1e-8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--fasta", "a.fa", "--plot", "x.png"], "--plot draws what --per-position computes"),
        (["--fasta", "a.fa", "--per-position", "--plot", "x.gif"], "must end in one of png"),
        (["-m", "tiny-en", "some words", "--per-position", "--plot", "x.png"], "DNA only"),
    ],
)
def test_pictures_that_are_refused(home: Path, score: Any, args: list[str], message: str) -> None:
    code, out, err = score(*args)
    assert (code, out) == (2, "")
    assert message in err
    assert not list(home.glob("x.*"))


def test_a_picture_that_cannot_be_written_costs_no_table(home: Path, score: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (home / "taken.png").mkdir()
    code, _, err = score(
        "--fasta", "a.fa", "--per-position", "--plot", "taken.png", "-o", "table.tsv"
    )
    assert (code, "cannot write taken.png" in err) == (1, True)
    assert (home / "table.tsv").read_text().count("\n") == 1 + 300 + 50
