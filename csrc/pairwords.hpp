// Pairs of bfloat16 numbers as words of tile_product.
#pragma once

#include <cstring>

#include "pairs.hpp"
#include "simd.hpp"

namespace hyena {

/// Their product is the two float32 multiply-adds it stands for, second halves first.
struct WidenedPairs {
  static constexpr int kNumbers = 2;
  using Vector = ivec<kLanes>;
  static void copy(const float* x, std::int64_t n, float* to) { to_pairs(x, n, to); }
  static inline Vector read(const float* p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static inline Vector spread(const float* p) {
    std::int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return pair - Vector{};
  }
  static inline vf add(vf sum, Vector a, Vector b) { return fma(low(a), low(b), fma(high(a), high(b), sum)); }

 private:
  static inline vf low(Vector v) { return (vf)(v << 16); }
  static inline vf high(Vector v) { return (vf)(v & static_cast<std::int32_t>(0xffff0000u)); }
};

#if defined(__AVX512F__)
/// The same in one instruction each. Written out because this build also runs where they are absent.
struct HardwarePairs : WidenedPairs {
  static void copy(const float* x, std::int64_t n, float* to) {
    for (; n >= 2 * kLanes; n -= 2 * kLanes, x += 2 * kLanes, to += kLanes) {
      vf pairs;
      asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(load(x + kLanes)), "v"(load(x)));
      store(to, pairs);
    }
    to_pairs(x, n, to);
  }
  static inline vf add(vf sum, Vector a, Vector b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
#else
using HardwarePairs = WidenedPairs;
#endif

}  // namespace hyena
