#include "norm.hpp"

#include <cmath>

#include "parallel.hpp"
#include "simd.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kPiece = 32768;  // elements; as for activations

/// Calls f(i) for all rows, some at a time.
template <class F>
void for_rows(Rows y, int threads, F f) noexcept {
  const std::int64_t block = y.cols < kPiece ? kPiece / y.cols : 1;
  parallel_for((y.rows + block - 1) / block, threads, [&](std::int64_t piece, int) {
    const std::int64_t end = (piece + 1) * block < y.rows ? (piece + 1) * block : y.rows;
    for (std::int64_t i = piece * block; i < end; i++) f(i);
  });
}

/// Sum over c of f(x[c]) with four vectors of partial sums, the order fixed by D alone. f gets
/// the number of lanes that count, for an f that does not map zero to zero.
template <class F>
float reduce(const float* x, std::int64_t D, F f) {
  vf part[4] = {};
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= D; c += 4 * kLanes)
    for (int u = 0; u < 4; u++) part[u] += f(load(x + c + u * kLanes));
  for (; c + kLanes <= D; c += kLanes) part[0] += f(load(x + c));
  if (c < D) {
    vf last = f(load_part(x + c, D - c));
    for (std::int64_t i = D - c; i < kLanes; i++) last[i] = 0.0f;
    part[1] += last;
  }
  return sum<kLanes>((part[0] + part[1]) + (part[2] + part[3]));
}

/// y[c] = f(x[c], c-th vector of weight, of bias) with the row's end padded.
template <class F>
void write(const float* x, const float* weight, const float* bias, float* y, std::int64_t D, F f) {
  std::int64_t c = 0;
  for (; c + kLanes <= D; c += kLanes) store(y + c, f(load(x + c), load(weight + c), bias ? load(bias + c) : vf{}));
  const std::int64_t left = D - c;
  if (left > 0)
    store_part(y + c, f(load_part(x + c, left), load_part(weight + c, left), bias ? load_part(bias + c, left) : vf{}),
               left);
}

}  // namespace

void layer_norm(ConstRows x, const float* weight, const float* bias, float eps, Rows y, int threads) noexcept {
  const std::int64_t D = x.cols;
  for_rows(y, threads, [=](std::int64_t i) {
    const float* row = x.row(i);
    const float rough = reduce(row, D, [](vf v) { return v; }) / static_cast<float>(D);
    // The rounding of the first mean shows again as the mean of the differences, which are small
    // and exact where it matters: rows far from zero lose no digits.
    const float shift = reduce(row, D, [=](vf v) { return v - rough; }) / static_cast<float>(D);
    const float square = reduce(row, D, [=](vf v) {
      const vf d = (v - rough) - shift;
      return d * d;
    });
    const float scale = 1.0f / std::sqrt(square / static_cast<float>(D) + eps);
    write(row, weight, bias, y.row(i), D, [=](vf v, vf w, vf b) { return fma(((v - rough) - shift) * scale, w, b); });
  });
}

void rms_norm(ConstRows x, const float* weight, float eps, Rows y, int threads) noexcept {
  const std::int64_t D = x.cols;
  for_rows(y, threads, [=](std::int64_t i) {
    const float square = reduce(x.row(i), D, [](vf v) { return v * v; });
    const float scale = 1.0f / std::sqrt(square / static_cast<float>(D) + eps);
    write(x.row(i), weight, nullptr, y.row(i), D, [=](vf v, vf w, vf) { return v * scale * w; });
  });
}

}  // namespace hyena
