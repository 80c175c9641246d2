// Optional arrays, row views and fresh tiles: what bindings of tile kernels share.
#pragma once

#include <pybind11/stl.h>

#include <optional>

#include "aligned.hpp"
#include "bind/arrays.hpp"

namespace hyena {

using MaybeArray = std::optional<FloatArray>;

/// float32 [rows, columns] with neighbouring columns 4 bytes apart; -1 accepts any size.
inline RowView rows(const std::string& op, const char* name, const FloatArray& a, std::int64_t rows,
                    std::int64_t columns) {
  const bool adjacent =
      a.ndim() == 2 && (a.size() == 0 || ((a.shape(1) == 1 || a.strides(1) == sizeof(float)) &&
                                          a.strides(0) % static_cast<py::ssize_t>(sizeof(float)) == 0));
  const bool fits = adjacent && (rows < 0 || a.shape(0) == rows) && (columns < 0 || a.shape(1) == columns);
  if (!fits)
    reject(op, std::string(name) + " has shape " + shape_text(a) + " but needs [" +
                   (rows < 0 ? "any" : std::to_string(rows)) + ", " + (columns < 0 ? "any" : std::to_string(columns)) +
                   "] with contiguous rows");
  return {const_cast<float*>(a.data()), a.shape(0), a.shape(1), a.strides(0) / static_cast<py::ssize_t>(sizeof(float))};
}

/// Uninitialised tiles [groups, length, 16] on cache lines. Groups lie an odd number of rows apart,
/// or the same row of every group would compete for one place in the cache.
inline FloatArray new_tiles(std::int64_t groups, std::int64_t length) {
  const std::int64_t stride = (length | 1) * kTile;
  float* data = aligned_array<float>(groups * stride).release();
  const py::capsule owner(data, [](void* p) { std::free(p); });
  const py::ssize_t size = sizeof(float);
  return FloatArray({groups, length, std::int64_t{kTile}}, {stride * size, kTile * size, size}, data, owner);
}

/// `out` checked, or new tiles.
inline FloatArray out_tiles(const std::string& op, const MaybeArray& out, std::int64_t groups, std::int64_t length) {
  if (!out) return new_tiles(groups, length);
  tiles(op, "out", *out, groups, length);
  if (!out->writeable()) reject(op, "out is read-only");
  return *out;
}

inline FloatArray out_rows(const std::string& op, const MaybeArray& out, std::int64_t count, std::int64_t columns) {
  if (!out) return FloatArray({count, columns});
  rows(op, "out", *out, count, columns);
  if (!out->writeable()) reject(op, "out is read-only");
  return *out;
}

}  // namespace hyena
