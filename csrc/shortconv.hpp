// Depthwise causal FIR over a few taps, from token rows into tiles.
#pragma once

#include "tiles.hpp"

namespace hyena {

/// out[p, c / 16, t, c % 16] = bias[i] + sum_k taps[k, i] x[t - K + 1 + k, i], i = p D + c, c < D.
/// x [T, C] with C = parts * D; taps [K, C]; bias [C] or null; tail [K - 1, C] holds the inputs
/// before x, oldest first; out is [parts * G, T, 16], part after part. With product [G, T, 16] the
/// last two parts are not in out but multiplied with each other there. One chain of fused
/// multiply-adds in the order bias, k = 0 .. K-1, wherever a sequence is split.
struct ShortConv {
  ConstRows x, taps;
  const float* bias;
  ConstRows tail;
  std::int64_t parts;
  TileView out;
  TileView product;  // or data null
};

void short_conv(const ShortConv& job, int threads);

/// Group g of every part alone, on the calling thread.
void short_conv_group(const ShortConv& job, std::int64_t g) noexcept;

}  // namespace hyena
