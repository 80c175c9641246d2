#include <pybind11/stl.h>

#include <optional>

#include "bind/arrays.hpp"
#include "sinemlp.hpp"

namespace hyena {
namespace {

using DoubleArray = py::array_t<double>;

const double* doubles(const char* name, const DoubleArray& a, std::int64_t rows, std::int64_t columns = -1) {
  const bool matrix = columns >= 0;
  const bool fits =
      a.ndim() == (matrix ? 2 : 1) && (rows < 0 || a.shape(0) == rows) && (!matrix || a.shape(1) == columns);
  if (!fits) {
    const std::string wanted = (rows < 0 ? std::string("any") : std::to_string(rows)) +
                               (matrix ? ", " + std::to_string(columns) : std::string());
    reject("sine_mlp", std::string(name) + " has shape " + shape_text(a) + " but needs [" + wanted + "]");
  }
  if (!(a.flags() & py::array::c_style)) reject("sine_mlp", std::string(name) + " must be C-contiguous");
  return a.data();
}

std::vector<SineLayer> sine_layers(std::int64_t E, const std::vector<DoubleArray>& weights,
                                   const std::vector<DoubleArray>& biases, const std::vector<DoubleArray>& freqs) {
  if (weights.empty() || weights.size() != biases.size() || weights.size() != freqs.size())
    reject("sine_mlp", "weights, biases and freqs must be lists of one length, at least 1");
  std::vector<SineLayer> layers;
  for (std::size_t k = 0; k < weights.size(); k++) {
    const std::int64_t columns = layers.empty() ? E : layers.back().rows;
    const double* weight = doubles("weight", weights[k], -1, columns);
    const std::int64_t rows = weights[k].shape(0);
    layers.push_back({weight, doubles("bias", biases[k], rows), doubles("freq", freqs[k], rows), rows, columns});
  }
  return layers;
}

FloatArray sine_mlp_py(const DoubleArray& features, const std::vector<DoubleArray>& weights,
                       const std::vector<DoubleArray>& biases, const std::vector<DoubleArray>& freqs, int threads) {
  const std::int64_t E = features.ndim() == 2 ? features.shape(1) : 0;
  const double* rows = doubles("features", features, -1, E);
  const std::int64_t L = features.shape(0);
  const std::vector<SineLayer> layers = sine_layers(E, weights, biases, freqs);
  thread_count("sine_mlp", threads);
  FloatArray out({pieces_of(L, kTile), layers.back().rows, static_cast<std::int64_t>(kTile)});
  float* to = out.mutable_data();
  {
    py::gil_scoped_release release;
    sine_mlp(rows, L, layers, to, threads);
  }
  return out;
}

FloatArray filter_block_py(const FloatArray& hidden, const FloatArray& weight, const std::optional<FloatArray>& times,
                           const std::optional<FloatArray>& rates, float shift, std::int64_t t0, std::int64_t t1,
                           int threads) {
  const std::string op = "filter_block";
  const float* tile = floats(op, "hidden", hidden, {-1, -1, kTile});
  const std::int64_t P = hidden.shape(1);
  const float* rows = floats(op, "weight", weight, {-1, P});
  const std::int64_t C = weight.shape(0);
  if (t0 < 0 || t1 < t0 || t1 > hidden.shape(0) * kTile)
    reject(op, "times [" + std::to_string(t0) + ", " + std::to_string(t1) + ") are not within the " +
                   std::to_string(hidden.shape(0)) + " tiles of hidden");
  if (times.has_value() != rates.has_value()) reject(op, "times and rates must be given together");
  Window window{nullptr, nullptr, shift};
  if (times) {
    window.times = floats(op, "times", *times, {-1});
    window.rates = floats(op, "rates", *rates, {C});
    if (times->shape(0) < t1) reject(op, "times has shape " + shape_text(*times) + " but t1 is " + std::to_string(t1));
  }
  thread_count(op, threads);
  FloatArray out({C, t1 - t0});
  float* to = out.mutable_data();
  {
    py::gil_scoped_release release;
    filter_block(tile, P, rows, C, window, t0, t1, to, threads);
  }
  return out;
}

}  // namespace
}  // namespace hyena

void bind_filter(py::module_& m) {
  m.def("sine_mlp", &hyena::sine_mlp_py, py::arg("features").noconvert(), py::arg("weights").noconvert(),
        py::arg("biases").noconvert(), py::arg("freqs").noconvert(), py::arg("threads"),
        R"(Hidden sine layers of an implicit filter, in float64 (HyenaDNA's filter MLP).

Args:
    features: float64 [L, E], one row a time.
    weights, biases, freqs: one float64 [rows, columns], [rows], [rows] a layer;
        layer k maps x to sin(freq * (weight @ x + bias)).
    threads: at most so many threads; the result does not depend on it.

Returns:
    float32 [ceil(L / 16), P, 16]: tiles of 16 consecutive times, times beyond L zero.

Raises:
    ValueError: shapes do not fit.)");
  m.def("filter_block", &hyena::filter_block_py, py::arg("hidden").noconvert(), py::arg("weight").noconvert(),
        py::arg("times").noconvert(), py::arg("rates").noconvert(), py::arg("shift"), py::arg("t0"), py::arg("t1"),
        py::arg("threads"),
        R"(Last linear layer and window of an implicit filter for some channels and times, float32.

Args:
    hidden: tiles of sine_mlp, [G, P, 16].
    weight: float32 [C, P], rows of the wanted channels.
    times, rates: float32 [>= t1] and [C], or both None for no window;
        the window is exp(-times * rates) + shift.
    t0, t1: wanted times, 0 <= t0 <= t1 <= 16 * G.
    threads: at most so many threads; the result does not depend on it.

Returns:
    float32 [C, t1 - t0]; every element is one chain of additions over P, whatever the block.

Raises:
    ValueError: shapes do not fit.)");
}
