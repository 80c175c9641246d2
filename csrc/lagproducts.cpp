#include "lagproducts.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "simd.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kRows = 32;  // of a piece
constexpr int kTogether = 8;        // chains of fma that hide each other's latency

/// p[j] = <a, b[-j]> for R rows, the first of which is b.
template <int R>
void products(const float* a, const float* b, std::int64_t stride, std::int64_t width, float* p) {
  vf sum[R]{};
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    const vf v = load(a + c);
#pragma GCC unroll 8
    for (int j = 0; j < R; j++) sum[j] = fma(v, load(b - j * stride + c), sum[j]);
  }
  if (c < width) {
    const vf v = load_part(a + c, width - c);
#pragma GCC unroll 8
    for (int j = 0; j < R; j++) sum[j] = fma(v, load_part(b - j * stride + c, width - c), sum[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < R; j++) p[j] = hyena::sum<kLanes>(sum[j]);
}

}  // namespace

void lag_products(ConstRows x, std::int64_t first, Rows p, int threads) {
  const std::int64_t pieces = pieces_of(p.rows, kRows);
  parallel_for(pieces, worth(p.rows * p.cols * x.cols, threads), [&](std::int64_t piece, int) {
    const std::int64_t end = std::min(p.rows, (piece + 1) * kRows);
    for (std::int64_t i = piece * kRows; i < end; i++) {
      const std::int64_t row = first + i, lags = std::min(p.cols, row);
      std::int64_t l = 0;
      for (; l + kTogether <= lags; l += kTogether)
        products<kTogether>(x.row(row), x.row(row - l - 1), x.stride, x.cols, p.row(i) + l);
      for (; l < lags; l++) products<1>(x.row(row), x.row(row - l - 1), x.stride, x.cols, p.row(i) + l);
      std::fill(p.row(i) + lags, p.row(i) + p.cols, 0.0f);
    }
  });
}

}  // namespace hyena
