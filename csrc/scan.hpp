// Recurrences that take in one sequence token by token.
//
// Every number of a state and every output is one chain of operations in the order of tokens and
// features, so its bits do not depend on where a sequence is cut or on threads. Lanes are channels
// (columns of a head's values); threads share heads or groups of channels. What has decayed below
// 1e-30 becomes zero: subnormal numbers would make a processor many times slower.
//
// Shapes: T tokens, H heads, f width of a query, F features, V values of a head, G groups of 16
// channels, N numbers per channel.
#pragma once

#include "sizes.hpp"
#include "tiles.hpp"

namespace hyena {

/// Features of a query or key of width f with `taylor`: 1, x_i and x_i x_j (i <= j).
constexpr std::int64_t taylor_features(std::int64_t f) { return 1 + f + f * (f + 1) / 2; }

/// Linear attention. Per head, with phi the features and gamma the decay:
///   S = gamma S + phi(k) (v, 1)^T;   y = phi(q) S, divided by (its last column + eps) if `normalize`.
/// With `taylor`, phi(q) . phi(k) = 1 + s + s^2 / 2, s = q . k / sqrt(f); without, phi(x) = x.
struct LinearScan {
  static constexpr int kRows = 8;  // rows of a state are a multiple of it, those beyond F zero

  ConstRows q, k, v;  // [T, H f], [T, H f], [T, H V]
  std::int64_t heads;
  bool taylor, normalize;
  float eps;
  const float* decay;     // [H] or null: 1
  std::int64_t position;  // of the first token: numbers settle where it is a multiple of 64
  float* state;  // [H, F, C], F rounded up to 8, C = V, or V + 1 if `normalize`, rounded up to 16; read and written
  Rows y;        // [T, H V]; may be v

  std::int64_t width() const { return q.cols / heads; }
  std::int64_t values() const { return v.cols / heads; }
  std::int64_t features() const { return round_up(taylor ? taylor_features(width()) : width(), kRows); }
  std::int64_t columns() const { return tile_groups(values() + (normalize ? 1 : 0)) * kTile; }
};

/// Throws std::bad_alloc before any work.
void linear_scan(const LinearScan& job, int threads);

/// RWKV-v4's average, per channel with w <= 0:
///   y_t = (sum_{j<t} e^(w (t-1-j) + k_j) v_j + e^(u + k_t) v_t) / (the same without v).
/// state [G, 4, 16]: numerator and denominator over the largest exponent e^(top + w age), top, age.
/// Before the first token it is (0, 0, -1e30, 0).
struct WkvScan {
  ConstRows k, v;      // [T, D]
  const float *w, *u;  // [G, 16]
  float* state;
  Rows y;  // [T, D]; may be k or v
};

void wkv_scan(const WkvScan& job, int threads) noexcept;

/// Mamba's scan, per channel with d = softplus(dt) and A < 0:
///   s_n = e^(d A_n) s_n + d B_n x;   y = sum_n C_n s_n + skip x.
struct SelectiveScan {
  ConstRows x, dt;            // [T, D]
  ConstRows b, c;             // [T, N]
  const float *rates, *skip;  // A [G, N, 16], [G, 16]
  float* state;               // [G, N, 16]
  Rows y;                     // [T, D]; may be x or dt
};

void selective_scan(const SelectiveScan& job, int threads) noexcept;

}  // namespace hyena
