// Short, long and direct convolutions.
#include <algorithm>

#include "bind/tile_arrays.hpp"
#include "directconv.hpp"
#include "longconv.hpp"
#include "pocketconv.hpp"
#include "rowconv.hpp"
#include "shortconv.hpp"

using namespace hyena;

namespace {

TileView maybe_tiles(const std::string& op, const char* name, const MaybeArray& a, std::int64_t groups,
                     std::int64_t length) {
  return a ? tiles(op, name, *a, groups, length) : TileView{nullptr, groups, length, 0};
}

py::array short_conv_py(const FloatArray& x, const FloatArray& taps, const MaybeArray& bias, const FloatArray& tail,
                        std::int64_t parts, const MaybeArray& out, int threads) {
  const std::string op = "short_conv";
  ShortConv job{};
  job.x = rows(op, "x", x, -1, -1);
  const std::int64_t C = job.x.cols, T = job.x.rows;
  if (parts < 1 || C % parts != 0)
    reject(op, "x has shape " + shape_text(x) + " but needs a multiple of " + std::to_string(parts) + " channels");
  job.parts = parts;
  job.taps = {floats(op, "taps", taps, {-1, C}), taps.shape(0), C, C};
  if (job.taps.rows < 1) reject(op, "taps has shape " + shape_text(taps) + " but needs at least one row");
  job.bias = bias ? floats(op, "bias", *bias, {C}) : nullptr;
  job.tail = rows(op, "tail", tail, job.taps.rows - 1, C);
  const std::int64_t G = tile_groups(C / parts);
  FloatArray y;
  if (out) {
    const bool fits = out->ndim() == 4 && out->shape(0) == parts && out->shape(1) == G;
    if (!fits || out->strides(0) != G * out->strides(1))
      reject(op, "out has shape " + shape_text(*out) + " but needs [" + std::to_string(parts) + ", " +
                     std::to_string(G) + ", " + std::to_string(T) + ", 16] with parts G groups apart");
    y = view_of({parts * G, out->shape(2), out->shape(3)}, {out->strides(1), out->strides(2), out->strides(3)},
                out->data(), *out);
    if (!out->writeable()) reject(op, "out is read-only");
  } else {
    y = new_tiles(parts * G, T);
  }
  job.out = tiles(op, "out", y, parts * G, T);
  const int team = thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    short_conv(job, team);
  }
  if (out) return *out;
  return view_of({parts, G, T, kTile}, {G * y.strides(0), y.strides(0), y.strides(1), y.strides(2)}, y.data(), y);
}

std::int64_t transform_size_py(std::int64_t minimum) {
  if (minimum < 1) reject("transform_size", "minimum is " + std::to_string(minimum) + " but needs to be at least 1");
  const std::int64_t size = transform_size(minimum);
  if (size == 0)
    reject("transform_size", "minimum is " + std::to_string(minimum) + " but the largest transform has " +
                                 std::to_string(kLargestTransform) + " points");
  return size;
}

void check_size(const std::string& op, std::int64_t size) {
  if (size < 1 || transform_size(size) != size)
    reject(op, "size is " + std::to_string(size) + " but needs to be one that transform_size returns");
}

FloatArray spectrum_py(const FloatArray& taps, std::int64_t size, const MaybeArray& out, int threads) {
  const TileView from = tiles("spectrum", "taps", taps);
  check_size("spectrum", size);
  if (from.length > size)
    reject("spectrum", "taps has shape " + shape_text(taps) + " but needs at most size = " + std::to_string(size));
  FloatArray result = out_tiles("spectrum", out, from.groups, size);
  const TileView to = tiles("spectrum", "out", result);
  const int team = thread_count("spectrum", threads);
  const py::gil_scoped_release release;
  spectrum(from, to, team);
  return result;
}

/// The arguments that long_conv and direct_conv share; allocates the output if there is none.
GatedConv gated(const std::string& op, const FloatArray& z, std::int64_t start, const MaybeArray& skip,
                const MaybeArray& pre, const MaybeArray& post, const MaybeArray& add, const MaybeArray& out,
                FloatArray& result) {
  GatedConv job{};
  job.z = tiles(op, "z", z);
  job.start = start;
  if (start < 0 || start > job.z.length)
    reject(op, "start is " + std::to_string(start) + " but z has " + std::to_string(job.z.length) + " rows");
  job.skip = skip ? floats(op, "skip", *skip, {job.z.groups, kTile}) : nullptr;
  job.pre = maybe_tiles(op, "pre", pre, job.z.groups, job.z.length);
  job.post = maybe_tiles(op, "post", post, job.z.groups, job.z.length - start);
  if (add) job.add = tiles(op, "add", *add);
  result = out_tiles(op, out, job.z.groups, job.z.length - start);
  job.out = tiles(op, "out", result);
  return job;
}

using MaybeSpans = std::optional<py::array_t<std::int64_t>>;

/// One job for each span [first, last) of rows, or the whole one.
GatedConvs cut_spans(const std::string& op, const GatedConv& job, const MaybeSpans& spans) {
  const auto enough = [&](std::int64_t rows) {
    return job.add.data == nullptr || (job.add.groups == job.z.groups && job.add.length >= rows);
  };
  const std::string few = "add has too few groups or rows for z";
  if (!spans && !enough(job.z.length - job.start)) reject(op, few);
  if (!spans) return {job};
  bool fits = spans->ndim() == 2 && spans->shape(1) == 2 && job.start == 0;
  GatedConvs jobs;
  std::int64_t free = 0;  // the first row that no span has
  for (py::ssize_t b = 0; fits && b < spans->shape(0); b++) {
    const std::int64_t first = spans->at(b, 0), last = spans->at(b, 1);
    fits = free <= first && first < last && last <= job.z.length;
    if (fits) jobs.push_back(cut(job, first, last));
    free = last;
  }
  for (const GatedConv& one : jobs)
    if (!enough(one.z.length)) reject(op, few);
  if (!fits) reject(op, "spans need to be rows [first, last) of z in order, none empty, none shared, with start = 0");
  return jobs;
}

FloatArray long_conv_py(const FloatArray& z, const FloatArray& spectrum, std::int64_t start, const MaybeArray& skip,
                        const MaybeArray& pre, const MaybeArray& post, const MaybeArray& out, const MaybeArray& add,
                        const MaybeSpans& spans, int threads) {
  FloatArray y;
  const GatedConv job = gated("long_conv", z, start, skip, pre, post, add, out, y);
  const GatedConvs jobs = cut_spans("long_conv", job, spans);
  const TileView filter = tiles("long_conv", "spectrum", spectrum);
  check_size("long_conv", filter.length);
  std::int64_t longest = 0;
  for (const GatedConv& one : jobs) longest = std::max(longest, one.z.length);
  if (filter.groups != job.z.groups || filter.length < longest)
    reject("long_conv", "spectrum has shape " + shape_text(spectrum) + " but z has shape " + shape_text(z));
  const int team = thread_count("long_conv", threads);
  const py::gil_scoped_release release;
  long_conv(jobs, filter, team);
  return y;
}

void check_row_size(const std::string& op, std::int64_t size) {
  check_size(op, size);
  if (size % kRowTransformUnit != 0)
    reject(op,
           "size is " + std::to_string(size) + " but needs to be a multiple of " + std::to_string(kRowTransformUnit));
}

FloatArray row_spectrum_py(const FloatArray& taps, std::int64_t size, int threads) {
  const ConstRows from = rows("row_spectrum", "taps", taps, -1, -1);
  check_row_size("row_spectrum", size);
  if (from.cols > size)
    reject("row_spectrum", "taps has shape " + shape_text(taps) + " but needs at most size = " + std::to_string(size));
  const FloatArray store = new_tiles(from.rows, size / kTile);  // on cache lines, rows no power of two apart
  FloatArray result({from.rows, size}, {store.strides(0), py::ssize_t{sizeof(float)}}, store.data(), store);
  const Rows to = writable_rows("row_spectrum", "out", result, from.rows, size);
  const int team = thread_count("row_spectrum", threads);
  const py::gil_scoped_release release;
  row_spectrum(from, to, team);
  return result;
}

FloatArray row_conv_py(const FloatArray& z, const FloatArray& spectrum, const MaybeArray& skip, const MaybeArray& pre,
                       const MaybeArray& post, MaybeArray out, int threads) {
  const std::string op = "row_conv";
  const auto maybe_rows = [&](const char* name, const MaybeArray& a, std::int64_t C, std::int64_t T) {
    return a ? rows(op, name, *a, C, T) : ConstRows{nullptr, C, T, 0};
  };
  GatedRows job{};
  job.z = rows(op, "z", z, -1, -1);
  const std::int64_t C = job.z.rows, T = job.z.cols;
  job.skip = skip ? floats(op, "skip", *skip, {C}) : nullptr;
  job.pre = maybe_rows("pre", pre, C, T);
  job.post = maybe_rows("post", post, C, T);
  const bool tiled = spectrum.ndim() == 3;
  const TileView groups = tiled ? tiles(op, "spectrum", spectrum, tile_groups(C), spectrum.shape(1)) : TileView{};
  const ConstRows filter = tiled ? ConstRows{} : rows(op, "spectrum", spectrum, C, -1);
  const std::int64_t size = tiled ? groups.length : filter.cols;
  tiled ? check_size(op, size) : check_row_size(op, size);
  if (size < T) reject(op, "spectrum has shape " + shape_text(spectrum) + " but z has shape " + shape_text(z));
  FloatArray result = output(out, C, T);
  job.out = writable_rows(op, "out", result, C, T);
  const int team = thread_count(op, threads);
  const py::gil_scoped_release release;
  tiled ? row_conv(job, groups, team) : row_conv(job, filter, team);
  return result;
}

bool overlap(const TileView& a, const TileView& b) {
  return a.groups > 0 && a.data < b.data + b.length * kTile && b.data < a.data + a.length * kTile;
}

FloatArray direct_conv_py(const FloatArray& z, const FloatArray& taps, std::int64_t start, const MaybeArray& skip,
                          const MaybeArray& pre, const MaybeArray& post, const MaybeArray& out, const MaybeArray& add,
                          const MaybeSpans& spans, int threads) {
  FloatArray y;
  const GatedConv job = gated("direct_conv", z, start, skip, pre, post, add, out, y);
  const GatedConvs jobs = cut_spans("direct_conv", job, spans);
  const TileView filter = tiles("direct_conv", "taps", taps);
  if (filter.groups != job.z.groups || filter.length < 1)
    reject("direct_conv",
           "taps has shape " + shape_text(taps) + " but needs [" + std::to_string(job.z.groups) + ", at least 1, 16]");
  if (overlap(job.out, job.z) || (pre && overlap(job.out, job.pre))) reject("direct_conv", "out overlaps an input");
  const int team = thread_count("direct_conv", threads);
  const py::gil_scoped_release release;
  direct_conv(jobs, filter, team);
  return y;
}

FloatArray pocket_conv_py(const FloatArray& z, const FloatArray& taps, std::int64_t size) {
  const std::string op = "pocket_conv";
  const TileView from = tiles(op, "z", z), filter = tiles(op, "taps", taps);
  if (size < 1 || from.length > size || filter.length > size || filter.groups != from.groups)
    reject(op, "z has shape " + shape_text(z) + ", taps " + shape_text(taps) + ", size is " + std::to_string(size));
  FloatArray result = new_tiles(from.groups, from.length);
  const TileView to = tiles(op, "out", result);
  const py::gil_scoped_release release;
  pocket_conv(from, filter, size, to);
  return result;
}

std::int64_t conv_plan_py(std::int64_t added, std::int64_t history, std::int64_t taps) {
  if (added < 1 || history < 0 || taps < 1)
    reject("conv_plan", "needs new >= 1, history >= 0 and taps >= 1, not " + std::to_string(added) + ", " +
                            std::to_string(history) + " and " + std::to_string(taps));
  const std::int64_t size = conv_plan(added, history, taps);
  if (size < 0)
    reject("conv_plan", std::to_string(history) + " + " + std::to_string(added) + " tokens with " +
                            std::to_string(taps) + " taps need a transform above the largest, " +
                            std::to_string(kLargestTransform) + " points: convolve shorter chunks");
  return size;
}

}  // namespace

void bind_conv(py::module_& m) {
  const auto z = py::arg("z").noconvert(), taps = py::arg("taps").noconvert();
  const auto start = py::arg("start") = 0;
  const auto skip = py::arg("skip").noconvert() = py::none(), pre = py::arg("pre").noconvert() = py::none();
  const auto post = py::arg("post").noconvert() = py::none(), out = py::arg("out").noconvert() = py::none();
  const auto add = py::arg("add").noconvert() = py::none(), spans = py::arg("spans").noconvert() = py::none();
  const auto threads = py::arg("threads") = 1;
  m.def("short_conv", &short_conv_py, py::arg("x").noconvert(), taps, py::arg("bias").noconvert(),
        py::arg("tail").noconvert(), py::arg("parts"), out, py::kw_only(), threads,
        "Depthwise causal FIR over token rows x float32 [T, C], C = parts * D, into tiles float32\n"
        "[parts, G, T, 16], G = ceil(D / 16): channel c of part p lands at [p, c // 16, t, c % 16].\n"
        "taps [K, C]: taps[K - 1] multiplies the current token, taps[0] the one K - 1 ago; bias [C] or\n"
        "None; tail [K - 1, C] is the inputs before x, oldest first; its rows may lie any distance apart. The\n"
        "bits do not depend on how a sequence is split into calls. Raises ValueError on wrong shapes.");
  m.def("transform_size", &transform_size_py, py::arg("minimum"),
        "Smallest supported real-transform size >= minimum: c 2^k with c = 1, 3 or 5, even, or with c = 9, 15 or\n"
        "27 and k >= 6, at most 2^31.\n"
        "Raises ValueError below 1 and above the largest.");
  m.def("spectrum", &spectrum_py, taps, py::arg("size"), out, py::kw_only(), threads,
        "Transform of taps float32 [G, K, 16], K <= size, padded with zeros to `size` (one of\n"
        "transform_size) and scaled for long_conv: float32 [G, size, 16] in a layout that only long_conv\n"
        "of the same build reads. Raises ValueError on wrong shapes or sizes.");
  m.def("long_conv", &long_conv_py, z, py::arg("spectrum").noconvert(), start, skip, pre, post, out, py::kw_only(), add,
        spans, threads,
        "post * (c + skip * w + add) at times [start, S), where w = pre * z and c is the product of w and the\n"
        "filter behind `spectrum` modulo t^M + 1: their convolution, in which what lies beyond M comes\n"
        "back M earlier with its sign turned. float32 z, pre [G, S, 16], spectrum [G, M, 16] with M >= S,\n"
        "skip [G, 16], post, add [G, S - start, 16] -> [G, S - start, 16]. `out` may be the very rows of z,\n"
        "pre, post or add. With K taps in the spectrum the wrap-around misses [start, S) if\n"
        "M >= S - start + K - 1. A tap at lag -d (a filter that looks ahead, or one wrapped around a\n"
        "circle of any length) is stored with its sign turned as tap M - d; then M >= 2 S - 1 keeps the\n"
        "rest out. With spans int64 [B, 2] every run of rows [first, last) is a sequence by itself, and the\n"
        "rows of `out` between them are left as they are; `add` then counts from the\n"
        "start of each. Raises ValueError on wrong shapes.");
  m.def("row_spectrum", &row_spectrum_py, taps, py::arg("size"), py::kw_only(), threads,
        "As spectrum, for row_conv: taps float32 [C, K] with contiguous rows, K <= size, which 512 divides\n"
        "-> float32 [C, size]. Raises ValueError on wrong shapes or sizes.");
  m.def("row_conv", &row_conv_py, z, py::arg("spectrum").noconvert(), skip, pre, post, out, py::kw_only(), threads,
        "As long_conv with start = 0, channel by channel: float32 z, pre, post [C, T] with contiguous rows,\n"
        "spectrum [C, M] of row_spectrum, skip [C] -> [C, T]. A spectrum [G, M, 16] of spectrum() convolves 16\n"
        "channels side by side, which is faster where there are so many. `out` may be z, pre or post.\n"
        "Raises ValueError on wrong shapes.");
  m.def("direct_conv", &direct_conv_py, z, taps, start, skip, pre, post, out, py::kw_only(), add, spans, threads,
        "As long_conv, with c[t] = sum over k < min(K, t + 1) of taps[k] * w[t - k] by direct sums, taps\n"
        "float32 [G, K, 16]. The bits of an output do not depend on start or S. `out` must not overlap z\n"
        "or pre; spans as for long_conv. Raises ValueError on wrong shapes.");
  m.def("pocket_conv", &pocket_conv_py, z, taps, py::arg("size"),
        "The product of z and taps, float32 [G, S, 16] and [G, K, 16], modulo t^size + 1 through pocketfft,\n"
        "to check and time long_conv against. Raises ValueError on wrong shapes.");
  m.def(
      "conv_scratch",
      [](std::int64_t size, std::int64_t length, int threads) {
        check_size("conv_scratch", size);
        return sizeof(float) * conv_scratch(size, length, thread_count("conv_scratch", threads));
      },
      py::arg("size"), py::arg("length"), py::kw_only(), threads,
      "Bytes of working memory that long_conv of size `size` takes for `length` rows.");
  m.def("conv_plan", &conv_plan_py, py::arg("new"), py::arg("history"), py::arg("taps"),
        "How to convolve `new` tokens after `history` ones with `taps` taps: 0 for direct_conv, else the\n"
        "size M for long_conv with S = history + new and start = history. A spectrum serves that call if\n"
        "it holds the first K taps with min(taps, S) <= K <= M - new + 1; without history,\n"
        "K = min(taps, M // 2) serves every call of this size. A function of shape alone. Raises\n"
        "ValueError if no transform is large enough.");
}
