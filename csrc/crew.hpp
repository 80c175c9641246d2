// Threads that go through many short phases of work in one parallel region.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "aligned.hpp"
#include "parallel.hpp"
#include "vec.hpp"

namespace hyena {

/// What the workers of a region share. A phase is over when all its pieces are done, not when all
/// workers have come: one that the system keeps from running holds up nobody unless it is amid a piece.
class Crew {
 public:
  explicit Crew(int team) : ranges_(static_cast<std::size_t>(team)) {}  // throws std::bad_alloc
  int team() const { return static_cast<int>(ranges_.size()); }

 private:
  friend class Worker;
  struct alignas(kCacheLine) Counter {
    std::atomic<std::uint64_t> value{0};
  };
  std::vector<Counter> ranges_;  // of every worker's own pieces: the phase, and how many of them are taken
  Counter done_;                 // pieces, of all phases
};

/// One of them. All go through the same phases in the same order.
class Worker {
 public:
  Worker(Crew& crew, int index) : crew_(crew), index_(index) {}
  int index() const { return index_; }

  /// Calls f(piece) for pieces of [0, pieces) that no other worker has taken, first for those that are
  /// this worker's in every run (its cache may hold what they read), and returns when all are done. f
  /// must not throw.
  template <class F>
  void each(std::int64_t pieces, F&& f) noexcept {
    const int team = crew_.team();
    if (team == 1) {
      for (std::int64_t piece = 0; piece < pieces; piece++) f(piece);
      return;
    }
    phase_++, total_ += static_cast<std::uint64_t>(pieces);
    for (int i = 0; i < team; i++) {
      const int owner = (index_ + i) % team;
      const std::int64_t first = pieces * owner / team, end = pieces * (owner + 1) / team;
      std::int64_t done = 0;
      for (std::int64_t taken; first + (taken = take(owner, end - first)) < end; done++) f(first + taken);
      if (done > 0) crew_.done_.value.fetch_add(static_cast<std::uint64_t>(done), std::memory_order_release);
    }
    wait();
  }

 private:
  // Some 20 us: longer than a piece takes. Then the others may need this processor.
  static constexpr int kSpins = 1 << 9;

  /// The number of a piece of `owner` that is this worker's now; `count` if there is none left.
  std::int64_t take(int owner, std::int64_t count) noexcept {
    std::atomic<std::uint64_t>& range = crew_.ranges_[static_cast<std::size_t>(owner)].value;
    std::uint64_t now = range.load(std::memory_order_relaxed);
    for (;;) {
      const std::uint64_t phase = now >> 32;
      if (phase > phase_) return count;  // the others have finished this one
      const std::uint64_t taken = phase == phase_ ? now & 0xffffffffu : 0;
      if (static_cast<std::int64_t>(taken) >= count) return count;
      if (range.compare_exchange_weak(now, phase_ << 32 | (taken + 1), std::memory_order_relaxed))
        return static_cast<std::int64_t>(taken);
    }
  }

  void wait() const noexcept {
    for (int spins = 0; crew_.done_.value.load(std::memory_order_acquire) < total_; spins++) {
      if (spins >= kSpins) {
        std::this_thread::yield();
        continue;
      }
#if defined(__x86_64__)
      _mm_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
  }

  Crew& crew_;
  const int index_;
  std::uint64_t phase_ = 0, total_ = 0;  // the present phase, and pieces up to its end
};

/// f(worker) on every thread of a crew. f must not throw.
template <class F>
void run(Crew& crew, F&& f) noexcept {
  if (crew.team() == 1) {
    Worker worker(crew, 0);
    return f(worker);
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(crew.team())
  {
    Worker worker(crew, omp_get_thread_num());
    f(worker);
  }
#endif
}

}  // namespace hyena
