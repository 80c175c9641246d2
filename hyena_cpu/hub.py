"""Models of the Hugging Face hub by id, from its local cache or downloaded into it.

`huggingface_hub` does the work, so its cache, its environment variables (HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT) and files that other programs have put there are used as
they are. Only configuration, safetensors and tokenizer files are asked for, never pickles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .errors import InputError, ModelError
from .files import expanded

# Top-level files that a model folder can have here. Pickles and code are not among them.
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "reference.json",
    "*.safetensors",
    "*.safetensors.index.json",
)
PICKLES = (".ckpt", ".bin", ".pt", ".pth")
LONGEST_ID = 200  # characters; the hub allows half of it

# The public HyenaDNA checkpoints, by name without `-seqlen`, in the layout that loads directly.
HYENADNA = {
    name: f"LongSafari/hyenadna-{stem}-hf"
    for name, stem in (
        ("hyenadna-tiny-1k", "tiny-1k-seqlen"),
        ("hyenadna-tiny-1k-d256", "tiny-1k-seqlen-d256"),
        ("hyenadna-tiny-16k", "tiny-16k-seqlen-d128"),
        ("hyenadna-small-32k", "small-32k-seqlen"),
        ("hyenadna-medium-160k", "medium-160k-seqlen"),
        ("hyenadna-medium-450k", "medium-450k-seqlen"),
        ("hyenadna-large-1m", "large-1m-seqlen"),
    )
}
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class IdleOptionError(InputError):
    """An option of the hub where no model of the hub is meant."""


def hub_id(name: str | Path) -> str | None:
    """The id that a name stands for: ORG/NAME or a short name; None where a folder has it."""
    if isinstance(name, Path) or len(name) > LONGEST_ID:
        return None
    repo = HYENADNA.get(name) or (name if _ID.fullmatch(name) else None)
    return None if Path(name).exists() else repo


def is_unknown_name(name: str | Path) -> bool:
    """Whether it is a plain word, no path, of which there is no folder or file here."""
    return (
        isinstance(name, str)
        and re.fullmatch(r"\w[\w.-]*", name) is not None
        and (not Path(name[:LONGEST_ID]).exists())
    )


def refuse_idle(name: str, **options: object) -> None:
    """IdleOptionError if any of the options is given for a model that is not on the hub."""
    for option, value in options.items():
        if value is not None:
            raise IdleOptionError(
                f"{option} acts on a model of the hub (ORG/NAME), which {name} is not"
            )


def snapshot(
    repo: str,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
) -> Path:
    """The folder of one revision of a model in the cache, after fetching what is not there.

    Args:
        repo: ORG/NAME.
        revision: branch, tag or commit; None is the main branch.
        cache_dir: in the place of the usual cache.
        offline: look into the cache alone, as HF_HUB_OFFLINE asks for too.

    Raises:
        ModelError: no such model or revision, no network, not in the cache, no safetensors.
    """
    try:
        from huggingface_hub import constants, list_repo_files, snapshot_download
    except ImportError as error:
        raise ModelError(
            f"{repo}: no such folder; for models of the hub: pip install 'hyena-cpu[hub]'"
        ) from error
    offline = offline or bool(constants.HF_HUB_OFFLINE)
    cache = expanded(cache_dir or constants.HF_HUB_CACHE)
    where = f"{repo}, revision {revision}" if revision else repo
    try:
        found = snapshot_download(
            repo,
            revision=revision,
            cache_dir=cache,
            local_files_only=offline,
            allow_patterns=list(FILES),
            ignore_patterns=["*/*"],
        )
        names = [path.name for path in Path(found).iterdir()] if Path(found).is_dir() else []
        if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
            return Path(found)
        pickles = _pickles(names)
        if pickles or offline:
            raise ModelError(f"{where}: {_no_weights(found, pickles)}")
        pickles = _pickles(list_repo_files(repo, revision=revision))
        raise ModelError(f"{where}: {_not_fetched(repo, pickles)}")
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # also those of the HTTP library, which is another in every release
        raise ModelError(f"{where}: {_why(error, cache, offline)}") from error


def _why(error: Exception, cache: Path, offline: bool) -> str:
    """One sentence for an error of huggingface_hub, whose own texts have several."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "access is granted by its authors alone: ask for it on the hub, then set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "neither a folder here nor a model of the hub (a private one needs HF_TOKEN)"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the hub has no such revision of it"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if offline:
            return f"not in the cache {cache}, or not all of it: load it once without offline mode"
        return (
            f"neither a folder here nor in the cache {cache}, and the hub cannot be reached: "
            "connect to the network, or give a model folder"
        )
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be stored in the cache {cache}: {error.strerror}"
    line = str(error).strip().partition("\n")[0]
    return f"the hub gave {type(error).__name__}: {line:.300}"


def _pickles(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(PICKLES))


def _no_weights(folder: str, pickles: list[str]) -> str:
    """Of a snapshot in the cache without safetensors."""
    if not pickles:
        return f"its folder in the cache, {folder}, has no safetensors weights"
    return (
        f"the cache has only {pickles[0]}, a PyTorch file; "
        f"make a safe copy first: hyena-cpu convert {folder} NEW_FOLDER"
    )


def _not_fetched(repo: str, pickles: list[str]) -> str:
    """Of a model on the hub without safetensors."""
    if not pickles:
        return "it has no safetensors weights on the hub"
    port = f"{repo}-hf"
    other = f", or use {port}, which is the same model" if port in HYENADNA.values() else ""
    return (
        f"it has only {pickles[0]} on the hub, a PyTorch file, which is never fetched from here: "
        f"hf download {repo} --local-dir FOLDER, then hyena-cpu convert FOLDER NEW_FOLDER{other}"
    )
