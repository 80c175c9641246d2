// Memory in which arrays that are read together lie together.
#pragma once

#include <memory>
#include <mutex>

#include "aligned.hpp"

namespace hyena {

/// Hands out parts of large blocks, which huge pages back: a step of decode reads all the weights of a model, and
/// finds them sooner there (some 4 % of its time) than each in a block too small for such a page. Locked.
class Shelf {
 public:
  /// n floats that start on a cache line and stay while somebody holds them. Throws std::bad_alloc.
  std::shared_ptr<float[]> take(std::int64_t n) {
    if (2 * n > kBlock) return block_of(n);
    const std::lock_guard<std::mutex> hold(lock_);
    if (block_ == nullptr || used_ + n > kBlock) {
      block_ = block_of(kBlock);
      used_ = 0;
    }
    float* const at = block_.get() + used_;
    used_ += whole_lines(n);
    return {block_, at};
  }

  /// n floats by themselves. Throws std::bad_alloc.
  static std::shared_ptr<float[]> block_of(std::int64_t n) { return aligned_array<float>(n); }

 private:
  static constexpr std::int64_t kBlock = 4 * kHugePage / sizeof(float);

  std::mutex lock_;
  std::shared_ptr<float[]> block_;
  std::int64_t used_ = 0;  // floats of it
};

}  // namespace hyena
