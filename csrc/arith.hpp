// Functions of vectors that instruction sets have themselves.
#pragma once

#include "vec.hpp"

namespace hyena {

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

/// a < b ? a : b, and a > b ? a : b: b where one is NaN. Compilers do not find the instruction.
template <int L>
inline vec<L> min(vec<L> a, vec<L> b) {
#if defined(__AVX512F__)
  if constexpr (L == 16) return (vec<L>)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#endif
#if defined(__AVX2__)
  if constexpr (L == 8) return (vec<L>)_mm256_min_ps((__m256)a, (__m256)b);
#endif
  return a < b ? a : b;
}
template <int L>
inline vec<L> max(vec<L> a, vec<L> b) {
#if defined(__AVX512F__)
  if constexpr (L == 16) return (vec<L>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#endif
#if defined(__AVX2__)
  if constexpr (L == 8) return (vec<L>)_mm256_max_ps((__m256)a, (__m256)b);
#endif
  return a > b ? a : b;
}

/// 1 / x within 2 ulp for x whose reciprocal is a normal number; NaN for infinities where an estimate is refined.
template <int L>
inline vec<L> reciprocal(vec<L> x) {
#if defined(__AVX512F__)
  if constexpr (L == 16) {
    const vec<L> near = (vec<L>)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
    return fma(fma(-x, near, splat<L>(1.0f)), near, near);
  }
#endif
  return 1.0f / x;
}

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

}  // namespace hyena
