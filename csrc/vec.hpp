// Vectors of float32 and their registers. With arith.hpp the one place that knows instruction sets.
//
// `vec<L>` holds L lanes and has the operators of C (+ - * / and comparison) from the
// compiler's vector extension; `kLanes` is what one register of this build holds.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(HYENA_ANY_CPU)
#error "what is compiled once for all builds may not depend on an instruction set"
#endif

namespace hyena {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

namespace detail {
template <int L>
struct Lanes;
template <>
struct Lanes<4> {
  typedef float f32 __attribute__((vector_size(16)));
  typedef std::int32_t i32 __attribute__((vector_size(16)));
};
template <>
struct Lanes<8> {
  typedef float f32 __attribute__((vector_size(32)));
  typedef std::int32_t i32 __attribute__((vector_size(32)));
};
template <>
struct Lanes<16> {
  typedef float f32 __attribute__((vector_size(64)));
  typedef std::int32_t i32 __attribute__((vector_size(64)));
};
}  // namespace detail

template <int L>
using vec = typename detail::Lanes<L>::f32;
template <int L>
using ivec = typename detail::Lanes<L>::i32;
using vf = vec<kLanes>;

/// Loads or stores L floats at any address.
template <int L = kLanes>
inline vec<L> load(const float* p) {
  vec<L> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
inline void store(float* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

/// The first n of L floats, zero in the other lanes; and storing only those.
template <int L = kLanes>
inline vec<L> load_part(const float* p, std::int64_t n) {
  vec<L> v{};
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
template <class V>
inline void store_part(float* p, V v, std::int64_t n) {
  std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

/// x in every lane. Written as a subtraction because 0 + x is not x for -0.
template <int L = kLanes>
inline vec<L> splat(float x) {
  return x - vec<L>{};
}

}  // namespace hyena
