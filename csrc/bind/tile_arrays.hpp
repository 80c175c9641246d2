// Fresh tiles and checked outputs: what bindings of tile kernels share.
#pragma once

#include <memory>

#include "bind/rows.hpp"
#include "scratch.hpp"

namespace hyena {

using Memory = std::shared_ptr<BlockPool>;

/// Uninitialised tiles [groups, length, 16] on cache lines, in a block of `memory` if there is one. Groups lie
/// an odd number of rows apart, or the same row of every group would compete for one place in the cache.
inline FloatArray new_tiles(std::int64_t groups, std::int64_t length, const Memory& memory = nullptr) {
  struct Owned {
    std::int64_t floats;
    AlignedArray<float> data;
    Memory memory;
  };
  const std::int64_t stride = (length | 1) * kTile, floats = groups * stride;
  auto owned = std::make_unique<Owned>(Owned{floats, nullptr, memory});
  owned->data = memory ? memory->take(floats) : aligned_array<float>(floats);
  float* const data = owned->data.get();
  const py::capsule owner(owned.get(), [](void* p) {
    const std::unique_ptr<Owned> last(static_cast<Owned*>(p));
    if (last->memory) last->memory->leave(last->floats, std::move(last->data));
  });
  owned.release();
  const std::int64_t size = sizeof(float);
  return view_of({groups, length, kTile}, {stride * size, kTile * size, size}, data, owner);
}

/// `out` checked, or new tiles.
inline FloatArray out_tiles(const std::string& op, const MaybeArray& out, std::int64_t groups, std::int64_t length) {
  if (!out) return new_tiles(groups, length);
  tiles(op, "out", *out, groups, length);
  if (!out->writeable()) reject(op, "out is read-only");
  return *out;
}

}  // namespace hyena
