// bfloat16 numbers in pairs: neighbouring ones share 32 bits, the first in the low half.
#pragma once

#include <cstring>

#include "simd.hpp"

namespace hyena {

/// Whether this CPU multiplies pairs itself. Elsewhere they are widened to float32, which costs time.
bool multiplies_pairs() noexcept;

/// to [ceil(n / 2)] = x [n] as pairs, to the nearest and to even; the half that is missing is zero.
void to_pairs(const float* x, std::int64_t n, float* to) noexcept;

/// What a product of pairs needs: `round`, which is to_pairs, and `add`, a dot product of two added to a sum.
/// Here it is the two float32 multiply-adds it stands for, second halves first.
struct WidenedPairs {
  static void round(const float* x, std::int64_t n, float* to) { to_pairs(x, n, to); }
  static inline vf add(vf sum, ivec<kLanes> a, ivec<kLanes> b) {
    return fma(low(a), low(b), fma(high(a), high(b), sum));
  }

 private:
  static inline vf low(ivec<kLanes> v) { return (vf)(v << 16); }
  static inline vf high(ivec<kLanes> v) { return (vf)(v & static_cast<std::int32_t>(0xffff0000u)); }
};

#if defined(__AVX512F__)
/// The same in one instruction each. Written out because this build also runs where they are absent.
struct HardwarePairs {
  static void round(const float* x, std::int64_t n, float* to) {
    for (; n >= 2 * kLanes; n -= 2 * kLanes, x += 2 * kLanes, to += kLanes) {
      vf pairs;
      asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(load(x + kLanes)), "v"(load(x)));
      store(to, pairs);
    }
    to_pairs(x, n, to);
  }
  static inline vf add(vf sum, ivec<kLanes> a, ivec<kLanes> b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
#else
using HardwarePairs = WidenedPairs;
#endif

/// tile_product of pairs; depth, distances and widths count them.
template <class Pairs, int R, int V, int P, int ARow>
inline void pair_tile_product(const float* a, const float* b, std::int64_t b_row, std::int64_t b_panel,
                              std::int64_t depth, float* c, std::int64_t c_row, bool add) {
  vf sum[R][P * V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int i = 0; i < P * V; i++) sum[r][i] = add ? load(c + r * c_row + i * kLanes) : vf{};
  for (std::int64_t k = 0; k < depth; k++) {
    ivec<kLanes> w[P * V];
    for (int p = 0; p < P; p++)
      for (int v = 0; v < V; v++) std::memcpy(&w[p * V + v], b + p * b_panel + k * b_row + v * kLanes, sizeof(vf));
    for (int r = 0; r < R; r++) {
      std::int32_t pair;
      std::memcpy(&pair, a + r * ARow + k, sizeof pair);
      const ivec<kLanes> s = pair - ivec<kLanes>{};
      for (int i = 0; i < P * V; i++) sum[r][i] = Pairs::add(sum[r][i], s, w[i]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int i = 0; i < P * V; i++) store(c + r * c_row + i * kLanes, sum[r][i]);
}

}  // namespace hyena
