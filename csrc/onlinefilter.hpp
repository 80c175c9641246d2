// One convolution's taps as its steps need them: the first ones, spectra of tiles, and any run of the others.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "aligned.hpp"
#include "rowcells.hpp"
#include "tileplan.hpp"

namespace hyena {

/// Taps of `groups` groups, `total` in all, of which more and more become known. States share it, and threads may
/// use it while it grows: what has been there does not change.
class OnlineFilter {
 public:
  /// Throws std::bad_alloc.
  OnlineFilter(std::int64_t groups, std::int64_t total);

  /// Adds the next taps [G, n, 16], which `owner` keeps in memory, or a copy of a few: kHead of them at first if there
  /// are so many. Throws std::bad_alloc.
  void append(const TileView& taps, std::shared_ptr<const void> owner);

  std::int64_t groups() const { return groups_; }
  /// All that the filter has.
  std::int64_t taps() const { return total_; }
  /// Those that are known.
  std::int64_t known() const { return known_.load(std::memory_order_acquire); }
  std::int64_t nbytes() const;

  static constexpr std::int64_t kHead = 2 * kDirect;
  /// Up to kFew taps are few, and go where there is room for kStore: small pieces of memory that stay leave holes
  /// among those that do not.
  static constexpr std::int64_t kFew = 128, kStore = 1024;
  /// The first kHead taps of one group, zero beyond the last.
  const float* head(std::int64_t g) const { return head_.get() + g * kHead * kTile; }
  /// The first kBase of them, close to those of the other groups.
  const float* near(std::int64_t g) const { return near_.get() + g * kBase * kTile; }
  /// Spectrum of h[1 .. 2 size) of one group, for size > kDirect; made when it is first asked for. Throws
  /// std::bad_alloc.
  TileView spectrum(int level, std::int64_t g) const;
  /// Makes the spectra of tiles up to `largest` now. Throws std::bad_alloc.
  void prepare(std::int64_t largest, int threads) const;
  /// Taps [first, first + n) of one group, in cells of so many; zero beyond the last. Throws std::bad_alloc.
  RowCells run(std::int64_t g, std::int64_t first, std::int64_t n, std::int64_t cell) const;

 private:
  struct Piece {
    TileView taps;
    std::int64_t first;
    std::shared_ptr<const void> owner;
    std::int64_t room;  // further taps that there is memory for
  };
  void store(const TileView& taps, std::int64_t first);
  static constexpr int kLevels = 40;
  struct Spectrum {
    std::once_flag made;
    AlignedArray<float> data;
  };

  std::int64_t groups_, total_;
  std::atomic<std::int64_t> known_{0};
  AlignedArray<float> near_, head_;
  mutable std::mutex lock_;  // of the pieces
  std::vector<Piece> pieces_;
  mutable std::vector<Spectrum> spectra_;  // [levels, groups]
  mutable std::atomic<std::int64_t> spectra_rows_{0};
};

}  // namespace hyena
