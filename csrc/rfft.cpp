#include "rfft.hpp"

#include <map>
#include <mutex>

#include HYENA_POCKETFFT_HEADER

namespace {
/// Where the transform that this thread is running keeps its intermediate results.
thread_local void* borrowed_work = nullptr;
}  // namespace

// pocketfft allocates a work array in every transform: page faults at large sizes, and an
// exception inside a parallel region when memory is short. For our vectors it takes the caller's.
namespace pocketfft {
namespace detail {
template <class V>
class BorrowedArray {
 public:
  explicit BorrowedArray(std::size_t) {}
  V* data() { return static_cast<V*>(borrowed_work); }
};
template <>
class arr<hyena::vec<4>> : public BorrowedArray<hyena::vec<4>> {
  using BorrowedArray::BorrowedArray;
};
template <>
class arr<hyena::vec<8>> : public BorrowedArray<hyena::vec<8>> {
  using BorrowedArray::BorrowedArray;
};
template <>
class arr<hyena::vec<16>> : public BorrowedArray<hyena::vec<16>> {
  using BorrowedArray::BorrowedArray;
};
}  // namespace detail
}  // namespace pocketfft

namespace hyena {

std::int64_t transform_size(std::int64_t minimum) {
  if (minimum > kLargestTransform) return 0;
  std::int64_t best = kLargestTransform;
  for (const std::int64_t odd : {1, 3, 5}) {
    std::int64_t size = 2 * odd;
    while (size < minimum) size *= 2;
    if (size < best) best = size;
  }
  return best;
}

struct Rfft::Plan {
  explicit Plan(std::int64_t size) : passes(static_cast<std::size_t>(size)) {}
  pocketfft::detail::rfftp<float> passes;
};

Rfft::Rfft(std::int64_t size) : size_(size), plan_(new Plan(size)) {}
Rfft::~Rfft() = default;

template <int L>
void Rfft::forward(vec<L>* x, vec<L>* work) const noexcept {
  borrowed_work = work;
  plan_->passes.exec(x, 1.0f, true);
}

template <int L>
void Rfft::backward(vec<L>* x, vec<L>* work) const noexcept {
  borrowed_work = work;
  plan_->passes.exec(x, 1.0f, false);
}

template void Rfft::forward<4>(vec<4>*, vec<4>*) const noexcept;
template void Rfft::backward<4>(vec<4>*, vec<4>*) const noexcept;
#if defined(__AVX2__)
template void Rfft::forward<8>(vec<8>*, vec<8>*) const noexcept;
template void Rfft::backward<8>(vec<8>*, vec<8>*) const noexcept;
#endif
#if defined(__AVX512F__)
template void Rfft::forward<16>(vec<16>*, vec<16>*) const noexcept;
template void Rfft::backward<16>(vec<16>*, vec<16>*) const noexcept;
#endif

std::shared_ptr<const Rfft> rfft_plan(std::int64_t size) {
  static std::mutex lock;
  static std::map<std::int64_t, std::shared_ptr<const Rfft>> plans;
  const std::lock_guard<std::mutex> hold(lock);
  std::shared_ptr<const Rfft>& plan = plans[size];
  if (!plan) plan = std::make_shared<const Rfft>(size);
  return plan;
}

}  // namespace hyena
