#include "norm.hpp"

#include <array>
#include <cmath>
#include <type_traits>

#include "parallel.hpp"
#include "simd.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kPiece = 32768;  // elements; as for activations

/// Rows worked side by side: what a row waits for, sums of its lanes and a root, the others do not.
constexpr int kTogether = kLanes == 16 ? 4 : 2;

/// f(first row, constant number of them) for all rows, in order.
template <class F>
void for_rows(Rows y, int threads, F f) noexcept {
  const std::int64_t block = y.cols < kPiece ? kPiece / y.cols : 1;
  parallel_for(pieces_of(y.rows, block), threads, [&](std::int64_t piece, int) {
    std::int64_t i = piece * block;
    const std::int64_t end = i + block < y.rows ? i + block : y.rows;
    for (; i + kTogether <= end; i += kTogether) f(i, std::integral_constant<int, kTogether>());
    for (; i < end; i++) f(i, std::integral_constant<int, 1>());
  });
}

template <int R>
using Each = std::array<float, R>;

/// Sums over c, by row: f(x[i + r][c], r, sum) adds to N sums. They are kept as P vectors each, the order fixed
/// by D alone.
template <int R, int N, int P, class F>
inline std::array<Each<R>, N> reduce(ConstRows x, std::int64_t i, F f) {
  const std::int64_t D = x.cols, end = D / kLanes * kLanes;
  const float* const rows = x.row(i);
  vf part[R][P][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int u = 0; u < P * N; u++) part[r][u / N][u % N] = vf{};
  std::int64_t c = 0;
  for (; c + P * kLanes <= end; c += P * kLanes)
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int u = 0; u < P; u++) f(load(rows + r * x.stride + c + u * kLanes), r, part[r][u]);
  for (; c < end; c += kLanes)
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) f(load(rows + r * x.stride + c), r, part[r][0]);
  std::array<Each<R>, N> sums;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
      vf all = part[r][0][n];
#pragma GCC unroll 16
      for (int u = 1; u < P; u++) all += part[r][u][n];
      sums[n][r] = sum<kLanes>(all);
    }
  for (int r = 0; r < R && end < D; r++) {
    vf last[N] = {};
    f(load_part(rows + r * x.stride + end, D - end), r, last);
    for (int n = 0; n < N; n++)
      for (std::int64_t k = 0; k < D - end; k++) sums[n][r] += last[n][k];
  }
  return sums;
}

/// y[i + r][c] = f(x[i + r][c], r, c-th vector of weight, of bias) with the rows' ends padded.
template <int R, class F>
inline void write(ConstRows x, std::int64_t i, const float* weight, const float* bias, Rows y, F f) {
  const std::int64_t D = x.cols;
  std::int64_t c = 0;
  for (; c + kLanes <= D; c += kLanes) {
    const vf w = load(weight + c), b = bias ? load(bias + c) : vf{};
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store(y.row(i + r) + c, f(load(x.row(i + r) + c), r, w, b));
  }
  const std::int64_t left = D - c;
  if (left == 0) return;
  const vf w = load_part(weight + c, left), b = bias ? load_part(bias + c, left) : vf{};
  for (int r = 0; r < R; r++) store_part(y.row(i + r) + c, f(load_part(x.row(i + r) + c, left), r, w, b), left);
}

}  // namespace

void layer_norm(ConstRows x, const float* weight, const float* bias, float eps, Rows y, int threads) noexcept {
  const float D = static_cast<float>(x.cols);
  for_rows(y, threads, [=](std::int64_t i, auto rows) {
    constexpr int R = decltype(rows)::value;
    Each<R> mean = reduce<R, 1, 4>(x, i, [](vf v, int, vf* sum) { sum[0] += v; })[0];
    for (float& m : mean) m /= D;
    // The rounding of the first mean shows again as the mean of the differences, which are small
    // and exact where it matters: rows far from zero lose no digits.
    const auto moments = reduce<R, 2, 2>(x, i, [=](vf v, int r, vf* sum) {
      const vf d = v - mean[r];
      sum[0] += d;
      sum[1] = fma(d, d, sum[1]);
    });
    Each<R> scale, offset;
    for (int r = 0; r < R; r++) {
      const float shift = moments[0][r] / D, variance = moments[1][r] / D - shift * shift;
      scale[r] = 1.0f / std::sqrt((variance > 0.0f ? variance : 0.0f) + eps);
      offset[r] = -shift * scale[r];
    }
    write<R>(x, i, weight, bias, y,
             [=](vf v, int r, vf w, vf b) { return fma(fma(v - mean[r], splat(scale[r]), splat(offset[r])), w, b); });
  });
}

void rms_norm(ConstRows x, const float* weight, float eps, Rows y, int threads) noexcept {
  const float D = static_cast<float>(x.cols);
  for_rows(y, threads, [=](std::int64_t i, auto rows) {
    constexpr int R = decltype(rows)::value;
    Each<R> scale = reduce<R, 1, 4>(x, i, [](vf v, int, vf* sum) { sum[0] = fma(v, v, sum[0]); })[0];
    for (float& square : scale) square = 1.0f / std::sqrt(square / D + eps);
    write<R>(x, i, weight, nullptr, y, [=](vf v, int r, vf w, vf) { return v * scale[r] * w; });
  });
}

}  // namespace hyena
