"""hyena-cpu variants: from a reference and a file of variants to a table."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE_HOME, shared_path
from dna_toy import bases, dna_folder, dna_model
from test_cli import assert_one_line, program

from hyena_cpu.cli import main
from hyena_cpu.genome import Genome
from hyena_cpu.sequences import read_fasta
from hyena_cpu.variant_files import Variant
from hyena_cpu.variants import COLUMNS, Setup, score_variants, values

REFERENCE = bases(900)
OTHER = dict(zip("ACGT", "CGTA", strict=True))
FASTA = f">chr1 made up\n{REFERENCE[:500].lower()}\n{REFERENCE[500:]}\n>chr2\n{REFERENCE[:200]}\n"


def base(pos: int, n: int = 1) -> str:
    return REFERENCE[pos - 1 : pos - 1 + n]


SNVS = [("chr1", pos, base(pos), alt) for pos in (400, 410) for alt in "ACGT" if alt != base(pos)]
ROWS = [
    *SNVS,
    ("chr2", 50, base(50, 4), base(50)),
    ("chr1", 600, base(600), base(600) + "ACGT"),
]
TABLE = "".join("\t".join(map(str, row)) + "\n" for row in [("chrom", "pos", "ref", "alt"), *ROWS])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants")
    dna_folder(folder / "model")
    (folder / "ref.fa").write_text(FASTA)
    (folder / "v.tsv").write_text(TABLE)
    return folder


class Run:
    """The command's exit code, its two streams, and the rows of a TSV on standard output."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out), delimiter="\t"))


@pytest.fixture
def variants(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(home)

    def run(*args: str) -> Run:
        given = ["-t", "1"] if "-m" in args else ["-t", "1", "-m", "model"]
        if "--reference" not in args:
            given += ["--reference", "ref.fa"]
        if "--variants" not in args:
            given += ["--variants", "v.tsv"]
        capfd.readouterr()
        code = main(["variants", *given, *args])
        return Run(code, *capfd.readouterr())

    return run


def expected(home: Path, rows: list[Any] = ROWS, **settings: Any) -> list[dict[str, str]]:
    table = [Variant(i, None, *row) for i, row in enumerate(rows)]
    with Genome(read_fasta(home / "ref.fa")) as genome:
        found = [values(r) for r in score_variants(dna_model(), genome, table, Setup(**settings))]
    return [
        {
            name: "NA" if v is None else f"{v:.10g}" if isinstance(v, float) else str(v)
            for name, v in row.items()
        }
        for row in found
    ]


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        ([], {}),
        (["--window", "100"], {"window": 100}),
        (["--window", "300", "--strand", "both"], {"window": 300, "strand": "both"}),
        (
            ["--window", "300", "--no-share", "--strand", "rc"],
            {"window": 300, "strand": "rc", "share": False},
        ),
    ],
)
def test_the_table_is_what_the_library_says(
    home: Path, variants: Any, args: list[str], settings: Any
) -> None:
    run = variants(*args)
    assert run.code == 0, run.err
    assert run.out.splitlines()[0] == "\t".join(COLUMNS)
    assert run.rows == expected(home, **settings)
    assert {row["status"] for row in run.rows} == {"ok"}
    assert run.err == (
        "hyena-cpu: letters of the reference folded to upper case: 500 (--case upper)\n"
    )


def test_what_is_said_with_v(home: Path, variants: Any) -> None:
    (home / "snv.tsv").write_text("".join(TABLE.splitlines(keepends=True)[: 1 + len(SNVS)]))
    run = variants("-v", "--window", "200", "--variants", "snv.tsv")
    assert "windows of 200 bases\n" in run.err
    # Two windows; the reference and three alleles go on from the prefix of each.
    shared, whole = 2 * (100 + 4 * 100), 2 * 4 * 200
    assert f"tokens that the model takes in: {shared} ({whole} without sharing)\n" in run.err
    run = variants("-v", "--window", "200", "--variants", "snv.tsv", "--no-share")
    assert f"tokens that the model takes in: {whole} ({whole} without sharing)\n" in run.err


def test_forms(home: Path, variants: Any) -> None:
    wanted = expected(home)
    objects = json.loads(variants("--json").out)
    lines = [json.loads(line) for line in variants("--format", "jsonl").out.splitlines()]
    assert objects == lines
    assert [str(row["pos"]) for row in objects] == [row["pos"] for row in wanted]
    assert list(objects[0]) == list(COLUMNS)
    assert variants("-o", "x.tsv").out == ""
    assert (home / "x.tsv").read_text() == variants().out
    (home / "x.tsv").unlink()


def test_parquet(home: Path, variants: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert variants("-o", "x.parquet").code == 0
    table = parquet.read_table(home / "x.parquet").to_pylist()
    assert table == json.loads(variants("--json").out)
    (home / "x.parquet").unlink()


def test_a_failed_row_does_not_stop_the_others(home: Path, variants: Any) -> None:
    bad = "chr1\t400\tACGTACGTAC\tT\nchr3\t4\tA\tC\nchr1\t400\t" + base(400) + "\t<DEL>\n"
    (home / "bad.tsv").write_text(TABLE + bad + TABLE.split("\n", 1)[1])
    run = variants("--variants", "bad.tsv")
    assert run.code == 4
    assert "error: 2 of the variants could not be scored: their status says why" in run.err
    assert "warning: 1 of the alleles are no sequences of bases and were skipped" in run.err
    status = [row["status"].split(":")[0] for row in run.rows]
    assert status == 8 * ["ok"] + ["error", "error", "skipped"] + 8 * ["ok"]
    assert "the reference has" in run.rows[8]["status"]
    assert "expects ACGTACGTAC" in run.rows[8]["status"]
    assert "no record 'chr3': it has chr1, chr2" in run.rows[9]["status"]
    assert [row["delta_sum"] for row in run.rows[11:]] == [row["delta_sum"] for row in run.rows[:8]]
    assert [row["index"] for row in run.rows] == [str(i) for i in range(19)]


def test_only_skipped_alleles_are_no_failure(home: Path, variants: Any) -> None:
    (home / "skip.tsv").write_text(f"chrom\tpos\tref\talt\nchr1\t400\t{base(400)}\t*\n")
    run = variants("--variants", "skip.tsv")
    assert (run.code, run.rows[0]["status"]) == (0, "skipped: alt * is no sequence of bases")


def test_vcf(home: Path, variants: Any) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    head = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    alts = ",".join(alt for _, pos, _, alt in SNVS if pos == 400)
    body = f"chr1\t400\trs7\t{base(400)}\t{alts},<DEL>\t.\t.\t.\n"
    (home / "v.vcf.gz").write_bytes(gzip.compress((head + body).encode()))
    run = variants("--variants", "v.vcf.gz")
    assert run.code == 0
    assert [row["alt"] for row in run.rows] == [*alts.split(","), "<DEL>"]
    assert {row["id"] for row in run.rows} == {"rs7"}
    assert [row["delta_sum"] for row in run.rows[:3]] == [
        row["delta_sum"] for row in variants().rows[:3]
    ]
    run = variants_error(variants, "--variants", "v.vcf.gz", "--columns", "id=x")
    assert (run.code, "acts on tables, and v.vcf.gz is VCF" in run.err) == (2, True)


def test_columns_and_offset(home: Path, variants: Any) -> None:
    (home / "one.fa").write_text(f">cut\n{REFERENCE}\n")
    lines = [f"{pos + 43_000_000},{ref},{alt},x{pos}" for _, pos, ref, alt in SNVS]
    (home / "v.csv").write_text("\n".join(["start,ref,alt,name", *lines]) + "\n")
    args = ["--reference", "one.fa", "--variants", "v.csv", "--columns", "pos=start,id=name"]
    run = variants(*args, "--offset", "43000001", "--window", "100")
    assert run.code == 0, run.err
    assert run.rows[0]["chrom"] == "cut"
    assert run.rows[0]["id"] == "x400"
    assert int(run.rows[0]["window_start"]) == int(run.rows[0]["pos"]) - 50
    plain = variants("--window", "100").rows[: len(SNVS)]
    assert [row["delta_sum"] for row in run.rows] == [row["delta_sum"] for row in plain]


def test_standard_input(home: Path, variants: Any) -> None:
    command = [sys.executable, "-m", "hyena_cpu", "variants", "-m", str(home / "model"), "-t", "1"]
    want = variants().out
    for name, option, other in (
        ("ref.fa", "--reference", "v.tsv"),
        ("v.tsv", "--variants", "ref.fa"),
    ):
        rest = "--variants" if option == "--reference" else "--reference"
        run = subprocess.run(
            [*command, option, "-", rest, str(home / other)],
            input=gzip.compress((home / name).read_bytes()),
            capture_output=True,
            cwd=PACKAGE_HOME,
            timeout=120,
        )
        assert run.stdout.decode() == want, run.stderr.decode()


def test_resume_goes_on_with_the_same_digits(
    home: Path, variants: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = variants("--window", "300").out
    model = type(dna_model())
    calls = []
    branching = model.token_logprobs_branching

    def interrupted(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return branching(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(model, "token_logprobs_branching", interrupted)
        run = variants("--window", "300", "-o", "long.tsv")
    assert run.code == 130
    assert "holds the first 3 records" in run.err
    assert not (home / "long.tsv").exists()
    other = variants_error(variants, "--window", "200", "-o", "long.tsv", "--resume")
    assert other.code == 2
    assert "window was 300 and is 200" in other.err
    assert variants("--window", "300", "-o", "long.tsv", "--resume").code == 0
    assert (home / "long.tsv").read_text() == want
    assert not list(home.glob("long.tsv.*"))
    (home / "long.tsv").unlink()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"chrom,start\n", "the header has no column 'pos' (it has: chrom, start)"),
        (b"pos,ref,alt\n1,A,\xff\n", "is not UTF-8 text"),
        (b'pos,ref,alt\n1,"A,C\n', "is no table"),
        (gzip.compress(b"pos,ref,alt\n1,A,C\n")[:-9], "cannot be read"),
        (b"##fileformat=VCF\nnonsense\n", "cannot be read as VCF"),
        (gzip.compress(b"##fileformat=VCF\nnonsense\n"), "cannot be read as VCF"),
    ],
)
def test_standard_input_is_named_as_such(home: Path, data: bytes, message: str) -> None:
    if b"VCF" in data or data[:2] == b"\x1f\x8b":
        pytest.importorskip("pysam", reason="pysam is not installed")
    args = ("variants", "--reference", str(home / "ref.fa"), "--variants", "-")
    run = program(*args, input=data)
    assert_one_line(run, 4, f"standard input: {message}")
    assert tempfile.gettempdir() + "/tmp" not in run.stderr.decode()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes(home: Path, variants: Any) -> None:
    """The variants are read several times, which a pipe is not."""
    pytest.importorskip("pysam", reason="pysam is not installed")
    body = f"chr1\t400\trs7\t{base(400)}\t{OTHER[base(400)]}\t.\t.\t.\n"
    head = "##fileformat=VCFv4.2\n##contig=<ID=chr1>\n"
    (home / "p.vcf").write_text(f"{head}#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n{body}")
    os.mkfifo(home / "pipe")
    for name in ("v.tsv", "p.vcf"):
        want = variants("--variants", name).out
        writer = threading.Thread(
            target=lambda data: (home / "pipe").write_bytes(data),
            args=[(home / name).read_bytes()],
            daemon=True,
        )
        writer.start()
        run = variants("--variants", "pipe")
        assert (run.code, run.out) == (0, want), run.err
        writer.join(60)
    run = variants_error(variants, "--variants", ".")
    assert (run.code, ".: cannot be read: Is a directory" in run.err) == (4, True)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no named sockets here")
def test_what_is_no_file_and_cannot_be_read(variants: Any) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        run = variants_error(variants, "--variants", "socket")
    assert (run.code, "error: socket: cannot be copied to" in run.err) == (4, True)


def test_a_quote_loses_no_variant(home: Path, variants: Any) -> None:
    rows = "".join("\t".join(map(str, row)) + f'\t"{row[1]}\n' for row in ROWS)
    (home / "quote.tsv").write_text("chrom\tpos\tref\talt\tid\n" + rows)
    run = variants("--variants", "quote.tsv")
    assert (run.code, len(run.out.splitlines())) == (0, 1 + len(ROWS))


def test_a_reference_with_letters_that_are_not_ascii(home: Path, variants: Any) -> None:
    (home / "accents.fa").write_text(">é 5\u2032\nAé\n" + FASTA.replace("made", "made\u2032"))
    run = variants("--reference", "accents.fa")
    assert (run.code, run.out) == (0, variants().out)


def test_a_picture(home: Path, variants: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn: list[Any] = []
    monkeypatch.setattr("hyena_cpu.plots._points", lambda _, records: drawn.append(records))
    (home / "some.tsv").write_text(TABLE + "chr1\t5\tA\t*\nchr1\tx\tA\tC\n")
    run = variants("--variants", "some.tsv", "--plot", "x.svg")
    assert (home / "x.svg").read_text().startswith("<?xml")
    (home / "x.svg").unlink()
    points = [(record, *point) for record, found in drawn[0].items() for point in found]
    wanted = [row for row in run.rows if row["status"] == "ok"]
    wanted.sort(key=lambda row: row["chrom"])
    assert points == [
        (row["chrom"], int(row["pos"]), pytest.approx(float(row["delta_sum"]))) for row in wanted
    ]
    assert len(points) == len(ROWS)


def variants_error(variants: Any, *args: str) -> Run:
    run: Run = variants(*args)
    assert run.out == ""
    assert run.err.splitlines()[-1].startswith("hyena-cpu: error: ")
    return run


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-o", "x.npz"], 2, "--output x.npz: npz has no way to say"),
        (["--format", "npz", "-o", "x.tsv"], 2, "--format: invalid choice: 'npz'"),
        (["--reference", "-", "--variants", "-"], 2, "cannot both be standard input"),
        (["--columns", "pos"], 2, "'pos' must be NAME=COLUMN"),
        (["--columns", "pos=a,pos=b"], 2, "'pos' is given twice"),
        (["--columns", "end=pos"], 2, "'end' is none of chrom, pos, ref, alt, id"),
        (["--columns", "pos=start"], 4, "v.tsv: the header has no column 'start'"),
        (["--window", "1"], 2, "must be a whole number, at least 2"),
        (["--window", "401"], 6, "window is 401 but toy-dna takes at most 400"),
        (["--offset", "-1"], 2, "at least 0"),
        (["--special", "hf"], 2, "unrecognized arguments: --special"),
        (["--plot", "x.jpg"], 2, "--plot is 'x.jpg', must end in one of png, svg, pdf"),
        (["--plot", "absent/x.png"], 2, "--plot absent/x.png: there is no such folder"),
        (["--plot", "x.png", "--resume", "-o", "x.tsv"], 2, "--resume excludes it"),
        (["--plot", "x.png", "-o", "x.png"], 2, "are the same file"),
        (["--resume"], 2, "cannot be resumed"),
        (["--variants", "absent"], 4, "absent: cannot be read: No such file"),
        (["--variants", "ref.fa"], 4, "the header has no column 'pos'"),
        (["--reference", "absent"], 4, "absent: cannot be opened"),
        (["--reference", "v.tsv"], 4, "is not FASTA"),
        (["--max-memory", "1K"], 6, "max-memory"),
    ],
)
def test_errors(variants: Any, args: list[str], code: int, message: str) -> None:
    run = variants_error(variants, *args)
    assert message in run.err
    assert run.code == code


def test_models_for_text_are_refused(variants: Any) -> None:
    run = variants_error(variants, "-m", "tiny-en")
    assert run.code == 3
    assert "does not take one token per base" in run.err


def test_a_table_without_chromosomes(home: Path, variants: Any) -> None:
    (home / "short.tsv").write_text("pos\tref\talt\n5\tA\tC\n")
    run = variants_error(variants, "--variants", "short.tsv")
    assert run.code == 4
    assert "the reference has 2 records (chr1, chr2)" in run.err


def test_brca1_rows(home: Path, variants: Any) -> None:
    folder = shared_path("data", "dna_brca1_region")
    lines = (folder / "brca1_sge_3893.csv").read_text().splitlines()[:7]
    (home / "few.csv").write_text("\n".join(lines) + "\n")
    args = ["--columns", "pos=pos_hg38", "--offset", "43029321", "--window", "64"]
    reference = str(folder / "chr17_GRCh38_brca1_window.fa")
    run = variants("--reference", reference, "--variants", "few.csv", *args)
    assert run.code == 0, run.err
    assert [row["status"] for row in run.rows] == 6 * ["ok"]
    assert {row["chrom"] for row in run.rows} == {"chr17"}
