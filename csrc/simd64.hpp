// Vectors of float64, for the few places where float32 is not enough.
#pragma once

#include <cmath>

#include "simd.hpp"

namespace hyena {

constexpr int kLanes64 = kLanes / 2;

namespace detail {
template <int L>
struct Lanes64;
template <>
struct Lanes64<2> {
  typedef double f64 __attribute__((vector_size(16)));
  typedef std::int64_t i64 __attribute__((vector_size(16)));
};
template <>
struct Lanes64<4> {
  typedef double f64 __attribute__((vector_size(32)));
  typedef std::int64_t i64 __attribute__((vector_size(32)));
};
template <>
struct Lanes64<8> {
  typedef double f64 __attribute__((vector_size(64)));
  typedef std::int64_t i64 __attribute__((vector_size(64)));
};
}  // namespace detail

using vd = detail::Lanes64<kLanes64>::f64;
using vl = detail::Lanes64<kLanes64>::i64;

inline vd load64(const double* p) {
  vd v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store64(double* p, vd v) { std::memcpy(p, &v, sizeof v); }
inline vd splat64(double x) { return x - vd{}; }

/// a * b + c, rounded once where the instruction set can and twice where it cannot.
inline vd fma(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
  return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

/// Largest |x| that `sin` reduces itself: its quotient by pi stays below 2^20.
constexpr double kSinLimit = 3.0e6;

/// sin(x) to about 2e-16 absolute for |x| <= kSinLimit; other lanes hold rubbish.
/// pi is split into parts of 33 bits, so that the first two products with the quotient are
/// exact; the Taylor polynomial of degree 21 leaves 2e-18 on [-pi/2, pi/2].
inline vd sin_within_limit(vd x) {
  const double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to the nearest integer
  const vd shifted = x * 0.31830988618379067154 + kMagic;
  const vd n = shifted - kMagic;
  vd r = x - n * 3.14159265346825122833;
  r = r - n * 1.21542010126079319532e-10;
  r = r - n * 4.04453249759190126308e-21;
  r = (vd)((vl)r ^ ((vl)shifted << 63));  // odd multiples of pi turn the sign
  const vd s = r * r;
  vd p = splat64(1.0 / 51090942171709440000.0);
  p = fma(p, s, splat64(-1.0 / 121645100408832000.0));
  p = fma(p, s, splat64(1.0 / 355687428096000.0));
  p = fma(p, s, splat64(-1.0 / 1307674368000.0));
  p = fma(p, s, splat64(1.0 / 6227020800.0));
  p = fma(p, s, splat64(-1.0 / 39916800.0));
  p = fma(p, s, splat64(1.0 / 362880.0));
  p = fma(p, s, splat64(-1.0 / 5040.0));
  p = fma(p, s, splat64(1.0 / 120.0));
  p = fma(p, s, splat64(-1.0 / 6.0));
  return fma(p * s, r, r);
}

/// sin(x) for every x: lanes beyond kSinLimit, infinities and NaN go through the C library.
inline vd sin(vd x) {
  const vl outside = ~((x <= kSinLimit) & (x >= -kSinLimit));
  vd y = sin_within_limit(x);
  std::int64_t any = 0;
  for (int i = 0; i < kLanes64; i++) any |= outside[i];
  if (any != 0)
    for (int i = 0; i < kLanes64; i++)
      if (outside[i] != 0) y[i] = std::sin(x[i]);
  return y;
}

}  // namespace hyena
