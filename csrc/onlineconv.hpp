// Long convolution token by token: exact, at a cost that does not grow with the context.
//
// A state begins at a base position. What lies before it has been summed up once into `future`
// (futurefill.hpp); the tokens since then meet in tiles (tileplan.hpp). A tile overwrites its
// buffer, so going back and computing it again gives the same bits.
#pragma once

#include <memory>
#include <vector>

#include "aligned.hpp"
#include "gatedconv.hpp"
#include "tileplan.hpp"

namespace hyena {

/// One convolution's taps as the tiles need them. Never changes, so states share it.
class OnlineFilter {
 public:
  /// For tiles up to `top`; taps [G, K, 16] are the first min(total, 2 top) of `total`. Takes the
  /// spectra that `smaller` (may be null) has. Throws std::bad_alloc.
  OnlineFilter(const TileView& taps, std::int64_t total, std::int64_t top, const OnlineFilter* smaller, int threads);

  std::int64_t groups() const { return groups_; }
  std::int64_t taps() const { return total_; }
  std::int64_t top() const { return top_; }
  std::int64_t nbytes() const;
  /// The first kBase taps, and the first 2 kDirect, of one group; zero beyond the last.
  const float* near(std::int64_t g) const { return near_.get() + g * kBase * kTile; }
  const float* head(std::int64_t g) const { return head_.get() + g * 2 * kDirect * kTile; }
  /// Spectrum of h[1 .. 2 size) of one group, for size > kDirect.
  TileView spectrum(int level, std::int64_t g) const;

 private:
  std::int64_t groups_, total_, top_;
  AlignedArray<float> near_, head_;
  std::vector<std::shared_ptr<const float>> spectra_;  // by level; null where tiles are direct
};

/// One sequence in one convolution. Positions count from the base.
class OnlineState {
 public:
  /// Room for `horizon` steps (rounded up by TilePlan). `future` [G, F, 16] is what rows before the
  /// base add to the first F outputs and zero beyond; null for none. Phases depend on the number of
  /// the unit, first_unit + g, alone; first_unit < 0 starts all units' clocks at 0. Throws
  /// std::bad_alloc.
  OnlineState(std::shared_ptr<const OnlineFilter> filter, std::int64_t horizon, std::int64_t first_unit,
              const TileView* future);
  /// A copy that shares filter and future. Throws std::bad_alloc.
  OnlineState(const OnlineState& other);
  OnlineState& operator=(const OnlineState&) = delete;

  const OnlineFilter& filter() const { return *filter_; }
  const TilePlan& plan() const { return plan_; }
  std::int64_t position() const { return position_; }
  /// Steps that can still be taken before a new base (or `slide`) is needed.
  std::int64_t room() const { return origin_ + plan_.horizon - position_; }
  /// The positions that rewind can go back to are [oldest(), position()].
  std::int64_t oldest() const { return origin_ == 0 ? 0 : origin_ + 2 * plan_.top(); }
  /// Inputs are kept from this position on.
  std::int64_t origin() const { return origin_; }
  /// [G, F, 16], what rows before the base add.
  TileView future() const {
    return {const_cast<float*>(future_.get()), filter_->groups(), future_rows_, future_rows_ * kTile};
  }
  const float* input(std::int64_t g, std::int64_t s) const {
    return inputs_.get() + (g * stride_ + s - origin_) * kTile;
  }
  std::int64_t nbytes() const;

  /// Endless plans only: forgets the older half of the inputs, which makes room.
  void slide() noexcept;
  /// Back to `position`, as if the steps since had not been. Throws std::bad_alloc.
  void rewind(std::int64_t position);
  /// A new state to where one is that holds these inputs [G, n, 16] from position `origin` on, with
  /// the same filter, horizon, units and future. Throws std::bad_alloc.
  void resume(std::int64_t origin, const TileView& inputs);

  /// The step at s of unit g on row `row` of the job. Throws std::bad_alloc.
  void step(const GatedConv& job, std::int64_t row, std::int64_t g, std::int64_t s);
  /// All units have stepped up to this position.
  void advance(std::int64_t n) noexcept { position_ += n; }

 private:
  struct Unit {
    std::int64_t phase;
    AlignedArray<float> buffers;        // tiles by level, then the cross tile's `phase` rows
    std::vector<std::int64_t> tile_at;  // clock at which the tile in each buffer began, or -1
  };
  float* buffer(const Unit& unit, int level) const { return unit.buffers.get() + (plan_.size(level) - kBase) * kTile; }
  std::int64_t buffer_rows(std::int64_t phase) const;
  float* far_sums(std::int64_t g) const { return sums_.get() + 2 * g * kBase * kTile; }
  float* near_sums(std::int64_t g) const { return far_sums(g) + kBase * kTile; }
  float* input_row(std::int64_t g, std::int64_t s) { return const_cast<float*>(input(g, s)); }
  void tile(std::int64_t g, int level, std::int64_t s);
  void gather(std::int64_t g, std::int64_t s) noexcept;

  std::shared_ptr<const OnlineFilter> filter_;
  TilePlan plan_;
  std::shared_ptr<const float> future_;  // [G, future_rows, 16]
  std::int64_t future_rows_, position_ = 0, origin_ = 0, stride_;
  std::vector<Unit> units_;
  AlignedArray<float> inputs_;  // [G, stride, 16]
  // [G, 2, kBase, 16], for every output of the block under way: what blocks before it add, and what
  // the block itself has added so far (apart, because it is often much smaller).
  AlignedArray<float> sums_;
};

/// Rows [offsets[b], offsets[b + 1]) of `job` (start = 0) are the next steps of states[b], all of
/// them different. Rows are independent of what else is in the call. `out` may be the very rows of
/// z, pre or post. Throws std::bad_alloc; states are then to be rewound to their positions.
void online_conv(const std::vector<OnlineState*>& states, const std::vector<std::int64_t>& offsets,
                 const GatedConv& job, int threads);

}  // namespace hyena
