// Whole token-wise parts of a layer: projection with short convolution, output, MLP.
#include <limits>

#include "bind/layer_parts.hpp"
#include "bind/tile_arrays.hpp"

using namespace hyena;

namespace {

NormWeights norm_weights(const std::string& kind, const FloatArray& weight, const MaybeArray& bias, float eps) {
  if (kind != "layernorm" && kind != "rmsnorm")
    reject("NormWeights", "kind is '" + kind + "' but needs to be layernorm or rmsnorm");
  return {kind, weight, bias, eps};
}

using OffsetArray = py::array_t<std::int64_t>;

/// Offsets 0 = o_0 < o_1 < .. < o_B = T.
Sequences sequences(const std::string& op, const OffsetArray& offsets, std::int64_t T) {
  const std::int64_t count = offsets.size() - 1;
  bool fits = offsets.ndim() == 1 && count >= 1 && (offsets.flags() & py::array::c_style);
  fits = fits && offsets.data()[0] == 0 && offsets.data()[count] == T;
  for (std::int64_t b = 0; fits && b < count; b++) fits = offsets.data()[b] < offsets.data()[b + 1];
  if (!fits) reject(op, "offsets must grow from 0 to the " + std::to_string(T) + " rows of x");
  return {offsets.data(), count};
}

/// The `width` taps and biases of a short convolution from `first` on, of a projection to C channels.
ShortConv short_taps(const std::string& op, const FloatArray& taps, const MaybeArray& bias, std::int64_t C,
                     std::int64_t first, std::int64_t width) {
  ShortConv job{};
  job.taps = {floats(op, "taps", taps, {-1, C}) + first, taps.shape(0), width, C};
  if (job.taps.rows < 1) reject(op, "taps has shape " + shape_text(taps) + " but needs at least one row");
  job.bias = bias ? floats(op, "short_bias", *bias, {C}) + first : nullptr;
  return job;
}

/// The same channels of tails [B, K - 1, C]; no data if there are none.
Rows tail_rows(const std::string& op, MaybeArray& tails, std::int64_t count, const ShortConv& job, std::int64_t first) {
  const std::int64_t before = job.taps.rows - 1, C = job.taps.stride;
  if (!tails) return {};
  floats(op, "tails", *tails, {count, before, C});
  return {tails->mutable_data() + first, count * before, job.taps.cols, C};
}

py::array parts_view(const FloatArray& y, std::int64_t parts, std::int64_t G) {
  return view_of({parts, G, y.shape(1), kTile}, {G * y.strides(0), y.strides(0), y.strides(1), y.strides(2)}, y.data(),
                 y);
}

py::tuple project_conv_py(const FloatArray& x, const NormWeights* norm, const PackedLinear& packed,
                          const MaybeArray& bias, const FloatArray& taps, const MaybeArray& short_bias,
                          MaybeArray tails, const OffsetArray& offsets, std::int64_t parts, std::int64_t first,
                          const Memory& memory, int threads) {
  const std::string op = "project_conv";
  const ConstRows in = rows(op, "x", x, -1, packed.in_features());
  const std::int64_t C = packed.out_features(), T = in.rows;
  if (parts < 2 || C % parts != 0)
    reject(op, "the projection has " + std::to_string(C) + " channels, no multiple of " + std::to_string(parts));
  if (first < 0 || first > parts - 2)
    reject(op, "first is " + std::to_string(first) + " but needs to be in 0.." + std::to_string(parts - 2));
  const std::int64_t width = C / parts, G = tile_groups(width), alone = parts - 2 - first;
  ShortConv job = short_taps(op, taps, short_bias, C, first * width, C - first * width);
  job.parts = parts - first;
  const Sequences batch = sequences(op, offsets, T);
  const Rows tail = tail_rows(op, tails, batch.count, job, first * width);
  const FloatArray gates = new_tiles(alone * G, T, memory), product = new_tiles(G, T, memory);
  job.out = tiles(op, "gates", gates, alone * G, T);
  job.product = tiles(op, "product", product, G, T);
  const Norm own = norm != nullptr ? norm->norm(op, in.cols) : Norm{};
  const Dense projection = dense(op, "bias", packed, bias);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    project_conv(in, norm != nullptr ? &own : nullptr, projection, job, batch, tail, threads);
  }
  return py::make_tuple(parts_view(gates, alone, G), product);
}

void add_tiles_py(FloatArray residual, const FloatArray& z, const PackedLinear& packed, const MaybeArray& bias,
                  int threads) {
  const std::string op = "add_tiles";
  const Rows into = writable_rows(op, "residual", residual, -1, packed.out_features());
  const TileView from = tiles(op, "z", z, tile_groups(packed.in_features()), into.rows);
  const Dense out = dense(op, "bias", packed, bias);
  thread_count(op, threads);
  const py::gil_scoped_release release;
  add_tiles(from, out, into, threads);
}

void add_gated_tiles_py(FloatArray x, const NormWeights* norm, const PackedLinear& packed, const MaybeArray& bias,
                        const FloatArray& taps, const MaybeArray& short_bias, MaybeArray tails,
                        const OffsetArray& offsets, const FloatArray& z, const PackedLinear& packed_out,
                        const MaybeArray& out_bias, int threads) {
  const std::string op = "add_gated_tiles";
  const Rows into = writable_rows(op, "x", x, -1, packed.in_features());
  const std::int64_t C = packed.out_features(), W = packed_out.in_features();
  if (W > C || packed_out.out_features() != into.cols)
    reject(op, "packed has " + std::to_string(C) + " outputs but packed_out needs at least " + std::to_string(W) +
                   ", and its own " + std::to_string(packed_out.out_features()) + " outputs must be " +
                   std::to_string(into.cols));
  ShortConv job = short_taps(op, taps, short_bias, C, 0, W);
  job.parts = 1;
  const Sequences batch = sequences(op, offsets, into.rows);
  const Rows tail = tail_rows(op, tails, batch.count, job, 0);
  const TileView from = tiles(op, "z", z, tile_groups(W), into.rows);
  const Norm own = norm != nullptr ? norm->norm(op, into.cols) : Norm{};
  const Dense projection = dense(op, "bias", packed, bias), out = dense(op, "out_bias", packed_out, out_bias);
  thread_count(op, threads);
  const py::gil_scoped_release release;
  add_gated_tiles(into, norm != nullptr ? &own : nullptr, projection, job, batch, tail, from, out, threads);
}

void add_mlp_py(FloatArray x, const NormWeights& norm, const PackedLinear& up, const MaybeArray& up_bias,
                const std::string& kind, const PackedLinear& down, const MaybeArray& down_bias, int threads) {
  const std::string op = "add_mlp";
  const Rows into = writable_rows(op, "x", x, -1, up.in_features());
  const Mlp mlp(op, into.cols, up, up_bias, kind, down, down_bias);
  const Norm own = norm.norm(op, into.cols);
  thread_count(op, threads);
  const py::gil_scoped_release release;
  add_mlp(into, own, mlp.up, mlp.act, mlp.down, threads);
}

}  // namespace

void bind_tokenwise(py::module_& m) {
  py::class_<NormWeights>(m, "NormWeights", py::module_local(), "Parameters of a LayerNorm or RMSNorm.")
      .def(py::init(&norm_weights), py::arg("kind"), py::arg("weight").noconvert(), py::arg("bias").noconvert(),
           py::arg("eps"), "kind layernorm or rmsnorm; weight float32 [D], bias float32 [D] or None.");

  py::class_<BlockPool, Memory>(
      m, "Memory", py::module_local(),
      "Memory that arrays are made in and leave to later ones of their size, so that the\n"
      "system need not fill it with zeros again. It is given back with the last of them, or by close().")
      .def(py::init([] { return std::make_shared<BlockPool>(std::numeric_limits<std::int64_t>::max()); }))
      .def("close", &BlockPool::close, "Gives back what nobody uses, and from now on whatever is left.");

  m.def("project_conv", &project_conv_py, py::arg("x").noconvert(), py::arg("norm"), py::arg("packed"),
        py::arg("bias").noconvert(), py::arg("taps").noconvert(), py::arg("short_bias").noconvert(),
        py::arg("tails").noconvert(), py::arg("offsets").noconvert(), py::arg("parts"), py::kw_only(),
        py::arg("first") = 0, py::arg("memory") = Memory(), py::arg("threads") = 1,
        R"(short_conv(linear(norm(x))) of sequences end to end, never whole in memory before it is convolved; the
bits of the kernels one by one.

Args:
    x: float32 [T, D].
    norm: NormWeights, or None: x is taken as it is.
    packed, bias: the projection to C = parts * width channels.
    taps, short_bias: float32 [K, C], and [C] or None, as for short_conv.
    tails: float32 [B, K - 1, C], the projected rows before each sequence, replaced by those before the
        next call; None: sequences begin here and are not continued.
    offsets: int64 [B + 1]; sequence b has rows offsets[b] .. offsets[b + 1].
    parts: chunks of the projection, at least 2.
    first: chunks that are left out: neither made nor put into tails. At most parts - 2.
    memory: Memory that the arrays returned are made in, or None.
    threads: at most this many threads work.

Returns:
    chunks from `first` on as tiles float32 [parts - 2 - first, G, T, 16], and the last two multiplied
    [G, T, 16].

Raises:
    ValueError: shapes that do not fit.)");
  m.def("add_tiles", &add_tiles_py, py::arg("residual").noconvert(), py::arg("z").noconvert(), py::arg("packed"),
        py::arg("bias").noconvert(), py::kw_only(), py::arg("threads") = 1,
        "residual float32 [T, N] += z W^T + bias, in place, for tiles z [G, T, 16] of K channels. Raises\n"
        "ValueError for other shapes.");
  m.def("add_gated_tiles", &add_gated_tiles_py, py::arg("x").noconvert(), py::arg("norm"), py::arg("packed"),
        py::arg("bias").noconvert(), py::arg("taps").noconvert(), py::arg("short_bias").noconvert(),
        py::arg("tails").noconvert(), py::arg("offsets").noconvert(), py::arg("z").noconvert(), py::arg("packed_out"),
        py::arg("out_bias").noconvert(), py::kw_only(), py::arg("threads") = 1,
        R"(x += linear(x_0 * z) in place, where x_0 [T, W], the first W of the channels that project_conv makes of x, is
made a block of tokens at a time; the bits of the kernels one by one.

Args:
    x: float32 [T, D], as it was given to project_conv.
    norm, packed, bias, taps, short_bias, offsets: as for project_conv.
    tails: float32 [B, K - 1, C] or None, as for project_conv; only the first W channels are read and replaced.
    z: tiles float32 [G, T, 16] of W channels.
    packed_out, out_bias: from W channels to D.
    threads: at most this many threads work.

Raises:
    ValueError: shapes that do not fit.)");
  m.def("add_mlp", &add_mlp_py, py::arg("x").noconvert(), py::arg("norm"), py::arg("up"),
        py::arg("up_bias").noconvert(), py::arg("kind"), py::arg("down"), py::arg("down_bias").noconvert(),
        py::kw_only(), py::arg("threads") = 1,
        R"(x += down(act(up(norm(x)))) in place, a block of tokens at a time; the bits of the kernels one by one.

Args:
    x: float32 [T, D], the residual stream.
    norm: NormWeights.
    up, up_bias: to the wide layer, [F, D], or [2F, D] for swiglu.
    kind: gelu_tanh, gelu_erf or swiglu.
    down, down_bias: back, [D, F].
    threads: at most this many threads work.

Raises:
    ValueError: shapes that do not fit, or an unknown kind.)");
}
