#include "onlineconv.hpp"

#include <algorithm>

#include "futurefill.hpp"
#include "gatedlanes.hpp"
#include "scratch.hpp"

namespace hyena {

/// The tile of this level that is due at s of unit g; of the last level in a closed or endless plan, what carries
/// the period before to this one.
void OnlineState::tile(std::int64_t g, int level, std::int64_t s) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const bool closed = plan_.kind == Kind::closed, cross = closed && TilePlan::size(level) == plan_.period;
  const std::int64_t size = TilePlan::size(level), past = std::min(size, s);
  std::int64_t future = size;
  if (closed) future = std::min(future, plan_.horizon - s);
  // The tile across a closed plan has the lags of the largest one within it: past + future is the period.
  const int lags_of = cross ? level - 1 : level;
  float* const out = buffer(unit, level);
  if (TilePlan::size(lags_of) <= kDirect) {  // a cell is not smaller
    carry_direct(input_run(unit, s + unit.phase - past).data, past, filter_->head(g), out, future);
  } else {
    const std::int64_t rows = past + future - 1;
    const Scratch padded(2 * size * kTile, 1);
    copy_inputs(g, s - past, s, padded.of(0));
    std::fill_n(padded.of(0) + past * kTile, (rows - past) * kTile, 0.0f);
    carry_padded(padded.of(0), past, filter_->spectrum(lags_of, g), out, future);
  }
  unit.tile_at[static_cast<std::size_t>(level)] = s + unit.phase;
}

/// What has to be known before the block that begins at s.
void OnlineState::begin_block(std::int64_t g, std::int64_t s) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const std::int64_t w = s + unit.phase;
  if (s > 0 && w < unit.period.end()) return tile(g, TilePlan::due(w, unit.period.length), s);
  const Period next = plan_.period_at(w);
  if (s > 0) fit(unit, next);
  if (plan_.goes_back()) {
    if (unit.tile_at.back() != before_at(unit)) sum_before(g);
  } else if (s > 0) {
    tile(g, TilePlan::levels(next.length), s);
  }
}

/// Sums of unit g for the block that begins at s.
void OnlineState::gather(std::int64_t g, std::int64_t s) noexcept {
  const Unit& unit = units_[static_cast<std::size_t>(g)];
  const std::int64_t w = s + unit.phase, skipped = w % kBase;
  std::int64_t rows = kBase - skipped;
  if (plan_.kind == Kind::closed) rows = std::min(rows, plan_.horizon - s);
  std::fill_n(near_sums(g), kBase * kTile, 0.0f);
  float* to = far_sums(g) + skipped * kTile;
  const std::int64_t filled = std::clamp<std::int64_t>(future_rows_ - s, 0, rows) * kTile;
  if (filled > 0) std::copy_n(future_.get() + (g * future_rows_ + s) * kTile, filled, to);
  std::fill(to + filled, to + rows * kTile, 0.0f);
  const auto add = [&](int level, std::int64_t began) {
    const float* from = buffer(unit, level) + (w - began) * kTile;
    for (std::int64_t i = 0; i < rows * kTile; i += kLanes) store(to + i, load(to + i) + load(from + i));
  };
  const int levels = TilePlan::levels(unit.period.length);
  for (int level = 0; level < levels; level++) {
    const std::int64_t began = TilePlan::began(level, w);
    if (began > unit.phase) add(level, began);  // else nothing had been taken in by then
  }
  const std::int64_t before = before_at(unit);
  if (before >= 0) add(levels, before);
}

void OnlineState::step(const GatedConv& job, std::int64_t row, std::int64_t g, std::int64_t s) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const std::int64_t w = s + unit.phase, at = w % kBase;
  if (s == 0 || at == 0) {
    begin_block(g, s);
    gather(g, s);
  } else if (at == kBase / 2 && plan_.kind == Kind::rolling) {
    sum_ahead(g, w);
  }
  const float* h = filter_->near(g);
  float* const z = input_row(unit, w);
  const float* const far = far_sums(g) + at * kTile;
  float* const near = near_sums(g) + at * kTile;
  for (int lane = 0; lane < kTile; lane += kLanes) {
    const GatedLanes<kLanes> lanes(job, g, lane);
    const vf in = lanes.input(row);
    store(z + lane, in);
    lanes.finish(row, load(far + lane) + fma(load(h + lane), in, load(near + lane)));
    for (std::int64_t i = 1; i < kBase - at; i++) {
      const std::int64_t k = i * kTile + lane;
      store(near + k, fma(load(h + k), in, load(near + k)));
    }
  }
}

void OnlineState::advance(std::int64_t n) noexcept {
  position_ += n;
  if (keep_ > 0 && position_ >= keep_) past_.clear();
}

void OnlineState::begin(int threads) {
  if (position_ > 0 || plan_.kind != Kind::rolling) return;
  parallel_for_throwing(filter_->groups(), threads, [&](std::int64_t g, int) {
    begin_block(g, 0);
    sum_ahead(g, units_[static_cast<std::size_t>(g)].phase);
  });
}

void OnlineState::rewind(std::int64_t position) {
  for (std::int64_t g = 0; g < filter_->groups(); g++) {
    Unit& unit = units_[static_cast<std::size_t>(g)];
    const std::int64_t w = position + unit.phase, at = w % kBase;
    while (!unit.cells.empty() && (unit.first_cell + static_cast<std::int64_t>(unit.cells.size()) - 1) * cell_ >= w) {
      if (unit.cells.back().use_count() == 1 && plan_.kind == Kind::closed) unit.spare.push_back(unit.cells.back());
      unit.cells.pop_back();
    }
    if (!unit.cells.empty()) own_last(unit);
    // A period, and a tile, that begins right here is begun by the next step.
    fit(unit, plan_.period_at(position == 0 ? w : w - 1));
    if (position == 0 || w == unit.period.end()) continue;
    for (int level = 0; level < TilePlan::levels(unit.period.length); level++) {
      const std::int64_t began = TilePlan::began(level, w);
      if (began > std::max(unit.phase, unit.period.begin) && began < w &&
          unit.tile_at[static_cast<std::size_t>(level)] != began)
        tile(g, level, began - unit.phase);
    }
    const std::int64_t before = before_at(unit);
    if (before >= 0 && unit.tile_at.back() != before) {
      if (plan_.goes_back())
        sum_before(g);
      else
        tile(g, TilePlan::levels(unit.period.length), before - unit.phase);
    }
    if (at == 0) continue;
    const std::int64_t block = std::max<std::int64_t>(0, position - at);
    gather(g, block);
    const float* h = filter_->near(g);
    for (std::int64_t s = block; s < position; s++) {
      float* near = near_sums(g) + (s + unit.phase) % kBase * kTile;
      const float* z = input_run(unit, s + unit.phase).data;
      const std::int64_t left = kBase - (s + unit.phase) % kBase;
      for (std::int64_t i = kTile; i < left * kTile; i += kLanes)
        store(near + i, fma(load(h + i), load(z + i % kTile), load(near + i)));
    }
  }
  position_ = position;
}

void OnlineState::resume(std::int64_t origin, const TileView& inputs) {
  first_input_ = origin;
  for (std::int64_t g = 0; g < filter_->groups(); g++) {
    Unit& unit = units_[static_cast<std::size_t>(g)];
    unit.first_cell = (origin + unit.phase) / cell_;
    const std::int64_t first = origin + unit.phase;
    for (std::int64_t t = 0; t < inputs.length; t++)
      std::copy_n(inputs.group(g) + t * kTile, kTile, input_row(unit, first + t));
  }
  // No tile has been computed, so going back nowhere computes all that are under way.
  rewind(origin + inputs.length);
  advance(0);
}

void online_conv(const std::vector<OnlineState*>& states, const std::vector<std::int64_t>& offsets,
                 const GatedConv& job, int threads) {
  const auto B = static_cast<std::int64_t>(states.size());
  // A step costs about 64 multiply-adds per channel, tiles included, at any context.
  const int team = worth(job.z.length * job.z.groups * kTile * 64, threads);
  // Sequences of one group side by side: they read the same taps and spectra.
  parallel_for_throwing(B * job.z.groups, team, [&](std::int64_t piece, int) {
    const std::int64_t g = piece / B, b = piece % B, first = offsets[b];
    for (std::int64_t row = first; row < offsets[b + 1]; row++)
      states[b]->step(job, row, g, states[b]->position() + row - first);
  });
  for (std::int64_t b = 0; b < B; b++) states[b]->advance(offsets[b + 1] - offsets[b]);
}

}  // namespace hyena
