"""Models of the hub: from a cache without network, and downloaded from a hub on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from hub_files import COMMIT, REPO, Hub, cached, original_files, port_files, serve
from hyenadna_files import PUBLIC
from in_process import run_cli
from model_files import GOLDEN, golden
from test_cli import assert_one_line

import hyena_cpu
from hyena_cpu import InputError, ModelError
from hyena_cpu.hub import HYENADNA, hub_id

pytest.importorskip("huggingface_hub", reason="hub ids need huggingface_hub")

AUTHORS = REPO.removesuffix("-hf")


# ---- names


def test_short_names_are_those_of_the_seven() -> None:
    ids = {model.alias: f"LongSafari/hyenadna-{name}-hf" for name, model in PUBLIC.items()}
    assert ids == HYENADNA


@pytest.mark.parametrize(
    ("name", "repo"),
    [
        ("LongSafari/hyenadna-tiny-1k-seqlen-hf", "LongSafari/hyenadna-tiny-1k-seqlen-hf"),
        ("hyenadna-large-1m", "LongSafari/hyenadna-large-1m-seqlen-hf"),
        (Path("LongSafari/hyenadna-tiny-1k-seqlen-hf"), None),
        ("hyenadna", None),
        ("./a/b", None),
        ("/a/b", None),
        ("~/b", None),
        ("a/b/c", None),
        ("a/b/", None),
        ("../b", None),
        ("a/..", None),
        ("a\\b", None),
        ("a/b\n", None),
        ("a/" + "b" * 300, None),
        ("", None),
    ],
)
def test_what_is_an_id(name: str | Path, repo: str | None) -> None:
    assert hub_id(name) == repo


def test_a_name_of_nothing_lists_those_there_are() -> None:
    with pytest.raises(
        ModelError, match=r"hyenadna-small: no such folder; names .*: tiny-en, .*"
    ) as e:
        hyena_cpu.load("hyenadna-small")
    assert all(name in str(e.value) for name in HYENADNA)
    with pytest.raises(ModelError, match=r"x/y/z: no such folder$"):
        hyena_cpu.load("x/y/z")


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / REPO
    local.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (local / name).write_bytes(port_files()[name])
    monkeypatch.chdir(tmp_path)
    model = hyena_cpu.load(REPO, threads=1)
    assert model.folder == Path(REPO)
    assert model.fingerprint == golden("hyenadna/hf_causal_lm").fingerprint
    with pytest.raises(InputError, match=r"revision acts on a model of the hub .* which Long"):
        hyena_cpu.load(REPO, revision="main")
    with pytest.raises(InputError, match="cache_dir acts on a model of the hub"):
        hyena_cpu.load(cache_dir=tmp_path)


# ---- from the cache


@pytest.mark.parametrize("name", [REPO, "hyenadna-small-32k"])
@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_from_the_cache(name: str, revision: str | None, tmp_path: Path) -> None:
    snapshot = cached(tmp_path, port_files())
    assert (snapshot / "model.safetensors").is_symlink()
    model = hyena_cpu.load(name, revision=revision, cache_dir=tmp_path, offline=True, threads=1)
    assert model.name == REPO
    assert model.folder == snapshot
    assert f"{REPO}: commit {COMMIT}" in model.notes
    expected = golden("hyenadna/hf_causal_lm")
    assert model.fingerprint == expected.fingerprint
    with np.load(GOLDEN / "hyenadna/hf_causal_lm.npz") as data:
        want = data["logits_a"][0]
        got = model.logits(data["input_ids_a"][0])
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


def test_a_tag_in_the_cache(tmp_path: Path) -> None:
    cached(tmp_path, port_files(), revision="v1")
    assert hyena_cpu.load(REPO, revision="v1", cache_dir=tmp_path, offline=True).name == REPO
    with pytest.raises(ModelError, match=f"{REPO}: not in the cache {tmp_path}.*: load it once"):
        hyena_cpu.load(REPO, cache_dir=tmp_path, offline=True)
    with pytest.raises(ModelError, match=f"{REPO}, revision v2: not in the cache"):
        hyena_cpu.load(REPO, revision="v2", cache_dir=tmp_path, offline=True)


def test_pickles_in_the_cache_are_not_opened(tmp_path: Path) -> None:
    files = {"config.json": port_files()["config.json"], "pytorch_model.bin": b"\x80\x02"}
    snapshot = cached(tmp_path, files)
    with pytest.raises(ModelError, match=rf"only pytorch_model\.bin.*convert {snapshot} NEW"):
        hyena_cpu.load(REPO, cache_dir=tmp_path, offline=True)


def test_a_cache_without_weights_or_with_a_part(tmp_path: Path) -> None:
    cached(tmp_path / "a", {"config.json": b"{}"})
    with pytest.raises(ModelError, match=f"{COMMIT}, has no safetensors weights"):
        hyena_cpu.load(REPO, cache_dir=tmp_path / "a", offline=True)
    cached(tmp_path / "b", {"model.safetensors": port_files()["model.safetensors"]})
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        hyena_cpu.load(REPO, cache_dir=tmp_path / "b", offline=True)


def test_no_memory_is_not_the_fault_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("huggingface_hub.snapshot_download", fails)
    with pytest.raises(MemoryError):
        hyena_cpu.load(REPO, cache_dir=tmp_path)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"no such folder; .* pip install 'hyena-cpu\[hub\]'"):
        hyena_cpu.load(REPO, cache_dir=tmp_path)


# ---- the program, with the variables of the library


def program(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HYENA_CPU"))}
    return subprocess.run(
        [sys.executable, "-m", "hyena_cpu", *args],
        capture_output=True,
        text=True,
        cwd=PACKAGE_HOME,
        env=kept | {"PYTHONPATH": str(PACKAGE_HOME), "NO_PROXY": "127.0.0.1"} | variables,
        timeout=120,
    )


def fails(run: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert (run.returncode, run.stdout) == (code, ""), run.stderr
    (line,) = run.stderr.splitlines()
    assert message in line


def test_the_environment_says_offline_and_where_the_cache_is(tmp_path: Path) -> None:
    cached(tmp_path, port_files())
    run = program("info", "-m", REPO, "--json", HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert f'"model": "{REPO}"' in run.stdout
    (tmp_path / "home").mkdir()
    (tmp_path / "home/hub").symlink_to(tmp_path)
    run = program("info", "-m", REPO, "--offline", HF_HOME=str(tmp_path / "home"))
    assert run.returncode == 0, run.stderr
    elsewhere = str(tmp_path / "other")
    run = program("info", "-m", REPO, "--cache-dir", elsewhere, HF_HUB_OFFLINE="1")
    fails(run, 3, f"not in the cache {elsewhere}")


@pytest.mark.parametrize("option", ["--revision", "--cache-dir"])
def test_options_that_act_on_the_hub_alone(option: str) -> None:
    message = f"{option} acts on a model of the hub"
    assert_one_line(run_cli("info", option, "x"), 2, message)


def test_no_network(tmp_path: Path) -> None:
    args = ["info", "-m", REPO, "--cache-dir", str(tmp_path)]
    nowhere = "http://127.0.0.1:9"
    fails(program(*args, HF_ENDPOINT=nowhere), 3, "the hub cannot be reached: connect to the net")
    cached(tmp_path, port_files())
    assert program(*args, HF_ENDPOINT=nowhere).returncode == 0  # what is there needs no network


@pytest.fixture
def hub() -> Iterator[Hub]:
    others = {AUTHORS: original_files(), "a/text": {"README.md": b"# Nothing else"}}
    with serve({REPO: port_files(), **others}) as served:
        yield served


def test_download(hub: Hub, tmp_path: Path) -> None:
    args = ["info", "-m", "hyenadna-small-32k", "--json", "--cache-dir", str(tmp_path)]
    first = program(*args, HF_ENDPOINT=hub.url)
    assert (first.returncode, first.stderr) == (0, "")
    assert hub.downloads() == {"config.json", "model.safetensors"}  # no code, no pickle
    hub.asked.clear()
    again = program(*args, HF_ENDPOINT=hub.url)
    assert (again.returncode, hub.downloads()) == (0, set())
    offline = program(*args, "--offline", HF_ENDPOINT=hub.url)
    assert offline.stdout == again.stdout == first.stdout
    pinned = program(*args, "--revision", COMMIT, HF_HUB_OFFLINE="1")
    assert pinned.stdout == first.stdout


def test_what_the_hub_does_not_have(hub: Hub, tmp_path: Path) -> None:
    def load(*args: str) -> subprocess.CompletedProcess[str]:
        return program("info", "--cache-dir", str(tmp_path), "-m", *args, HF_ENDPOINT=hub.url)

    fails(load("no/model"), 3, "no/model: neither a folder here nor a model of the hub")
    fails(load(REPO, "--revision", "v9"), 3, f"{REPO}, revision v9: the hub has no such revision")
    fails(load("a/text"), 3, "a/text: it has no safetensors weights on the hub")
    run = load(AUTHORS)
    fails(run, 3, "only weights.ckpt on the hub, a PyTorch file, which is never fetched")
    assert f"hf download {AUTHORS} --local-dir FOLDER, then hyena-cpu convert" in run.stderr
    assert f"or use {REPO}" in run.stderr
    assert "weights.ckpt" not in hub.downloads()


def test_a_cache_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = program("info", "-m", REPO, "--cache-dir", str(tmp_path / "file"), HF_ENDPOINT=hub.url)
    fails(run, 3, f"cannot be stored in the cache {tmp_path / 'file'}: ")
