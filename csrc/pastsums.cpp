// What a rolling state needs of its past: for every unit, during one period, the sum over all blocks before it for
// the outputs of the next period.
//
// For a period [b, b + T) rows [e - T, e) are one product of 2 T points with the taps from lag b - e + 1 on. Blocks
// up to the beginning of the period before are known when that one begins; a part of a product is due every so
// many steps. They come oldest first and add up in the spectral domain. When the period begins its own
// predecessor is added, and one transform back gives the sums of all.
#include "futurefill.hpp"
#include "onlineconv.hpp"
#include "scratch.hpp"
#include "simd.hpp"
#include "spectralsum.hpp"

namespace hyena {

/// Blocks that are summed ahead of a period: `count` of its own length, the newest of which ends at clock `end`.
/// Rows before `lowest` are not there, or too old.
struct OnlineState::Blocks {
  std::int64_t end, lowest, count;
};

OnlineState::Blocks OnlineState::blocks_before(const Unit& unit, Period next) const {
  const bool first = next.begin < plan_.period;  // that of the base: all rows before it are known
  const std::int64_t end = first ? next.begin : plan_.period_at(next.begin - 1).begin;
  const std::int64_t lowest = std::max(unit.phase - past_rows_, next.begin - (filter_->taps() - 1));
  return {end, lowest, end <= lowest ? 0 : (end - lowest + next.length - 1) / next.length};
}

/// Rows of unit g from clock w on, as far as they lie together; zeros before `lowest`.
RowRun OnlineState::row_run(const Unit& unit, std::int64_t g, std::int64_t w, std::int64_t lowest) const {
  if (w < lowest) return {nullptr, lowest - w};
  const std::int64_t s = w - unit.phase;
  if (s >= 0) return input_run(unit, w);
  auto piece = past_.rbegin();
  while (s < piece->first) ++piece;
  const std::int64_t at = s - piece->first;
  return {piece->rows.group(g) + at * kTile, piece->rows.length - at};
}

/// Adds rows [max(end - T, lowest), end) to the sum for `next`, T its length: one part of it.
void OnlineState::add_block(std::int64_t g, Period next, std::int64_t end, std::int64_t lowest, int part) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const std::int64_t T = next.length, size = 2 * T, floats = part_floats(size), begin = end - T;
  const Scratch scratch(2 * floats, 1);
  float* const x = scratch.of(0);
  const RowCells rows(T, cell_, [&](std::int64_t r) { return row_run(unit, g, begin + r, lowest); });
  transform_part(rows, T, size, part, 1.0f, x);
  const float* h = x + floats;
  if (end == next.begin) {
    h = filter_->spectrum(TilePlan::levels(T), g).data + part * floats;
  } else {
    const std::int64_t lags = next.end() - 1 - std::max(begin, lowest) - (next.begin - end);
    const RowCells taps = filter_->run(g, next.begin - end + 1, lags, cell_);
    transform_part(taps, lags, size, part, filter_scale(size), x + floats);
  }
  add_product(x, h, size, unit.sum.done < kParts, unit.sum.data.get() + part * floats);
  unit.sum.done++;
  unit.summed += size;
}

/// Memory for the sum of what comes before `next`.
void OnlineState::make_room(Unit& unit, Period next) const {
  const std::int64_t size = 2 * next.length;
  if (unit.sum.size >= size) return;
  unit.sum.of = {-1, 0};
  unit.sum.data = aligned_array<float>(size * kTile);
  unit.sum.size = size;
  std::fill_n(unit.sum.data.get(), size * kTile, 0.0f);
}

/// The sum for `next` as far as its first `parts` parts of products.
void OnlineState::sum_parts(std::int64_t g, Period next, std::int64_t parts) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  Sum& sum = unit.sum;
  if (sum.of.begin != next.begin) {
    make_room(unit, next);
    sum.of = next;
    sum.done = 0;
  }
  const Blocks blocks = blocks_before(unit, next);
  while (sum.done < parts) {
    const std::int64_t newer = blocks.count - 1 - sum.done / kParts;
    add_block(g, next, blocks.end - newer * next.length, blocks.lowest, static_cast<int>(sum.done % kParts));
  }
}

/// What is due at clock w of the sum for the next period.
void OnlineState::sum_ahead(std::int64_t g, std::int64_t w) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const Period next = plan_.period_at(unit.period.end());
  if (next.begin - unit.phase >= plan_.horizon) return;
  // A longer period needs memory and a spectrum of its own, each of which is work enough for one step.
  constexpr std::int64_t kOwn = 3;
  const std::int64_t own = next.length > unit.period.length ? kOwn : 0;
  const std::int64_t parts = own + blocks_before(unit, next).count * kParts;
  // Once in a block of kBase steps, the last time in the last one.
  const std::int64_t times = unit.period.length / kBase, now = (w - unit.period.begin) / kBase + 1;
  const std::int64_t due = (parts * now + times - 1) / times;
  if (own > 0 && due >= 1) filter_->spectrum(TilePlan::levels(next.length), g);
  if (own > 0 && due >= 2) make_room(unit, next);
  if (own > 0 && due >= 3) make_tiles(unit, next);
  sum_parts(g, next, due - own);
}

/// What lies before the period under way, into the buffer of the last level.
void OnlineState::sum_before(std::int64_t g) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  const Period now{before_at(unit), unit.period.length};
  if (plan_.kind == Kind::direct) return sum_directly(g, now);
  const std::int64_t size = 2 * now.length;
  const Blocks blocks = blocks_before(unit, now);
  sum_parts(g, now, blocks.count * kParts);
  if (blocks.end < now.begin)
    for (int part = 0; part < kParts; part++) add_block(g, now, now.begin, std::max(blocks.lowest, blocks.end), part);
  float* const out = buffer(unit, TilePlan::levels(now.length));
  if (unit.sum.done == 0) std::fill_n(out, now.length * kTile, 0.0f);
  for (int part = 0; part < kParts && unit.sum.done > 0; part++)
    transform_back(unit.sum.data.get() + part * part_floats(size), size, part, now.length - 1, size - 1, out);
  unit.sum.of = {-1, 0};
  unit.tile_at.back() = now.begin;
}

/// The same by plain sums, run by run of rows that lie together.
void OnlineState::sum_directly(std::int64_t g, Period now) {
  Unit& unit = units_[static_cast<std::size_t>(g)];
  float* const out = buffer(unit, TilePlan::levels(now.length));
  const Scratch part(now.length * kTile, 1);
  unit.tile_at.back() = -1;  // what was there is gone, even if the new sums end in an exception
  std::fill_n(out, now.length * kTile, 0.0f);
  for (std::int64_t w = blocks_before(unit, now).lowest, n = 0; w < now.begin; w += n) {
    const RowRun run = row_run(unit, g, w, w);
    n = std::min({run.rows, now.begin - w, cell_});
    const std::int64_t nearest = now.begin - w - n, lags = n + now.length;
    const RowCells taps = filter_->run(g, nearest, lags, tile_ceil(lags));
    carry_direct(run.data, n, taps.row(0), part.of(0), now.length);
    for (std::int64_t i = 0; i < now.length * kTile; i += kLanes) store(out + i, load(out + i) + load(part.of(0) + i));
  }
  unit.tile_at.back() = now.begin;
}

}  // namespace hyena
