// Buffers of float32 that start on a cache line.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "sizes.hpp"

namespace hyena {

constexpr std::size_t kCacheLine = 64, kHugePage = std::size_t{2} << 20;

/// So many floats, and what is missing to whole cache lines.
constexpr std::int64_t whole_lines(std::int64_t floats) { return round_up(floats, kCacheLine / sizeof(float)); }

struct FreeDeleter {
  void operator()(void* p) const noexcept { std::free(p); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

/// n elements, 64-byte aligned, not initialised; large ones ask for huge pages, which passes that
/// step through many places at once need (up to 1.2 times the speed). Throws std::bad_alloc.
template <class T>
AlignedArray<T> aligned_array(std::int64_t n) {
  const std::size_t wanted = n == 0 ? 1 : static_cast<std::size_t>(n) * sizeof(T);
  const std::size_t boundary = wanted < 2 * kHugePage ? kCacheLine : kHugePage;
  const std::size_t bytes = (wanted + boundary - 1) / boundary * boundary;
  void* p = std::aligned_alloc(boundary, bytes);
  if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Not for the last, partial one: it would be in memory whole.
  if (boundary == kHugePage) madvise(p, wanted / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return AlignedArray<T>(static_cast<T*>(p));
}

}  // namespace hyena
