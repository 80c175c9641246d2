// What a sequence keeps of an online convolution: made, copied and measured here, stepped in onlineconv.cpp.
#include <algorithm>
#include <cmath>

#include "onlineconv.hpp"

namespace hyena {
namespace {

/// Inputs lie in cells of so many rows: small enough to be taken by a step, and tiles of direct sums, all of which
/// are smaller where periods are short, lie within one.
constexpr std::int64_t cell_rows(std::int64_t longest) {
  return longest <= 2 * kDirect ? longest : std::clamp<std::int64_t>(longest / 8, 2 * kDirect, 1024);
}

constexpr std::int64_t kDirectCell = 1024;

std::shared_ptr<float> shared_floats(std::int64_t n) {
  return std::shared_ptr<float>(aligned_array<float>(n).release(), FreeDeleter{});
}

AlignedArray<float> copied(const AlignedArray<float>& from, std::int64_t n) {
  AlignedArray<float> to = aligned_array<float>(n);
  std::copy_n(from.get(), n, to.get());
  return to;
}

constexpr std::int64_t kTogether = 16;  // units, about those of one convolution

/// Phase of a unit. Multiples of the golden ratio: any run of units is spread evenly over the period, so large tiles
/// of different units fall on different steps. Where no period begins with sums of the past, they do so in pairs, one
/// for each of two threads, and blocks begin together in units that step side by side, whose data lie together.
std::int64_t phase_of(std::int64_t unit, const TilePlan& plan) {
  const auto spread = [](std::int64_t n, std::int64_t over) {
    const double turns = 0.6180339887498949 * static_cast<double>(n + 1);
    return static_cast<std::int64_t>((turns - std::floor(turns)) * static_cast<double>(over));
  };
  if (plan.goes_back()) return spread(unit, plan.period);
  return spread(unit / 2, plan.period / kBase) * kBase + spread(unit / kTogether, kBase);
}

}  // namespace

OnlineState::OnlineState(std::shared_ptr<const OnlineFilter> filter, const TilePlan& plan, std::int64_t first_unit,
                         std::int64_t keep, const TileView* future, std::vector<PastRows> past)
    : filter_(std::move(filter)),
      plan_(plan),
      keep_(keep),
      cell_(plan.kind == Kind::direct ? kDirectCell : cell_rows(plan.longest)),
      future_rows_(future == nullptr ? 0 : std::min(future->length, plan_.horizon)),
      past_(std::move(past)),
      past_rows_(past_.empty() ? 0 : -past_.front().first),
      sums_(aligned_array<float>(filter_->groups() * 2 * kBase * kTile)) {
  const std::int64_t G = filter_->groups();
  if (future_rows_ > 0) {
    const std::shared_ptr<float> kept = shared_floats(G * future_rows_ * kTile);
    for (std::int64_t g = 0; g < G; g++)
      std::copy_n(future->group(g), future_rows_ * kTile, kept.get() + g * future_rows_ * kTile);
    future_ = kept;
  }
  for (std::int64_t g = 0; g < G; g++) {
    Unit unit;
    unit.phase = first_unit < 0 ? 0 : phase_of(first_unit + g, plan_);
    unit.first_cell = unit.phase / cell_;
    fit(unit, plan_.period_at(unit.phase));
    if (plan_.kind == Kind::closed) {
      // Touched here, so that no step waits for the system to find a page.
      const std::int64_t cells = (unit.phase + plan_.horizon - 1) / cell_ - unit.first_cell + 1;
      for (std::int64_t i = 0; i < cells; i++) {
        unit.spare.push_back(shared_floats(cell_ * kTile));
        std::fill_n(unit.spare.back().get(), cell_ * kTile, 0.0f);
      }
    }
    units_.push_back(std::move(unit));
  }
}

OnlineState::OnlineState(const OnlineState& other)
    : filter_(other.filter_),
      plan_(other.plan_),
      keep_(other.keep_),
      cell_(other.cell_),
      future_(other.future_),
      future_rows_(other.future_rows_),
      position_(other.position_),
      first_input_(other.first_input_),
      past_(other.past_),
      past_rows_(other.past_rows_),
      sums_(copied(other.sums_, filter_->groups() * 2 * kBase * kTile)) {
  for (const Unit& unit : other.units_) units_.push_back(copy_of(unit));
}

OnlineState::Unit OnlineState::copy_of(const Unit& other) const {
  Unit unit;
  unit.phase = other.phase;
  unit.first_cell = other.first_cell;
  unit.cells = other.cells;
  if (!unit.cells.empty()) own_last(unit);
  for (std::size_t i = 0; i < other.spare.size(); i++) unit.spare.push_back(shared_floats(cell_ * kTile));
  unit.period = other.period;
  unit.tiles = copied(other.tiles, tile_rows(other, other.period.length) * kTile);
  unit.tile_at = other.tile_at;
  unit.sum.of = other.sum.of;
  unit.sum.done = other.sum.done;
  unit.sum.size = other.sum.size;
  if (other.sum.size > 0) unit.sum.data = copied(other.sum.data, other.sum.size * kTile);
  unit.summed = other.summed;
  return unit;
}

std::int64_t OnlineState::tile_rows(const Unit& unit, std::int64_t period) const {
  return period - kBase + (plan_.kind == Kind::closed ? unit.phase : period);
}

/// Memory for the tiles of periods that are longer than the one under way.
void OnlineState::make_tiles(Unit& unit, Period next) const {
  if (unit.next_tiles != nullptr) return;
  const std::int64_t floats = tile_rows(unit, next.length) * kTile;
  unit.next_tiles = aligned_array<float>(floats);
  // Touched here, so that no step waits for the system to find a page.
  std::fill_n(unit.next_tiles.get(), floats, 0.0f);
}

/// Begins a period, with buffers for its tiles.
void OnlineState::fit(Unit& unit, Period period) const {
  const bool fits = unit.tiles != nullptr && unit.period.length == period.length;
  if (!fits) {
    if (period.length < unit.period.length) unit.next_tiles.reset();  // taken back
    make_tiles(unit, period);
    unit.tiles = std::move(unit.next_tiles);
  }
  unit.period = period;
  if (fits) return;
  unit.tile_at.assign(static_cast<std::size_t>(TilePlan::levels(period.length) + 1), -1);
}

/// Clock of the first output in the buffer for what lies before the period under way; -1 if nothing does.
std::int64_t OnlineState::before_at(const Unit& unit) const {
  if (unit.period.begin > 0) return unit.period.begin;
  return plan_.goes_back() ? unit.phase : -1;
}

std::int64_t OnlineState::taps_for(std::int64_t n) const {
  std::int64_t lags = plan_.taps();
  if (plan_.goes_back()) {
    const Period last = plan_.period_at(position_ + n + plan_.period), next = plan_.period_at(last.end());
    lags = std::max(2 * next.length, past_rows_ + position_ + n + plan_.period + last.length + next.length);
  }
  return std::min(lags, filter_->taps());
}

std::int64_t OnlineState::origin() const {
  std::int64_t first = first_input_;
  for (const Unit& unit : units_) first = std::max(first, unit.first_cell * cell_ - unit.phase);
  return first;
}

std::int64_t OnlineState::oldest() const {
  const std::int64_t first = origin();
  if (first == 0 && (past_rows_ == 0 || !past_.empty())) return 0;
  return first + plan_.longest + std::max(plan_.longest, filter_->taps() - 1);
}

std::int64_t OnlineState::nbytes() const {
  std::int64_t rows = filter_->groups() * (future_rows_ + 2 * kBase);
  for (const Unit& unit : units_) {
    rows += static_cast<std::int64_t>(unit.cells.size() + unit.spare.size()) * cell_ + unit.sum.size;
    rows += tile_rows(unit, unit.period.length);
    if (unit.next_tiles != nullptr) rows += tile_rows(unit, 2 * unit.period.length);
  }
  return rows * kTile * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t OnlineState::summed() const {
  std::int64_t points = 0;
  for (const Unit& unit : units_) points += unit.summed;
  return points;
}

/// The last cell becomes nobody else's.
void OnlineState::own_last(Unit& unit) const {
  if (unit.cells.back().use_count() == 1) {
    std::atomic_thread_fence(std::memory_order_acquire);  // whoever shared it has let go of it
    return;
  }
  const Cell own = shared_floats(cell_ * kTile);
  std::copy_n(unit.cells.back().get(), cell_ * kTile, own.get());
  unit.cells.back() = own;
}

/// Where the input at clock w, the next one, is to be stored. Throws std::bad_alloc.
float* OnlineState::input_row(Unit& unit, std::int64_t w) {
  if (w / cell_ == unit.first_cell + static_cast<std::int64_t>(unit.cells.size())) {
    if (unit.spare.empty()) unit.spare.push_back(shared_floats(cell_ * kTile));
    unit.cells.push_back(std::move(unit.spare.back()));
    unit.spare.pop_back();
    while (keep_ > 0 && (unit.first_cell + 1) * cell_ <= w - keep_) {
      unit.cells.pop_front();
      unit.first_cell++;
    }
  }
  return unit.cells.back().get() + w % cell_ * kTile;
}

/// Inputs from clock w on, as far as they lie together.
RowRun OnlineState::input_run(const Unit& unit, std::int64_t w) const {
  const Cell& cell = unit.cells[static_cast<std::size_t>(w / cell_ - unit.first_cell)];
  return {cell.get() + w % cell_ * kTile, cell_ - w % cell_};
}

void OnlineState::copy_inputs(std::int64_t g, std::int64_t first, std::int64_t last, float* to) const {
  const Unit& unit = units_[static_cast<std::size_t>(g)];
  for (std::int64_t w = first + unit.phase, end = last + unit.phase; w < end;) {
    const RowRun run = input_run(unit, w);
    const std::int64_t rows = std::min(run.rows, end - w);
    to = std::copy_n(run.data, rows * kTile, to);
    w += rows;
  }
}

}  // namespace hyena
