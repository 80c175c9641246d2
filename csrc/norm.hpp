// Normalisation of rows.
#pragma once

#include "rows.hpp"

namespace hyena {

/// y [T, D] = (x - mean) / sqrt(var + eps) * weight [D] + bias [D]; var is the biased variance;
/// bias may be null; y may be x.
void layer_norm(ConstRows x, const float* weight, const float* bias, float eps, Rows y, int threads) noexcept;

/// y [T, D] = x / sqrt(mean(x^2) + eps) * weight [D]; y may be x.
void rms_norm(ConstRows x, const float* weight, float eps, Rows y, int threads) noexcept;

}  // namespace hyena
