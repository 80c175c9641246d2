// The register tile that every matrix product here is made of.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "simd.hpp"

namespace hyena {

/// Rows of the tile: with two vectors of columns the accumulators, one row of the right side and
/// a broadcast fill the register file (32 registers, 16 of which one holds a product without FMA).
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 12;
#elif defined(__FMA__)
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 4;
#endif

/// What fills the 32 bits of a lane, and how two of them are multiplied: float32 numbers, here.
struct FloatWords {
  static constexpr int kNumbers = 1;  // in a word
  using Vector = vf;
  static void copy(const float* x, std::int64_t n, float* to) { std::copy_n(x, n, to); }
  static inline vf read(const float* p) { return load(p); }
  static inline vf spread(const float* p) { return splat(*p); }
  static inline vf add(vf sum, vf a, vf b) { return fma(a, b, sum); }
};

/// c [R][P * V * kLanes] = (add ? c : 0) + a [R][depth] b, where a and b are words and b consists of P panels
/// of V vectors a row. Every element is one chain of `add` over increasing k, whatever R, P and V are.
/// a[r][k] is at a[r * ARow + k * ACol]: constant distances keep the addresses in one register.
template <int R, int V, int P, int ARow, int ACol, class Words = FloatWords>
inline void tile_product(const float* a, const float* b, std::int64_t b_row, std::int64_t b_panel, std::int64_t depth,
                         float* c, std::int64_t c_row, bool add) {
  vf sum[R][P * V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int i = 0; i < P * V; i++) sum[r][i] = add ? load(c + r * c_row + i * kLanes) : vf{};
  for (std::int64_t k = 0; k < depth; k++) {
    typename Words::Vector w[P * V];
    for (int p = 0; p < P; p++)
      for (int v = 0; v < V; v++) w[p * V + v] = Words::read(b + p * b_panel + k * b_row + v * kLanes);
    for (int r = 0; r < R; r++) {
      const typename Words::Vector s = Words::spread(a + r * ARow + k * ACol);
      for (int i = 0; i < P * V; i++) sum[r][i] = Words::add(sum[r][i], s, w[i]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int i = 0; i < P * V; i++) store(c + r * c_row + i * kLanes, sum[r][i]);
}

/// { Make<1>::call, ..., Make<kTileRows>::call }, to be indexed by a tile's row count - 1.
template <template <int> class Make, int... I>
constexpr auto by_rows(std::integer_sequence<int, I...>) {
  return std::array{Make<I + 1>::call...};
}
template <template <int> class Make>
constexpr auto by_rows() {
  return by_rows<Make>(std::make_integer_sequence<int, kTileRows>{});
}

}  // namespace hyena
