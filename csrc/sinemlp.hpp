// Implicit long filters: a small MLP with sine activations, evaluated over time.
//
// Letters: L times, E features, P width of the MLP, C channels, G = ceil(L / 16) tiles.
#pragma once

#include <cstdint>
#include <vector>

namespace hyena {

/// out = sin(freq * (weight @ in + bias)).
struct SineLayer {
  const double* weight;  // [rows, columns]
  const double* bias;    // [rows]
  const double* freq;    // [rows]
  std::int64_t rows, columns;
};

/// All sine layers in float64: they multiply rounding errors, so only the end is rounded.
/// features [L, E]; out, float32 tiles [G, P, 16], unit p of 16 consecutive times per row;
/// times beyond L are zero. Throws std::bad_alloc.
void sine_mlp(const double* features, std::int64_t L, const std::vector<SineLayer>& layers, float* out, int threads);

/// exp(-time * rate) + shift; no window at all where times is null.
struct Window {
  const float* times;  // [>= t1]
  const float* rates;  // [C]
  float shift;
};

/// out[c][t - t0] = window * sum_p weight[c][p] hidden[t][p] for t in [t0, t1), one chain over p.
/// hidden: tiles of sine_mlp that reach t1; weight [C, P]; out [C, t1 - t0].
void filter_block(const float* hidden, std::int64_t P, const float* weight, std::int64_t C, const Window& window,
                  std::int64_t t0, std::int64_t t1, float* out, int threads);

}  // namespace hyena
