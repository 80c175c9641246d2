// Activations of one vector each, for use inside products and by themselves.
#pragma once

#include "activation.hpp"
#include "simd.hpp"

namespace hyena {

/// 1 / (1 + e^-x); zero below -80, where the quotient would near the denormal numbers.
template <int L>
inline vec<L> sigmoid(vec<L> x) {
  const vec<L> y = reciprocal<L>(1.0f + exp<L>(-x));
  return x < splat<L>(-80.0f) ? vec<L>{} : y;
}

/// x sigmoid(x). The floor keeps -inf and the most negative numbers from multiplying by zero.
template <int L>
inline vec<L> silu(vec<L> x) {
  return max<L>(splat<L>(-80.0f), x) * sigmoid<L>(x);
}

/// 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), as x sigmoid(2u). Numbers below -9.6 are taken for it, whose
/// result is -8e-34: no infinity times zero, and no quotient near the denormal numbers.
template <int L>
inline vec<L> gelu_tanh(vec<L> x) {
  x = max<L>(splat<L>(-9.6f), x);
  const vec<L> minus_twice = x * fma(x * x, splat<L>(-0.0713548163f), splat<L>(-1.59576912f));
  return x * reciprocal<L>(1.0f + exp<L>(minus_twice));
}

/// x Phi(x) with Phi from erf by Abramowitz and Stegun 7.1.26: |error| below 3e-7 |x|.
template <int L>
inline vec<L> gelu_erf(vec<L> x) {
  x = max<L>(splat<L>(-13.0f), x);
  const vec<L> z = 0.707106781f * min<L>(splat<L>(13.0f), max<L>(-x, x));
  const vec<L> t = reciprocal<L>(fma(splat<L>(0.3275911f), z, splat<L>(1.0f)));
  vec<L> p = splat<L>(1.061405429f);
  p = fma(p, t, splat<L>(-1.453152027f));
  p = fma(p, t, splat<L>(1.421413741f));
  p = fma(p, t, splat<L>(-0.284496736f));
  p = fma(p, t, splat<L>(0.254829592f));
  const vec<L> upper = 0.5f * (p * t) * exp<L>(-z * z);  // 1 - Phi(|x|)
  return x * (x < vec<L>{} ? upper : 1.0f - upper);
}

/// log(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x|, and log1p(e) = 2 artanh(e / (2 + e)) by the first
/// eight terms of its series (relative error 1.4e-9); zero below -80.
template <int L>
inline vec<L> softplus(vec<L> x) {
  const vec<L> e = exp<L>(x < vec<L>{} ? x : -x);
  const vec<L> z = e / (2.0f + e), zz = z * z;
  vec<L> p = splat<L>(1.0f / 15);
  for (int n = 13; n >= 1; n -= 2) p = fma(p, zz, splat<L>(1.0f / static_cast<float>(n)));
  const vec<L> y = fma(2.0f * z, p, x > vec<L>{} ? x : vec<L>{});
  return x < splat<L>(-80.0f) ? vec<L>{} : y;
}

template <Activation A, int L>
inline vec<L> activate(vec<L> x) {
  if constexpr (A == Activation::gelu_tanh) return gelu_tanh<L>(x);
  if constexpr (A == Activation::gelu_erf) return gelu_erf<L>(x);
  if constexpr (A == Activation::silu) return silu<L>(x);
  return x;
}

}  // namespace hyena
