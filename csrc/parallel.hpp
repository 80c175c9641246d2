// The one way work is spread over threads.
#pragma once

#include <cstdint>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace hyena {

/// True in a child that was forked after this module was loaded: its OpenMP pool has no
/// threads behind it and would hang, so everything runs on the calling thread there.
bool forked() noexcept;

/// Threads that parallel_for will use for `pieces` pieces when `threads` are allowed.
inline int workers(std::int64_t pieces, int threads) noexcept {
#ifdef _OPENMP
  if (threads > 1 && pieces > 1 && !forked()) return pieces < threads ? static_cast<int>(pieces) : threads;
#endif
  (void)pieces, (void)threads;
  return 1;
}

/// `threads`, or 1 where so few operations (multiply-adds, or numbers moved) are done sooner by one
/// thread than another one is woken (20-25 us).
inline int worth(std::int64_t operations, int threads) noexcept { return operations < (1 << 18) ? 1 : threads; }

/// Calls f(piece, worker) for every piece in [0, pieces), worker in [0, workers(pieces, threads)).
/// The caller cuts work into pieces by shape alone, never by thread count: which thread picks a
/// piece up must not be visible in the result. f must not throw.
template <class F>
void parallel_for(std::int64_t pieces, int threads, F&& f) noexcept {
  const int team = workers(pieces, threads);
  if (team == 1) {
    for (std::int64_t piece = 0; piece < pieces; piece++) f(piece, 0);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (std::int64_t piece = 0; piece < pieces; piece++) f(piece, omp_get_thread_num());
#endif
}

}  // namespace hyena
