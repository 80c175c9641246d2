// Recurrences: linear attention, RWKV's average, Mamba's scan.
#include "bind/rows.hpp"
#include "scan.hpp"

namespace hyena {
namespace {

FloatArray linear_scan_call(const FloatArray& q, const FloatArray& k, const FloatArray& v, FloatArray state,
                            const MaybeArray& decay, MaybeArray out, std::int64_t position, bool taylor,
                            std::optional<float> eps, int threads) {
  const std::string op = "linear_scan";
  if (state.ndim() != 3 || state.shape(0) < 1)
    reject(op, "state has shape " + shape_text(state) + " but needs [heads, features, columns]");
  LinearScan job{};
  job.heads = state.shape(0);
  job.q = rows(op, "q", q, -1, -1);
  job.k = rows(op, "k", k, job.q.rows, job.q.cols);
  job.v = rows(op, "v", v, job.q.rows, -1);
  for (const ConstRows& each : {job.q, job.v})
    if (each.cols < 1 || each.cols % job.heads != 0)
      reject(op, std::to_string(each.cols) + " columns cannot be cut into " + std::to_string(job.heads) + " heads");
  if (position < 0) reject(op, "position is " + std::to_string(position) + " but needs to be at least 0");
  job.position = position;
  job.taylor = taylor;
  job.normalize = eps.has_value();
  job.eps = eps.value_or(0.0f);
  job.decay = decay ? floats(op, "decay", *decay, {job.heads}) : nullptr;
  floats(op, "state", state, {job.heads, job.features(), job.columns()});
  job.state = state.mutable_data();
  FloatArray result = output(out, job.v.rows, job.v.cols);
  job.y = writable_rows(op, "out", result, job.v.rows, job.v.cols);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    linear_scan(job, threads);
  }
  return result;
}

FloatArray wkv_scan_call(const FloatArray& k, const FloatArray& v, const FloatArray& w, const FloatArray& u,
                         FloatArray state, MaybeArray out, int threads) {
  const std::string op = "wkv_scan";
  WkvScan job{};
  job.k = rows(op, "k", k, -1, -1);
  job.v = rows(op, "v", v, job.k.rows, job.k.cols);
  const std::int64_t G = tile_groups(job.k.cols);
  job.w = floats(op, "w", w, {G, kTile});
  job.u = floats(op, "u", u, {G, kTile});
  floats(op, "state", state, {G, 4, kTile});
  job.state = state.mutable_data();
  FloatArray result = output(out, job.k.rows, job.k.cols);
  job.y = writable_rows(op, "out", result, job.k.rows, job.k.cols);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    wkv_scan(job, threads);
  }
  return result;
}

FloatArray selective_scan_call(const FloatArray& x, const FloatArray& dt, const FloatArray& b, const FloatArray& c,
                               const FloatArray& rates, const FloatArray& skip, FloatArray state, MaybeArray out,
                               int threads) {
  const std::string op = "selective_scan";
  SelectiveScan job{};
  job.x = rows(op, "x", x, -1, -1);
  job.dt = rows(op, "dt", dt, job.x.rows, job.x.cols);
  job.b = rows(op, "b", b, job.x.rows, -1);
  job.c = rows(op, "c", c, job.x.rows, job.b.cols);
  const std::int64_t G = tile_groups(job.x.cols), N = job.b.cols;
  job.rates = floats(op, "rates", rates, {G, N, kTile});
  job.skip = floats(op, "skip", skip, {G, kTile});
  floats(op, "state", state, {G, N, kTile});
  job.state = state.mutable_data();
  FloatArray result = output(out, job.x.rows, job.x.cols);
  job.y = writable_rows(op, "out", result, job.x.rows, job.x.cols);
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    selective_scan(job, threads);
  }
  return result;
}

}  // namespace
}  // namespace hyena

void bind_scan(py::module_& m) {
  using namespace hyena;
  m.def("linear_scan", &linear_scan_call, py::arg("q").noconvert(), py::arg("k").noconvert(), py::arg("v").noconvert(),
        py::arg("state").noconvert(), py::arg("decay").noconvert() = py::none(),
        py::arg("out").noconvert() = py::none(), py::kw_only(), py::arg("position") = 0, py::arg("taylor") = false,
        py::arg("eps") = py::none(), py::arg("threads") = 1,
        R"(Linear attention of one sequence, token by token (arXiv 2402.18668, 2307.08621). Per head:

    S = decay S + phi(k) (v, 1)^T
    y = phi(q) S, divided by its last column + eps where eps is given

Its bits do not depend on where the sequence is cut, nor on threads.

Args:
    q, k: float32 [T, H f]; v: float32 [T, H V]; rows may lie any distance apart.
    state: float32 [H, F, C], written; zeros before the first token. F is rounded up to a multiple of 8,
        C is V, or V + 1 with eps, rounded up to a multiple of 16.
    decay: float32 [H], in 0..1; None: 1.
    position: of the first token. With a decay, numbers below 1e-30 become zero where it is a multiple
        of 64.
    taylor: phi are 1, x and the products of two, F = 1 + f + f (f + 1) / 2 in all, such that
        phi(q) . phi(k) = 1 + s + s^2 / 2 with s = q . k / sqrt(f); else phi(x) = x.
    out: float32 [T, H V] to write, or None; may be v.
    eps: of the divisor; None: no division.
    threads: at most this many threads work.

Returns:
    out, or a new float32 [T, H V].

Raises:
    ValueError: shapes that do not fit.)");
  m.def("wkv_scan", &wkv_scan_call, py::arg("k").noconvert(), py::arg("v").noconvert(), py::arg("w").noconvert(),
        py::arg("u").noconvert(), py::arg("state").noconvert(), py::arg("out").noconvert() = py::none(), py::kw_only(),
        py::arg("threads") = 1,
        R"(RWKV-v4's average of one sequence, token by token (arXiv 2305.13048, appendix on numerics):

    y_t = (sum_{j<t} e^(w (t-1-j) + k_j) v_j + e^(u + k_t) v_t) / (the same without v)

Its bits do not depend on where the sequence is cut, nor on threads.

Args:
    k, v: float32 [T, D]; rows may lie any distance apart.
    w, u: float32 [G, 16], channel c in group c / 16; w in -1e30..0.
    state: float32 [G, 4, 16], written: numerator and denominator over their largest exponent
        top + w age, top, age; (0, 0, -1e30, 0) before the first token.
    out: float32 [T, D] to write, or None; may be k or v.
    threads: at most this many threads work.

Returns:
    out, or a new float32 [T, D].

Raises:
    ValueError: shapes that do not fit.)");
  m.def("selective_scan", &selective_scan_call, py::arg("x").noconvert(), py::arg("dt").noconvert(),
        py::arg("b").noconvert(), py::arg("c").noconvert(), py::arg("rates").noconvert(), py::arg("skip").noconvert(),
        py::arg("state").noconvert(), py::arg("out").noconvert() = py::none(), py::kw_only(), py::arg("threads") = 1,
        R"(Mamba's scan of one sequence, token by token (arXiv 2312.00752, section 3.2), d = softplus(dt):

    s_n = e^(d rates_n) s_n + d b_n x
    y = sum_n c_n s_n + skip x

Its bits do not depend on where the sequence is cut, nor on threads.

Args:
    x, dt: float32 [T, D]; b, c: float32 [T, N]; rows may lie any distance apart.
    rates: float32 [G, N, 16], not positive, channel c in group c / 16; skip: float32 [G, 16].
    state: float32 [G, N, 16], written; zeros before the first token.
    out: float32 [T, D] to write, or None; may be x or dt.
    threads: at most this many threads work.

Returns:
    out, or a new float32 [T, D].

Raises:
    ValueError: shapes that do not fit.)");
}
