// Convolution by direct sums over the lags: short lengths, and one new token against its history.
#pragma once

#include "gatedconv.hpp"

namespace hyena {

/// c[t] = sum_{k < min(K, t + 1)} taps[k] w[t - k], taps [G, K, 16]. The additions for an output
/// have an order that depends on its lags alone: any split into calls gives the same bits.
/// out must not overlap z, pre or taps; it may be the rows of post. No job shares rows with another. Throws
/// std::bad_alloc.
void direct_conv(const GatedConvs& jobs, const TileView& taps, int threads);

}  // namespace hyena
