// Long convolution token by token: exact, at a cost that does not grow with the context, and no step of which costs
// much more than others.
//
// A state begins at a base position. What its tokens add to one another goes through tiles (tileplan.hpp); what lies
// before the base has been summed up once into `future` (futurefill.hpp), or, where nobody knows how far the
// sequence will go, is summed up for one period after the other (pastsums.cpp). A tile overwrites its buffer, and so
// does a sum, so going back and computing it again gives the same bits.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "aligned.hpp"
#include "gatedconv.hpp"
#include "onlinefilter.hpp"

namespace hyena {

/// Rows [G, n, 16] before the base, which `owner` keeps in memory; the first one is at position `first` < 0.
struct PastRows {
  TileView rows;
  std::int64_t first;
  std::shared_ptr<const void> owner;
};

/// One sequence in one convolution. Positions count from the base.
class OnlineState {
 public:
  /// `future` [G, F, 16] is what rows before the base add to the first F outputs and zero beyond; null for none.
  /// `past`, of a rolling plan: rows before the base that are not in `future`, oldest first, up to the base. Phases
  /// depend on the number of the unit, first_unit + g, alone; first_unit < 0 starts all units' clocks at 0. At
  /// least `keep` of the newest inputs are held (0: all). Throws std::bad_alloc.
  OnlineState(std::shared_ptr<const OnlineFilter> filter, const TilePlan& plan, std::int64_t first_unit,
              std::int64_t keep, const TileView* future, std::vector<PastRows> past);
  /// A copy that shares filter, future, and inputs that are not written to any more. Throws std::bad_alloc.
  OnlineState(const OnlineState& other);
  OnlineState& operator=(const OnlineState&) = delete;

  const OnlineFilter& filter() const { return *filter_; }
  const std::shared_ptr<const OnlineFilter>& shared_filter() const { return filter_; }
  const TilePlan& plan() const { return plan_; }
  std::int64_t position() const { return position_; }
  /// Steps that can still be taken.
  std::int64_t room() const { return plan_.horizon - position_; }
  /// Taps that `n` further steps need.
  std::int64_t taps_for(std::int64_t n) const;
  /// The positions that rewind can go back to are [oldest(), position()].
  std::int64_t oldest() const;
  /// Inputs are held from this position on.
  std::int64_t origin() const;
  /// [G, F, 16], what rows before the base add.
  TileView future() const {
    return {const_cast<float*>(future_.get()), filter_->groups(), future_rows_, future_rows_ * kTile};
  }
  /// Copies inputs [first, last) of group g.
  void copy_inputs(std::int64_t g, std::int64_t first, std::int64_t last, float* to) const;
  std::int64_t nbytes() const;
  /// Points of products that steps have added to sums so far (pastsums.cpp), and in the busiest step.
  std::int64_t summed() const;

  /// Computes what the next step needs of the past, if it is the first one after the beginning, so that it need not.
  /// Throws std::bad_alloc.
  void begin(int threads);
  /// Back to `position`, as if the steps since had not been. Throws std::bad_alloc.
  void rewind(std::int64_t position);
  /// A new state to where one is that holds these inputs [G, n, 16] from position `origin` on, with
  /// the same filter, plan, units, future and past. Throws std::bad_alloc.
  void resume(std::int64_t origin, const TileView& inputs);

  /// The step at s of unit g on row `row` of the job. Throws std::bad_alloc.
  void step(const GatedConv& job, std::int64_t row, std::int64_t g, std::int64_t s);
  /// All units have stepped up to this position.
  void advance(std::int64_t n) noexcept;

 private:
  using Cell = std::shared_ptr<float>;
  /// A sum in the spectral domain of what a period needs of blocks before the last one.
  struct Sum {
    Period of{-1, 0};
    std::int64_t done = 0;  // parts of products that are in it
    AlignedArray<float> data;
    std::int64_t size = 0;  // points there is memory for
  };
  struct Unit {
    std::int64_t phase;
    std::int64_t first_cell;            // number of the first cell held
    std::deque<Cell> cells;             // inputs, cell_ rows each, by the clock; the last one is nobody else's
    std::vector<Cell> spare;            // for inputs to come
    Period period{0, 0};                // the one under way
    AlignedArray<float> tiles;          // by level, then what lies before the period
    AlignedArray<float> next_tiles;     // of longer periods, which begin soon
    std::vector<std::int64_t> tile_at;  // clock at which the tile in each buffer began, or -1
    Sum sum;
    std::int64_t summed = 0;  // points, see `summed`
  };

  // onlinestate.cpp
  Unit copy_of(const Unit& other) const;
  void own_last(Unit& unit) const;
  float* buffer(const Unit& unit, int level) const {
    return unit.tiles.get() + (TilePlan::size(level) - kBase) * kTile;
  }
  std::int64_t tile_rows(const Unit& unit, std::int64_t period) const;
  void make_tiles(Unit& unit, Period next) const;
  void fit(Unit& unit, Period period) const;
  std::int64_t before_at(const Unit& unit) const;
  float* far_sums(std::int64_t g) const { return sums_.get() + 2 * g * kBase * kTile; }
  float* near_sums(std::int64_t g) const { return far_sums(g) + kBase * kTile; }
  float* input_row(Unit& unit, std::int64_t w);
  RowRun input_run(const Unit& unit, std::int64_t w) const;

  // onlineconv.cpp
  void begin_block(std::int64_t g, std::int64_t s);
  void tile(std::int64_t g, int level, std::int64_t s);
  void gather(std::int64_t g, std::int64_t s) noexcept;

  // pastsums.cpp
  struct Blocks;
  Blocks blocks_before(const Unit& unit, Period next) const;
  RowRun row_run(const Unit& unit, std::int64_t g, std::int64_t w, std::int64_t lowest) const;
  void add_block(std::int64_t g, Period next, std::int64_t end, std::int64_t lowest, int part);
  void make_room(Unit& unit, Period next) const;
  void sum_parts(std::int64_t g, Period next, std::int64_t parts);
  void sum_ahead(std::int64_t g, std::int64_t w);
  void sum_before(std::int64_t g);
  void sum_directly(std::int64_t g, Period now);

  std::shared_ptr<const OnlineFilter> filter_;
  TilePlan plan_;
  std::int64_t keep_, cell_;
  std::shared_ptr<const float> future_;  // [G, future_rows, 16]
  std::int64_t future_rows_, position_ = 0, first_input_ = 0;
  std::vector<PastRows> past_;  // none any more once they are too old for everything to come
  std::int64_t past_rows_;
  std::vector<Unit> units_;
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
