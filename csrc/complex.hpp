// Complex vectors.
#pragma once

#include "simd.hpp"

namespace hyena {

// Compilers judge some of these too large to inline, and a call passes its arrays through memory.
#define HYENA_INLINE inline __attribute__((always_inline))

/// L complex numbers; in memory L real parts, then L imaginary ones.
template <int L>
struct Complex {
  vec<L> re, im;
};

template <int L>
HYENA_INLINE Complex<L> load_complex(const float* p) {
  return {load<L>(p), load<L>(p + L)};
}
template <int L>
HYENA_INLINE void store_complex(float* p, const Complex<L>& a) {
  store(p, a.re);
  store(p + L, a.im);
}

template <int L>
HYENA_INLINE Complex<L> operator+(const Complex<L>& a, const Complex<L>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <int L>
HYENA_INLINE Complex<L> operator-(const Complex<L>& a, const Complex<L>& b) {
  return {a.re - b.re, a.im - b.im};
}
/// a + b * x for a real b.
template <int L>
HYENA_INLINE Complex<L> add_scaled(const Complex<L>& a, float b, const Complex<L>& x) {
  return {fma(splat<L>(b), x.re, a.re), fma(splat<L>(b), x.im, a.im)};
}
/// a * (c + Sign i s).
template <int Sign, int L>
HYENA_INLINE Complex<L> turn(const Complex<L>& a, vec<L> c, vec<L> s) {
  if constexpr (Sign > 0)
    return {fma(a.re, c, -(a.im * s)), fma(a.re, s, a.im * c)};
  else
    return {fma(a.re, c, a.im * s), fma(a.im, c, -(a.re * s))};
}
template <int Sign, int L>
HYENA_INLINE Complex<L> turn(const Complex<L>& a, float c, float s) {
  return turn<Sign, L>(a, splat<L>(c), splat<L>(s));
}
/// a * Sign i.
template <int Sign, int L>
HYENA_INLINE Complex<L> quarter_turn(const Complex<L>& a) {
  if constexpr (Sign > 0)
    return {-a.im, a.re};
  else
    return {a.im, -a.re};
}

}  // namespace hyena
