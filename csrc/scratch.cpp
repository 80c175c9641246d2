#include "scratch.hpp"

#include <utility>

namespace hyena {
namespace {

// Kept in all; where single blocks come near this, filling them with zeros is a twentieth of the work.
constexpr std::int64_t kKeptFloats = std::int64_t{16} << 20;

BlockPool& pool() {
  static BlockPool* const kept = new BlockPool(kKeptFloats);  // never destroyed: threads may outlive static objects
  return *kept;
}

}  // namespace

AlignedArray<float> BlockPool::take(std::int64_t floats) {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    for (std::size_t i = blocks_.size(); i-- > 0;)
      if (blocks_[i].floats == floats) {
        AlignedArray<float> data = std::move(blocks_[i].data);
        blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
        kept_ -= floats;
        return data;
      }
  }
  return aligned_array<float>(floats);
}

void BlockPool::leave(std::int64_t floats, AlignedArray<float> data) noexcept {
  const std::lock_guard<std::mutex> hold(lock_);
  if (floats > most_) return;
  try {
    blocks_.push_back({floats, std::move(data)});
  } catch (const std::bad_alloc&) {
    return;  // destructors leave blocks
  }
  kept_ += floats;
  while (kept_ > most_) {
    kept_ -= blocks_.front().floats;
    blocks_.erase(blocks_.begin());
  }
}

void BlockPool::close() {
  const std::lock_guard<std::mutex> hold(lock_);
  most_ = kept_ = 0;
  blocks_.clear();
}

Scratch::Scratch(std::int64_t floats, int team) : floats_(floats) {
  for (int worker = 0; worker < team; worker++) blocks_.push_back(pool().take(floats));
}

Scratch::~Scratch() {
  for (AlignedArray<float>& block : blocks_) pool().leave(floats_, std::move(block));
}

}  // namespace hyena
