// Vectors of float32: the one place that knows instruction sets.
//
// `vec<L>` holds L lanes and has the operators of C (+ - * / and comparison) from the
// compiler's vector extension; `kLanes` is what one register of this build holds. A tile row
// is kTile = 16 lanes in every build, so data layouts and file formats do not depend on it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hyena {

constexpr int kTile = 16;
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

/// a * b + c, rounded once where the instruction set can and twice where it cannot.
inline float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
inline vec<4> fma(vec<4> a, vec<4> b, vec<4> c) {
#if defined(__FMA__)
  return (vec<4>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
  return (vec<4>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
#if defined(__AVX2__)
inline vec<8> fma(vec<8> a, vec<8> b, vec<8> c) { return (vec<8>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#endif
#if defined(__AVX512F__)
inline vec<16> fma(vec<16> a, vec<16> b, vec<16> c) {
  return (vec<16>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#endif

/// The first or the second half of the lanes.
template <int L>
inline vec<L / 2> half_of(vec<L> v, int which) {
#if defined(__AVX512DQ__)
  // A copy through memory would keep the vector there: GCC then stores every update of it.
  if constexpr (L == 16)
    return (vec<8>)(which == 0 ? _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 0)
                               : _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
#endif
#if defined(__AVX2__)
  if constexpr (L == 8)
    return (vec<4>)(which == 0 ? _mm256_castps256_ps128((__m256)v) : _mm256_extractf128_ps((__m256)v, 1));
#endif
  vec<L / 2> h;
  std::memcpy(&h, reinterpret_cast<const char*>(&v) + which * sizeof h, sizeof h);
  return h;
}

/// Sum of the lanes by halves: the same tree in every call.
template <int L>
inline float sum(vec<L> v) {
  if constexpr (L > 4)
    return sum<L / 2>(half_of<L>(v, 0) + half_of<L>(v, 1));
  else
    return (v[0] + v[2]) + (v[1] + v[3]);
}

template <int L>
inline vec<L> min(vec<L> a, vec<L> b) {
  return a < b ? a : b;
}
template <int L>
inline vec<L> max(vec<L> a, vec<L> b) {
  return a > b ? a : b;
}

/// Largest lane.
template <int L>
inline float max_lane(vec<L> v) {
  if constexpr (L > 4) {
    return max_lane<L / 2>(max<L / 2>(half_of<L>(v, 0), half_of<L>(v, 1)));
  } else {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
}

/// e^x within 2 ulp for x in [-87, 88]; arguments outside are clamped to that range, NaN passes.
/// Cody-Waite reduction by ln 2 in two parts, then 1 + r + r^2 q(r) on [-ln2/2, ln2/2] with q the
/// minimax polynomial of degree 4 (relative error 3.1e-9). exp(0) is exactly 1.
template <int L>
inline vec<L> exp(vec<L> x) {
  const float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  // Written so that NaN fails both comparisons and passes through the arithmetic.
  x = x < splat<L>(-87.0f) ? splat<L>(-87.0f) : x;
  x = x > splat<L>(88.0f) ? splat<L>(88.0f) : x;
  const vec<L> shifted = fma(x, splat<L>(1.44269504f), splat<L>(kMagic));
  const vec<L> n = shifted - kMagic;
  vec<L> r = fma(n, splat<L>(-0.693359375f), x);
  r = fma(n, splat<L>(2.12194440e-4f), r);
  vec<L> p = splat<L>(0.00138145406f);
  p = fma(p, r, splat<L>(0.00836874545f));
  p = fma(p, r, splat<L>(0.0416683890f));
  p = fma(p, r, splat<L>(0.166665211f));
  p = fma(p, r, splat<L>(0.49999994f));
  p = fma(p, r, splat<L>(1.0f));
  p = fma(p, r, splat<L>(1.0f));
  const ivec<L> exponent = ((ivec<L>)shifted - (std::int32_t)0x4B400000 + 127) << 23;
  return p * (vec<L>)exponent;
}

}  // namespace hyena
