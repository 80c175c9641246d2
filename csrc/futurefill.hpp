// What past rows add to future ones: out[j] = sum_{m < P} z[m] h[ahead + P + j - m], j < T.
//
// A tile of the online convolution, and the whole contribution of a prompt to what comes after it
// (Agarwal et al. 2024, "FutureFill"), are this sum for one shape or another.
#pragma once

#include <exception>
#include <mutex>

#include "parallel.hpp"
#include "tiles.hpp"

namespace hyena {

/// out [T, 16] = the sum for the rows z [P, 16] of one group with ahead = 0, by direct sums over
/// taps h [P + T, 16]. Every output's additions have an order that depends on P alone.
void carry_direct(const float* z, std::int64_t past, const float* taps, float* out, std::int64_t future) noexcept;

/// The same from the spectrum [1, M, 16] of h[1 .. P + T), M >= P + T. Throws std::bad_alloc.
void carry_transform(const float* z, std::int64_t past, const TileView& spectrum, float* out, std::int64_t future);

/// The same where P + T - 1 rows lie at `padded`, the last T - 1 of them zero.
void carry_padded(const float* padded, std::int64_t past, const TileView& spectrum, float* out, std::int64_t future);

/// Adds the sum for z [G, P, 16] to out [G, T, 16]. taps [G, K, 16] are all that the filter has or
/// the first ahead + P + T. `ahead` counts the rows between the last of z and the first of out.
/// Throws std::bad_alloc.
void future_fill(const TileView& z, const TileView& taps, std::int64_t ahead, const TileView& out, int threads);

/// As parallel_for, for an f that may throw: the first exception is thrown on when all are done.
template <class F>
void parallel_for_throwing(std::int64_t pieces, int threads, F&& f) {
  std::exception_ptr failure;
  std::mutex lock;
  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    try {
      f(piece, worker);
    } catch (...) {
      const std::lock_guard<std::mutex> hold(lock);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hyena
