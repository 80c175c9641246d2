"""The same size of attention in llama.cpp, through the low-level binding of llama-cpp-python.

Random float32 weights written as a GGUF file of its LLaMA form: heads of 64, rotary positions, a
gated MLP whose three matrices hold about as many numbers as the two of 4 D. Flash attention is on
and the cache holds float16, as people run it.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import gguf
import llama_cpp as lc
import numpy as np

HEAD = 64
VOCAB = 32
BATCH, MICRO_BATCH = 2048, 512  # tokens per call, and worked on together


def gated_width(width: int) -> int:
    """3 D F about equal to 8 D^2; a multiple of 32."""
    return round(8 * width / 3 / 32) * 32


def write_gguf(path: Path, width: int, depth: int, longest: int) -> None:
    """The model file."""
    heads, ff = width // HEAD, gated_width(width)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(depth)
    w.add_context_length(longest)
    w.add_embedding_length(width)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(HEAD)
    w.add_vocab_size(VOCAB)
    w.add_tokenizer_model("no_vocab")
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    rng = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns)) * columns**-0.5
        w.add_tensor(f"{name}.weight", values.astype(np.float32))

    matrix("token_embd", VOCAB, width)
    matrix("output", VOCAB, width)
    w.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(depth):
        for norm in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{norm}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}", width, width)
        matrix(f"blk.{i}.ffn_gate", ff, width)
        matrix(f"blk.{i}.ffn_up", ff, width)
        matrix(f"blk.{i}.ffn_down", width, ff)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class LlamaAttention:
    """A loaded model; a context is made for a run and dropped with the next."""

    def __init__(self, width: int, depth: int, longest: int, threads: int) -> None:
        self.threads = threads
        self._quiet = lc.llama_log_callback(lambda _level, _text, _data: None)
        lc.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lc.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "attention.gguf"
            write_gguf(path, width, depth, longest)
            options = lc.llama_model_default_params()
            options.use_mmap = False  # the file goes; its numbers are weights, not part of a run
            self.model = lc.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise RuntimeError("llama.cpp cannot load its model")
        self.context = None
        self.batch = lc.llama_batch_init(BATCH, 0, 1)
        self.position = 0

    def begin(self, ids: np.ndarray, room: int) -> None:
        """Takes a prompt in, with a cache for `room` tokens more; logits of the last position."""
        self._make_context(len(ids) + room)
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
        self.position = 0
        for first in range(0, len(ids), BATCH):
            part = ids[first : first + BATCH]
            self._decode(part.tolist(), logits=first + len(part) == len(ids))

    def step(self, token: int) -> np.ndarray:
        """One more token; logits [VOCAB]."""
        self._decode([token], logits=True)
        return np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, -1), (VOCAB,)).copy()

    def back(self, length: int) -> None:
        """To where it had `length` tokens."""
        lc.llama_memory_seq_rm(lc.llama_get_memory(self.context), 0, length, -1)
        self.position = length

    @property
    def cache_bytes(self) -> int:
        """Of the sequence as llama.cpp would store it."""
        return int(lc.llama_state_seq_get_size(self.context, 0))

    def _make_context(self, length: int) -> None:
        """One that holds so many tokens: the one at hand if it does."""
        if self.context is not None:
            if lc.llama_n_ctx(self.context) >= length:
                return
            lc.llama_free(self.context)
        options = lc.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length, BATCH, MICRO_BATCH
        options.n_threads = options.n_threads_batch = self.threads
        options.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = lc.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot make a context of {length} tokens")

    def _decode(self, ids: list[int], *, logits: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = logits and i == len(ids) - 1
        if lc.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp could not decode")
        lc.llama_synchronize(self.context)
        self.position += len(ids)
