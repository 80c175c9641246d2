// Normalisation of rows.
#pragma once

#include "rows.hpp"

namespace hyena {

/// y [T, D] = (x - mean) / sqrt(var + eps) * weight [D] + bias [D]; var is the biased variance;
/// bias may be null; y may be x.
void layer_norm(ConstRows x, const float* weight, const float* bias, float eps, Rows y, int threads) noexcept;

/// y [T, D] = x / sqrt(mean(x^2) + eps) * weight [D]; y may be x.
void rms_norm(ConstRows x, const float* weight, float eps, Rows y, int threads) noexcept;

struct Norm {
  bool rms;             // RMSNorm, else LayerNorm
  const float* weight;  // [D]
  const float* bias;    // [D] or null
  float eps;
};

/// The one or the other, on the calling thread.
inline void normalize(ConstRows x, const Norm& norm, Rows y) noexcept {
  if (norm.rms)
    rms_norm(x, norm.weight, norm.eps, y, 1);
  else
    layer_norm(x, norm.weight, norm.bias, norm.eps, y, 1);
}

}  // namespace hyena
