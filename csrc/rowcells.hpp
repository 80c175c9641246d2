// Rows that lie in several pieces of memory, read as if they were one.
#pragma once

#include <algorithm>
#include <vector>

#include "aligned.hpp"
#include "tiles.hpp"

namespace hyena {

/// Rows of one group that follow one another in memory; data is null for rows of zeros.
struct RowRun {
  const float* data;
  std::int64_t rows;
};

/// Rows [0, length) in cells of `cell` rows each, a power of two. A cell is where its rows lie already, if they
/// lie together, else a copy.
class RowCells {
 public:
  /// run(r) is what lies at row r and after it, one row at least. Throws std::bad_alloc.
  template <class Run>
  RowCells(std::int64_t length, std::int64_t cell, Run run) {
    while ((std::int64_t{1} << shift_) < cell) shift_++;
    for (std::int64_t first = 0; first < length; first += cell) {
      const std::int64_t rows = std::min(cell, length - first);
      const RowRun whole = run(first);
      cells_.push_back(whole.data != nullptr && whole.rows >= rows ? whole.data : copied(first, rows, run));
    }
  }

  const float* row(std::int64_t r) const {
    return cells_[static_cast<std::size_t>(r >> shift_)] + (r & ((std::int64_t{1} << shift_) - 1)) * kTile;
  }

 private:
  template <class Run>
  const float* copied(std::int64_t first, std::int64_t rows, Run run) {
    copies_.push_back(aligned_array<float>(rows * kTile));
    float* const to = copies_.back().get();
    for (std::int64_t r = 0; r < rows;) {
      const RowRun next = run(first + r);
      const std::int64_t n = std::min(next.rows, rows - r) * kTile;
      if (next.data == nullptr)
        std::fill_n(to + r * kTile, n, 0.0f);
      else
        std::copy_n(next.data, n, to + r * kTile);
      r += n / kTile;
    }
    return to;
  }

  int shift_ = 0;
  std::vector<const float*> cells_;
  std::vector<AlignedArray<float>> copies_;
};

}  // namespace hyena
