#include "onlinefilter.hpp"

#include <stdexcept>

#include "futurefill.hpp"
#include "longconv.hpp"

namespace hyena {
namespace {

AlignedArray<float> zeros(std::int64_t rows) {
  AlignedArray<float> data = aligned_array<float>(rows * kTile);
  std::fill_n(data.get(), rows * kTile, 0.0f);
  return data;
}

}  // namespace

OnlineFilter::OnlineFilter(std::int64_t groups, std::int64_t total)
    : groups_(groups),
      total_(total),
      near_(zeros(groups * kBase)),
      head_(zeros(groups * kHead)),
      spectra_(static_cast<std::size_t>(kLevels * groups)) {}

void OnlineFilter::append(const TileView& taps, std::shared_ptr<const void> owner) {
  const std::int64_t first = known();
  const auto begin = [=](float* rows, std::int64_t g, std::int64_t n) {
    if (first < n) std::copy_n(taps.group(g), std::min(n - first, taps.length) * kTile, rows + (g * n + first) * kTile);
  };
  for (std::int64_t g = 0; g < groups_; g++) begin(head_.get(), g, kHead), begin(near_.get(), g, kBase);
  const std::lock_guard<std::mutex> hold(lock_);
  if (first > 0 && taps.length <= kFew) {
    store(taps, first);
  } else {
    pieces_.push_back({taps, first, std::move(owner), 0});
  }
  known_.store(first + taps.length, std::memory_order_release);
}

void OnlineFilter::store(const TileView& taps, std::int64_t first) {
  if (pieces_.back().room < taps.length) {
    const std::int64_t room = std::min(kStore, total_ - first), stride = (room | 1) * kTile;
    const std::shared_ptr<float[]> rows = aligned_array<float>(groups_ * stride);
    pieces_.push_back({{rows.get(), groups_, 0, stride}, first, rows, room});
  }
  Piece& piece = pieces_.back();
  for (std::int64_t g = 0; g < groups_; g++)
    std::copy_n(taps.group(g), taps.length * kTile, piece.taps.group(g) + piece.taps.length * kTile);
  piece.taps.length += taps.length;
  piece.room -= taps.length;
}

std::int64_t OnlineFilter::nbytes() const {
  const std::int64_t rows = groups_ * (kBase + kHead + known()) + spectra_rows_.load();
  return rows * kTile * static_cast<std::int64_t>(sizeof(float));
}

TileView OnlineFilter::spectrum(int level, std::int64_t g) const {
  const std::int64_t points = 2 * TilePlan::size(level);
  Spectrum& found = spectra_[static_cast<std::size_t>(level * groups_ + g)];
  std::call_once(found.made, [&] {
    const RowCells lags = run(g, 1, points - 1, points);
    AlignedArray<float> data = aligned_array<float>(points * kTile);
    hyena::spectrum({const_cast<float*>(lags.row(0)), 1, points - 1, points * kTile},
                    {data.get(), 1, points, points * kTile}, 1);
    found.data = std::move(data);
    spectra_rows_ += points;
  });
  return {found.data.get(), 1, points, points * kTile};
}

void OnlineFilter::prepare(std::int64_t largest, int threads) const {
  int first = 0, last = 0;
  while (TilePlan::size(first) <= kDirect) first++;
  while (TilePlan::size(last) <= largest) last++;
  parallel_for_throwing(std::max(0, last - first) * groups_, threads, [&](std::int64_t piece, int) {
    spectrum(first + static_cast<int>(piece / groups_), piece % groups_);
  });
}

RowCells OnlineFilter::run(std::int64_t g, std::int64_t first, std::int64_t n, std::int64_t cell) const {
  if (std::min(first + n, total_) > known()) throw std::logic_error("online_conv: taps are not known that far");
  const std::lock_guard<std::mutex> hold(lock_);
  return RowCells(n, cell, [&](std::int64_t r) {
    const std::int64_t lag = first + r;
    auto after = std::upper_bound(pieces_.begin(), pieces_.end(), lag,
                                  [](std::int64_t at, const Piece& piece) { return at < piece.first; });
    if (after == pieces_.begin()) return RowRun{nullptr, n};
    const Piece& piece = *--after;
    const std::int64_t at = lag - piece.first;
    if (at >= piece.taps.length) return RowRun{nullptr, n};
    return RowRun{piece.taps.group(g) + at * kTile, piece.taps.length - at};
  });
}

}  // namespace hyena
