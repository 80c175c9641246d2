// Attention over a cache, rotary positions, and inner products with earlier rows.
#include <pybind11/stl.h>

#include "bind/cache_arrays.hpp"
#include "lagproducts.hpp"
#include "rotary.hpp"

namespace hyena {
namespace {

using Positions = py::array_t<std::int64_t>;

void require_room(const std::string& op, std::int64_t at, std::int64_t n, std::int64_t slots) {
  if (at < 0 || n > slots || at > slots - n)
    reject(op, "slots " + std::to_string(at) + " .. " + std::to_string(at + n) + " do not fit a cache of " +
                   std::to_string(slots));
}

void kv_append_call(FloatArray keys, FloatArray values, const FloatArray& k, const FloatArray& v, std::int64_t at) {
  const std::string op = "kv_append";
  const auto cache = cache_of(op, keys, values);
  const ConstRows new_k = rows(op, "k", k, -1, cache.heads * cache.width);
  const ConstRows new_v = rows(op, "v", v, new_k.rows, cache.heads * cache.width);
  require_room(op, at, new_k.rows, cache.slots);
  const CacheOf<float> target{keys.mutable_data(), values.mutable_data(), cache.heads, cache.slots, cache.width};
  const py::gil_scoped_release release;
  kv_append(target, new_k, new_v, at);
}

void require_window(const std::string& op, std::int64_t start, std::int64_t first, std::int64_t window) {
  if (start < 0 || start > first)
    reject(op, "start is " + std::to_string(start) + " but needs to be in 0 .. first = " + std::to_string(first));
  if (window < 0) reject(op, "window is " + std::to_string(window) + " but needs to be at least 0");
}

FloatArray attend_call(const FloatArray& q, const FloatArray& keys, const FloatArray& values, std::int64_t first,
                       std::int64_t start, std::int64_t window, MaybeArray out, int threads) {
  const std::string op = "attend";
  const auto cache = cache_of(op, keys, values);
  const ConstRows in = rows(op, "q", q, -1, cache.heads * cache.width);
  require_room(op, first, in.rows, cache.slots);
  require_window(op, start, first, window);
  FloatArray result = output(out, in.rows, in.cols);
  const Rows y = writable_rows(op, "out", result, in.rows, in.cols);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    attend(in, cache, {first, start, window}, y, threads);
  }
  return result;
}

FloatArray attend_at_call(const FloatArray& q, const Positions& at, const FloatArray& keys, const FloatArray& values,
                          std::int64_t start, std::int64_t window, MaybeArray out, int threads) {
  const std::string op = "attend_at";
  const auto cache = cache_of(op, keys, values);
  const ConstRows in = rows(op, "q", q, -1, cache.heads * cache.width);
  if (at.ndim() != 1 || at.shape(0) != in.rows || !(at.flags() & py::array::c_style))
    reject(op, "at has shape " + shape_text(at) + " but needs contiguous [" + std::to_string(in.rows) + "]");
  const std::int64_t* slots = at.data();
  for (std::int64_t i = 0; i < in.rows; i++) {
    require_room(op, slots[i], 1, cache.slots);
    if (i > 0 && slots[i] <= slots[i - 1])
      reject(op, "at does not increase: " + std::to_string(slots[i]) + " follows " + std::to_string(slots[i - 1]));
  }
  const std::int64_t first = in.rows > 0 ? slots[0] : cache.slots;
  require_window(op, start, first, window);
  FloatArray result = output(out, in.rows, in.cols);
  const Rows y = writable_rows(op, "out", result, in.rows, in.cols);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    attend(in, cache, {first, start, window, slots}, y, threads);
  }
  return result;
}

FloatArray rotary_call(FloatArray x, const Positions& positions, std::int64_t heads, double base,
                       std::optional<std::int64_t> dims, int threads) {
  const std::string op = "rotary";
  const Rows view = writable_rows(op, "x", x, -1, -1);
  if (heads < 1 || view.cols < 1 || view.cols % (2 * heads) != 0)
    reject(op,
           "x has shape " + shape_text(x) + " but needs columns in " + std::to_string(heads) + " heads of even width");
  if (positions.ndim() != 1 || positions.shape(0) != view.rows || !(positions.flags() & py::array::c_style))
    reject(op, "positions has shape " + shape_text(positions) + " but needs contiguous [" + std::to_string(view.rows) +
                   "]");
  if (!(base > 0)) reject(op, "base is " + std::to_string(base) + " but needs to be positive");
  const std::int64_t turned = dims.value_or(view.cols / heads);
  if (turned < 2 || turned % 2 != 0 || turned > view.cols / heads)
    reject(op, "dims is " + std::to_string(turned) + " but needs to be even and at most the head width " +
                   std::to_string(view.cols / heads));
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    rotary(view, positions.data(), heads, base, turned, threads);
  }
  return x;
}

FloatArray lag_products_call(const FloatArray& x, std::int64_t first, std::int64_t reach, int threads) {
  const std::string op = "lag_products";
  const ConstRows in = rows(op, "rows", x, -1, -1);
  if (first < 0 || first > in.rows)
    reject(op, "first is " + std::to_string(first) + " but needs to be in 0 .. " + std::to_string(in.rows));
  if (reach < 0) reject(op, "reach is " + std::to_string(reach) + " but needs to be at least 0");
  MaybeArray none;
  FloatArray result = output(none, in.rows - first, reach);
  const Rows p = writable_rows(op, "result", result, in.rows - first, reach);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    lag_products(in, first, p, threads);
  }
  return result;
}

}  // namespace
}  // namespace hyena

void bind_attention(py::module_& m) {
  using namespace hyena;
  m.def("kv_append", &kv_append_call, py::arg("keys").noconvert(), py::arg("values").noconvert(),
        py::arg("k").noconvert(), py::arg("v").noconvert(), py::arg("at"),
        R"(Writes keys and values of n tokens to slots at .. at + n of a cache.

Args:
    keys: float32 [H, slots/16, hd, 16], written: 16 consecutive slots in the last axis.
    values: float32 [H, slots, hd], written.
    k, v: float32 [n, H * hd]; rows may lie any distance apart.
    at: first slot.

Raises:
    ValueError: shapes that do not fit, or slots beyond the cache.)");
  m.def("attend", &attend_call, py::arg("q").noconvert(), py::arg("keys").noconvert(), py::arg("values").noconvert(),
        py::arg("first"), py::arg("start") = 0, py::arg("window") = 0, py::arg("out").noconvert() = py::none(),
        py::kw_only(), py::arg("threads") = 1,
        R"(softmax(q k^T / sqrt(hd)) v, causal, over a cache (arXiv 1706.03762, 3.2.1).

Query i sits at slot first + i and sees slots max(start, first + i - window + 1) .. first + i. Its
bits depend on those slots alone, so one query at a time gives what all at once give.

Args:
    q: float32 [n, H * hd]; rows may lie any distance apart.
    keys: float32 [H, slots/16, hd, 16].
    values: float32 [H, slots, hd].
    first: slot of query 0.
    start: first slot that is seen at all.
    window: number of slots a query sees at most; 0 is all of them.
    out: float32 [n, H * hd] to write, or None; may be q.
    threads: at most this many threads work.

Returns:
    out, or a new float32 [n, H * hd].

Raises:
    ValueError: shapes that do not fit, or slots beyond the cache.)");
  m.def("attend_at", &attend_at_call, py::arg("q").noconvert(), py::arg("at").noconvert(), py::arg("keys").noconvert(),
        py::arg("values").noconvert(), py::arg("start") = 0, py::arg("window") = 0,
        py::arg("out").noconvert() = py::none(), py::kw_only(), py::arg("threads") = 1,
        R"(`attend` for queries at chosen slots: the same bits as `attend` gives for them.

The work is that of the chosen queries alone.

Args:
    q: float32 [n, H * hd]; rows may lie any distance apart.
    at: int64 [n], the slot of each query, increasing.
    keys: float32 [H, slots/16, hd, 16].
    values: float32 [H, slots, hd].
    start: first slot that is seen at all, at most at[0].
    window: number of slots a query sees at most; 0 is all of them.
    out: float32 [n, H * hd] to write, or None; may be q.
    threads: at most this many threads work.

Returns:
    out, or a new float32 [n, H * hd].

Raises:
    ValueError: shapes that do not fit, slots beyond the cache, or slots that do not increase.)");
  m.def("rotary", &rotary_call, py::arg("x").noconvert(), py::arg("positions").noconvert(), py::arg("heads"),
        py::arg("base"), py::arg("dims") = py::none(), py::kw_only(), py::arg("threads") = 1,
        R"(Turns x in place by rotary positions (arXiv 2104.09864, elements i and i + dims/2 paired).

Args:
    x: float32 [T, H * hd], hd even, written; rows may lie any distance apart.
    positions: int64 [T].
    heads: H.
    base: angles are positions * base^(-2i/dims), in float64.
    dims: how many elements of a head are turned, the first ones; None: all.
    threads: at most this many threads work.

Returns:
    x.

Raises:
    ValueError: shapes that do not fit.)");
  m.def("lag_products", &lag_products_call, py::arg("rows").noconvert(), py::arg("first"), py::arg("reach"),
        py::kw_only(), py::arg("threads") = 1,
        R"(Inner products of rows with those before them, as an autocorrelation sums them up.

Args:
    rows: float32 [m, D]; rows may lie any distance apart.
    first: the first row that products are wanted of.
    reach: the longest lag.
    threads: at most this many threads work.

Returns:
    float32 [m - first, reach]: <rows[first + i], rows[first + i - l]> at [i, l - 1], zero before row 0.

Raises:
    ValueError: first or reach out of range.)");
}
