#include "onlineconv.hpp"

#include <algorithm>
#include <cmath>

#include "futurefill.hpp"
#include "longconv.hpp"

namespace hyena {
namespace {

// Odd distances between groups: the same row of each would else compete for one place in a cache.
std::int64_t odd(std::int64_t rows) { return rows | 1; }

std::shared_ptr<float> shared_floats(std::int64_t n) {
  return std::shared_ptr<float>(aligned_array<float>(n).release(), FreeDeleter{});
}

AlignedArray<float> copy_of(const float* from, std::int64_t n) {
  AlignedArray<float> to = aligned_array<float>(n);
  std::copy_n(from, n, to.get());
  return to;
}

/// Multiples of the golden ratio: any run of units is spread evenly over the period, so large tiles
/// of different units fall on different steps.
std::int64_t phase_of(std::int64_t unit, std::int64_t period) {
  double turns = 0.6180339887498949 * static_cast<double>(unit + 1);
  turns -= std::floor(turns);
  return static_cast<std::int64_t>(turns * static_cast<double>(period));
}

}  // namespace

OnlineFilter::OnlineFilter(const TileView& taps, std::int64_t total, std::int64_t top, const OnlineFilter* smaller,
                           int threads)
    : groups_(taps.groups),
      total_(total),
      top_(top),
      near_(aligned_array<float>(taps.groups * kBase * kTile)),
      head_(aligned_array<float>(taps.groups * 2 * kDirect * kTile)) {
  for (std::int64_t g = 0; g < groups_; g++) {
    float* head = head_.get() + g * 2 * kDirect * kTile;
    const std::int64_t rows = std::min(taps.length, 2 * kDirect);
    std::copy_n(taps.group(g), rows * kTile, head);
    std::fill(head + rows * kTile, head + 2 * kDirect * kTile, 0.0f);
    std::copy_n(head, kBase * kTile, near_.get() + g * kBase * kTile);
  }
  for (int level = 0; TilePlan::size(level) <= top; level++) {
    const std::int64_t points = 2 * TilePlan::size(level), lags = std::min(points, taps.length) - 1;
    std::shared_ptr<const float> spectra;
    if (smaller != nullptr && level < static_cast<int>(smaller->spectra_.size())) {
      spectra = smaller->spectra_[level];
    } else if (TilePlan::size(level) > kDirect) {
      const std::shared_ptr<float> fresh = shared_floats(groups_ * odd(points) * kTile);
      hyena::spectrum({taps.data + kTile, groups_, lags, taps.stride},
                      {fresh.get(), groups_, points, odd(points) * kTile}, threads);
      spectra = fresh;
    }
    spectra_.push_back(spectra);
  }
}

std::int64_t OnlineFilter::nbytes() const {
  std::int64_t rows = kBase + 2 * kDirect;
  for (std::int64_t size = 2 * kDirect; size <= top_; size *= 2) rows += odd(2 * size);
  return groups_ * rows * kTile * static_cast<std::int64_t>(sizeof(float));
}

TileView OnlineFilter::spectrum(int level, std::int64_t g) const {
  const std::int64_t points = 2 * TilePlan::size(level), stride = odd(points) * kTile;
  return {const_cast<float*>(spectra_[level].get()) + g * stride, 1, points, stride};
}

OnlineState::OnlineState(std::shared_ptr<const OnlineFilter> filter, std::int64_t horizon, std::int64_t first_unit,
                         const TileView* future)
    : filter_(std::move(filter)),
      plan_(TilePlan::make(horizon, filter_->taps())),
      future_rows_(future == nullptr ? 0 : std::min(future->length, plan_.horizon)),
      stride_(odd(plan_.horizon)),
      inputs_(aligned_array<float>(filter_->groups() * stride_ * kTile)),
      sums_(aligned_array<float>(filter_->groups() * 2 * kBase * kTile)) {
  const std::int64_t G = filter_->groups();
  if (future_rows_ > 0) {
    const std::shared_ptr<float> kept = shared_floats(G * future_rows_ * kTile);
    for (std::int64_t g = 0; g < G; g++)
      std::copy_n(future->group(g), future_rows_ * kTile, kept.get() + g * future_rows_ * kTile);
    future_ = kept;
  }
  // Touched here, so that no step waits for the system to find a page.
  std::fill_n(inputs_.get(), G * stride_ * kTile, 0.0f);
  for (std::int64_t g = 0; g < G; g++) {
    const std::int64_t phase = first_unit < 0 ? 0 : phase_of(first_unit + g, plan_.period());
    units_.push_back({phase, aligned_array<float>(buffer_rows(phase) * kTile),
                      std::vector<std::int64_t>(static_cast<std::size_t>(plan_.levels + 1), -1)});
    std::fill_n(units_.back().buffers.get(), buffer_rows(phase) * kTile, 0.0f);
  }
}

OnlineState::OnlineState(const OnlineState& other)
    : filter_(other.filter_),
      plan_(other.plan_),
      future_(other.future_),
      future_rows_(other.future_rows_),
      position_(other.position_),
      origin_(other.origin_),
      stride_(other.stride_),
      inputs_(copy_of(other.inputs_.get(), filter_->groups() * stride_ * kTile)),
      sums_(copy_of(other.sums_.get(), filter_->groups() * 2 * kBase * kTile)) {
  for (const Unit& unit : other.units_)
    units_.push_back({unit.phase, copy_of(unit.buffers.get(), buffer_rows(unit.phase) * kTile), unit.tile_at});
}

std::int64_t OnlineState::buffer_rows(std::int64_t phase) const {
  return 2 * plan_.top() - kBase + (plan_.endless ? 0 : phase);
}

std::int64_t OnlineState::nbytes() const {
  const std::int64_t G = filter_->groups();
  std::int64_t rows = G * (future_rows_ + stride_ + 2 * kBase);
  for (const Unit& unit : units_) rows += buffer_rows(unit.phase);
  return rows * kTile * static_cast<std::int64_t>(sizeof(float));
}

/// The tile of this level (plan.levels: the cross tile) of unit g that is due at s.
void OnlineState::tile(std::int64_t g, int level, std::int64_t s) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const bool cross = level == plan_.levels;
  const std::int64_t size = plan_.size(level), past = cross ? s : std::min(size, s);
  std::int64_t future = cross ? plan_.horizon - s : size;
  if (!plan_.endless) future = std::min(future, plan_.horizon - s);
  const float* z = input(g, s - past);
  // The cross tile has the lags of the largest tile: past + future = 2 top.
  const int lags_of = cross ? level - 1 : level;
  if (plan_.size(lags_of) <= kDirect)
    carry_direct(z, past, filter_->head(g), buffer(unit, level), future);
  else
    carry_transform(z, past, filter_->spectrum(lags_of, g), buffer(unit, level), future);
  unit.tile_at[static_cast<std::size_t>(level)] = s + unit.phase;
}

/// Sums of unit g for the block that begins at s.
void OnlineState::gather(std::int64_t g, std::int64_t s) noexcept {
  const Unit& unit = units_[static_cast<std::size_t>(g)];
  const std::int64_t w = s + unit.phase, skipped = w % kBase;
  std::int64_t rows = kBase - skipped;
  if (!plan_.endless) rows = std::min(rows, plan_.horizon - s);
  std::fill_n(near_sums(g), kBase * kTile, 0.0f);
  float* to = far_sums(g) + skipped * kTile;
  const std::int64_t filled = std::clamp<std::int64_t>(future_rows_ - s, 0, rows) * kTile;
  if (filled > 0) std::copy_n(future_.get() + (g * future_rows_ + s) * kTile, filled, to);
  std::fill(to + filled, to + rows * kTile, 0.0f);
  for (int level = 0; level <= plan_.levels; level++) {
    const std::int64_t began = plan_.began(level, w);
    if (began <= unit.phase) continue;  // nothing had been taken in by then
    const float* from = buffer(unit, level) + (w - began) * kTile;
    for (std::int64_t i = 0; i < rows * kTile; i += kLanes) store(to + i, load(to + i) + load(from + i));
  }
}

void OnlineState::step(const GatedConv& job, std::int64_t row, std::int64_t g, std::int64_t s) {
  const std::int64_t w = s + units_[static_cast<std::size_t>(g)].phase, at = w % kBase;
  if (s == 0 || at == 0) {
    if (s > 0) tile(g, plan_.due(w), s);
    gather(g, s);
  }
  const float* h = filter_->near(g);
  float* const z = input_row(g, s);
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

void OnlineState::slide() noexcept {
  const std::int64_t kept = plan_.horizon / 2, dropped = position_ - kept - origin_;
  if (dropped <= 0) return;
  for (std::int64_t g = 0; g < filter_->groups(); g++) {
    float* rows = input_row(g, origin_);
    std::copy(rows + dropped * kTile, rows + (dropped + kept) * kTile, rows);
  }
  origin_ += dropped;
}

void OnlineState::rewind(std::int64_t position) {
  for (std::int64_t g = 0; g < filter_->groups(); g++) {
    Unit& unit = units_[static_cast<std::size_t>(g)];
    const std::int64_t w = position + unit.phase, at = w % kBase;
    for (int level = 0; level <= plan_.levels; level++) {
      const std::int64_t began = plan_.began(level, w);
      // A tile that begins right here is computed by the next step.
      if (began > unit.phase && began < w && unit.tile_at[static_cast<std::size_t>(level)] != began)
        tile(g, level, began - unit.phase);
    }
    if (position == 0 || at == 0) continue;
    const std::int64_t block = std::max<std::int64_t>(0, position - at);
    gather(g, block);
    const float* h = filter_->near(g);
    for (std::int64_t s = block; s < position; s++) {
      float* near = near_sums(g) + (s + unit.phase) % kBase * kTile;
      const float* z = input(g, s);
      const std::int64_t left = kBase - (s + unit.phase) % kBase;
      for (std::int64_t i = kTile; i < left * kTile; i += kLanes)
        store(near + i, fma(load(h + i), load(z + i % kTile), load(near + i)));
    }
  }
  position_ = position;
}

void OnlineState::resume(std::int64_t origin, const TileView& inputs) {
  origin_ = origin;
  for (std::int64_t g = 0; g < filter_->groups(); g++)
    std::copy_n(inputs.group(g), inputs.length * kTile, input_row(g, origin));
  // No tile has been computed, so going back nowhere computes all that are under way.
  rewind(origin + inputs.length);
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
