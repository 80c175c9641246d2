// Buffers of float32 that start on a cache line.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace hyena {

constexpr std::size_t kCacheLine = 64;

struct FreeDeleter {
  void operator()(void* p) const noexcept { std::free(p); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

/// n elements, 64-byte aligned, not initialised. Throws std::bad_alloc.
template <class T>
AlignedArray<T> aligned_array(std::int64_t n) {
  const std::size_t bytes = (static_cast<std::size_t>(n) * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
  void* p = std::aligned_alloc(kCacheLine, bytes == 0 ? kCacheLine : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return AlignedArray<T>(static_cast<T*>(p));
}

}  // namespace hyena
