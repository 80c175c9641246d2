// Sums of complex exponentials: as taps of a filter, and as a recurrence over tokens. All in float64,
// because a pole rounded to float32 turns by another angle, and the error grows with every step.
#pragma once

#include <complex>
#include <vector>

#include "tiles.hpp"

namespace hyena {

using Complex64 = std::complex<double>;

/// out [C, t1 - t0]: h[c, t] = Re sum_s residues[c, s] poles[c, s]^t for t in [t0, t1), poles and residues
/// [C, S]. A tap's bits depend on its channel and time alone. Throws std::bad_alloc.
void modal_taps(const Complex64* poles, const Complex64* residues, std::int64_t modes, std::int64_t t0, std::int64_t t1,
                Rows out, int threads);

/// H channels in P parts, as tiles [P * G, T, 16], G = ceil(H / 16), part after part. For every pair of
/// parts (i, j) and channel h, with w = z_i * pre_j,
///     x_ijs[t] = poles_s x_ijs[t - 1] + w[t],    y_ij[t] = Re sum_s residues_s x_ijs[t] + skip w[t]
///     out_j[t] = sum_i post_i[t] * y_ij[t]
/// pre.data and post.data may be null; out may be z, pre or post where P is 1. poles and
/// residues are [G, S, 2, 16], real parts before imaginary ones, and skip is [G, 16].
struct ModalScan {
  std::int64_t parts, modes;
  const double *poles, *residues;
  const float* skip;
  TileView z, pre, post, out;
};

/// Rows [first, last) of the job, and the state x [P * P, G, S, 2, 16] that they change.
struct ModalSpan {
  std::int64_t first, last;
  double* state;
};

/// Every span continues its own state, token by token: how a sequence is cut, and what else is in the
/// call, changes no bit.
void modal_scan(const ModalScan& job, const std::vector<ModalSpan>& spans, int threads);

}  // namespace hyena
