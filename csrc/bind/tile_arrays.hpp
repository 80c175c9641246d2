// Fresh tiles and checked outputs: what bindings of tile kernels share.
#pragma once

#include "aligned.hpp"
#include "bind/rows.hpp"

namespace hyena {

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

}  // namespace hyena
