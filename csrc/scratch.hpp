// Working memory of kernels, kept between calls.
#pragma once

#include <mutex>
#include <vector>

#include "aligned.hpp"

namespace hyena {

/// Blocks that those who are done with them leave to others: the system hands out memory filled with
/// zeros, page by page, which took a third of the time of a convolution of 131,072 tokens. Locked.
class BlockPool {
 public:
  /// Keeps at most `most` floats that nobody uses; what was left first goes first.
  explicit BlockPool(std::int64_t most) : most_(most) {}

  /// One of `floats` floats that was left here, else a new one. Throws std::bad_alloc.
  AlignedArray<float> take(std::int64_t floats);
  /// Gives the block back to the system where there is no memory to note it.
  void leave(std::int64_t floats, AlignedArray<float> data) noexcept;
  /// Keeps nothing any more: arrays that outlive a pass would else hold what it has left.
  void close();

 private:
  struct Block {
    std::int64_t floats;
    AlignedArray<float> data;
  };

  std::mutex lock_;
  std::int64_t most_;
  std::vector<Block> blocks_;  // oldest first
  std::int64_t kept_ = 0;      // floats in them
};

/// `floats` floats for each of `team` workers, taken before their threads start from one pool for the
/// whole process and left there when the call ends.
class Scratch {
 public:
  /// Throws std::bad_alloc.
  Scratch(std::int64_t floats, int team);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* of(int worker) const { return blocks_[worker].get(); }

 private:
  std::int64_t floats_;
  std::vector<AlignedArray<float>> blocks_;
};

}  // namespace hyena
