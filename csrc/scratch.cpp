#include "scratch.hpp"

#include <mutex>

namespace hyena {
namespace {

// Kept in all; where single blocks come near this, filling them with zeros is a twentieth of the work.
constexpr std::int64_t kKeptFloats = std::int64_t{16} << 20;

struct Block {
  std::int64_t floats;
  AlignedArray<float> data;
};

struct Pool {
  std::mutex lock;
  std::vector<Block> blocks;  // oldest first
  std::int64_t floats = 0;
};

Pool& pool() {
  static Pool* const kept = new Pool;  // never destroyed: threads may outlive static objects
  return *kept;
}

AlignedArray<float> take(std::int64_t floats) {
  Pool& kept = pool();
  const std::lock_guard<std::mutex> hold(kept.lock);
  for (std::size_t i = kept.blocks.size(); i-- > 0;)
    if (kept.blocks[i].floats == floats) {
      AlignedArray<float> data = std::move(kept.blocks[i].data);
      kept.blocks.erase(kept.blocks.begin() + static_cast<std::ptrdiff_t>(i));
      kept.floats -= floats;
      return data;
    }
  return nullptr;
}

void give_back(std::int64_t floats, AlignedArray<float> data) {
  if (floats > kKeptFloats) return;
  Pool& kept = pool();
  const std::lock_guard<std::mutex> hold(kept.lock);
  kept.blocks.push_back({floats, std::move(data)});
  kept.floats += floats;
  while (kept.floats > kKeptFloats) {
    kept.floats -= kept.blocks.front().floats;
    kept.blocks.erase(kept.blocks.begin());
  }
}

}  // namespace

Scratch::Scratch(std::int64_t floats, int team) : floats_(floats) {
  for (int worker = 0; worker < team; worker++) {
    AlignedArray<float> block = take(floats);
    blocks_.push_back(block ? std::move(block) : aligned_array<float>(floats));
  }
}

Scratch::~Scratch() {
  for (AlignedArray<float>& block : blocks_) give_back(floats_, std::move(block));
}

}  // namespace hyena
