// Working memory of kernels, kept between calls.
#pragma once

#include <vector>

#include "aligned.hpp"

namespace hyena {

/// `floats` floats for each of `team` workers, allocated before their threads start. Blocks go back
/// to one locked list when a call ends and are taken from it by the next: the system hands out
/// memory filled with zeros, which took a third of the time of a convolution of 131,072 tokens.
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
