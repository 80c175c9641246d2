// Sums of complex exponentials: taps and recurrence.
#include <pybind11/complex.h>

#include "bind/tile_arrays.hpp"
#include "modal.hpp"

using namespace hyena;

namespace {

using ComplexArray = py::array_t<Complex64>;
using DoubleArray = py::array_t<double>;

template <class T>
const T* contiguous(const std::string& op, const char* name, const py::array_t<T>& a,
                    std::initializer_list<std::int64_t> shape) {
  bool fits = a.ndim() == static_cast<py::ssize_t>(shape.size());
  py::ssize_t i = 0;
  std::string wanted = "[";
  for (const std::int64_t size : shape) {
    wanted += (i ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
    fits = fits && (size < 0 || a.shape(i) == size);
    i++;
  }
  if (!fits) reject(op, std::string(name) + " has shape " + shape_text(a) + " but needs " + wanted + "]");
  if (!(a.flags() & py::array::c_style)) reject(op, std::string(name) + " must be C-contiguous");
  return a.data();
}

FloatArray modal_taps_py(const ComplexArray& poles, const ComplexArray& residues, std::int64_t t0, std::int64_t t1,
                         int threads) {
  const std::string op = "modal_taps";
  const Complex64* p = contiguous(op, "poles", poles, {-1, -1});
  const std::int64_t C = poles.shape(0), modes = poles.shape(1);
  const Complex64* r = contiguous(op, "residues", residues, {C, modes});
  if (t0 < 0 || t1 < t0) reject(op, "times [" + std::to_string(t0) + ", " + std::to_string(t1) + ") are none");
  FloatArray out({C, t1 - t0});
  const Rows to{out.mutable_data(), C, t1 - t0, t1 - t0};
  const int team = thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    modal_taps(p, r, modes, t0, t1, to, team);
  }
  return out;
}

std::vector<ModalSpan> checked_spans(const std::string& op, std::vector<DoubleArray>& states,
                                     const std::vector<std::pair<std::int64_t, std::int64_t>>& spans,
                                     const ModalScan& job) {
  if (states.size() != spans.size())
    reject(op, std::to_string(states.size()) + " states but " + std::to_string(spans.size()) + " spans");
  std::vector<ModalSpan> found;
  for (std::size_t b = 0; b < spans.size(); b++) {
    const auto [first, last] = spans[b];
    if (first < (b == 0 ? 0 : spans[b - 1].second) || last < first || last > job.z.length)
      reject(op, "spans must be within the " + std::to_string(job.z.length) + " rows of z, in order and apart");
    const std::int64_t P = job.parts;
    contiguous(op, "a state", states[b], {P * P, job.z.groups / P, job.modes, 2, kTile});
    for (std::size_t other = 0; other < b; other++)
      if (states[other].data() == states[b].data()) reject(op, "a state appears twice");
    found.push_back({first, last, states[b].mutable_data()});
  }
  return found;
}

FloatArray modal_scan_py(std::vector<DoubleArray> states,
                         const std::vector<std::pair<std::int64_t, std::int64_t>>& spans, const DoubleArray& poles,
                         const DoubleArray& residues, const FloatArray& skip, const FloatArray& z,
                         const MaybeArray& pre, const MaybeArray& post, std::int64_t parts, const MaybeArray& out,
                         int threads) {
  const std::string op = "modal_scan";
  ModalScan job{};
  job.parts = parts;
  job.z = tiles(op, "z", z);
  const std::int64_t PG = job.z.groups, T = job.z.length;
  if (parts < 1 || PG % parts != 0)
    reject(op, "z has " + std::to_string(PG) + " groups but needs a multiple of parts = " + std::to_string(parts));
  const std::int64_t G = PG / parts;
  job.poles = contiguous(op, "poles", poles, {G, -1, 2, kTile});
  job.modes = poles.shape(1);
  job.residues = contiguous(op, "residues", residues, {G, job.modes, 2, kTile});
  job.skip = floats(op, "skip", skip, {G, kTile});
  if (pre) job.pre = tiles(op, "pre", *pre, PG, T);
  if (post) job.post = tiles(op, "post", *post, PG, T);
  FloatArray result = out_tiles(op, out, PG, T);
  job.out = tiles(op, "out", result, PG, T);
  const std::vector<ModalSpan> found = checked_spans(op, states, spans, job);
  const int team = thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    modal_scan(job, found, team);
  }
  return result;
}

}  // namespace

void bind_modal(py::module_& m) {
  m.def("modal_taps", &modal_taps_py, py::arg("poles").noconvert(), py::arg("residues").noconvert(), py::arg("t0"),
        py::arg("t1"), py::kw_only(), py::arg("threads") = 1,
        R"(Taps that are sums of complex exponentials, in float64: Re sum_s residues[c, s] poles[c, s]^t.

Args:
    poles, residues: complex128 [C, S].
    t0, t1: wanted times, 0 <= t0 <= t1.
    threads: at most this many threads work.

Returns:
    float32 [C, t1 - t0]; a tap has the same bits in whatever range it is asked for.

Raises:
    ValueError: shapes or times that do not fit.)");
  m.def("modal_scan", &modal_scan_py, py::arg("states").noconvert(), py::arg("spans"), py::arg("poles").noconvert(),
        py::arg("residues").noconvert(), py::arg("skip").noconvert(), py::arg("z").noconvert(),
        py::arg("pre").noconvert() = py::none(), py::arg("post").noconvert() = py::none(), py::kw_only(),
        py::arg("parts") = 1, py::arg("out").noconvert() = py::none(), py::arg("threads") = 1,
        R"(The convolution with `modal_taps` as a recurrence, token by token, its sums in float64.

With w = z_i pre_j for parts i and j: x[t] = poles x[t - 1] + w[t],
y_ij[t] = Re sum_s residues_s x_s[t] + skip w[t], and out_j = sum_i post_i y_ij.

Args:
    states: float64 [P P, G, S, 2, 16] each, changed in place; part i before part j.
    spans: for each state (first, last), the rows that it takes in; in order.
    poles, residues: float64 [G, S, 2, 16], real parts before imaginary ones.
    skip: float32 [G, 16].
    z, pre, post: tiles float32 [P G, T, 16], part after part; the gates may be None.
    parts: P.
    out: tiles like z, or None for new ones; where P is 1 it may be z, pre or post.
    threads: at most this many threads work.

Returns:
    out; rows in no span are not written. The bits of a row do not depend on what else is in the call.

Raises:
    ValueError: shapes or spans that do not fit, or a state that appears twice.)");
}
