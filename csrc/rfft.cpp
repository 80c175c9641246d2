#include "rfft.hpp"

#include <cmath>
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
template <class T>
class BorrowedArray {
 public:
  explicit BorrowedArray(std::size_t) {}
  T* data() { return static_cast<T*>(borrowed_work); }
  T& operator[](std::size_t i) { return data()[i]; }
};
template <>
class arr<cmplx<hyena::vec<4>>> : public BorrowedArray<cmplx<hyena::vec<4>>> {
  using BorrowedArray::BorrowedArray;
};
template <>
class arr<cmplx<hyena::vec<8>>> : public BorrowedArray<cmplx<hyena::vec<8>>> {
  using BorrowedArray::BorrowedArray;
};
template <>
class arr<cmplx<hyena::vec<16>>> : public BorrowedArray<cmplx<hyena::vec<16>>> {
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

struct RealTransform::Plan {
  explicit Plan(std::int64_t points) : passes(static_cast<std::size_t>(points)) {}
  template <int L>
  void run(Complex<L>* x, Complex<L>* work, bool forward) const {
    borrowed_work = work;
    passes.exec(reinterpret_cast<pocketfft::detail::cmplx<vec<L>>*>(x), 1.0f, forward);
  }
  pocketfft::detail::cfftp<float> passes;
};

RealTransform::RealTransform(std::int64_t size)
    : points_(size / 2), twist_(aligned_array<float>(size)), plan_(new Plan(size / 2)) {
  const double pi = 3.14159265358979323846;
  for (std::int64_t t = 0; t < points_; t++) {
    const double angle = pi * static_cast<double>(t) / static_cast<double>(size);
    twist_[2 * t] = static_cast<float>(std::cos(angle));
    twist_[2 * t + 1] = static_cast<float>(std::sin(angle));
  }
}

RealTransform::~RealTransform() = default;

template <int L>
void RealTransform::forward(Complex<L>* x, Complex<L>* work) const noexcept {
  plan_->run<L>(x, work, true);
}

template <int L>
void RealTransform::backward(Complex<L>* x, Complex<L>* work) const noexcept {
  plan_->run<L>(x, work, false);
}

template void RealTransform::forward<4>(Complex<4>*, Complex<4>*) const noexcept;
template void RealTransform::backward<4>(Complex<4>*, Complex<4>*) const noexcept;
#if defined(__AVX2__)
template void RealTransform::forward<8>(Complex<8>*, Complex<8>*) const noexcept;
template void RealTransform::backward<8>(Complex<8>*, Complex<8>*) const noexcept;
#endif
#if defined(__AVX512F__)
template void RealTransform::forward<16>(Complex<16>*, Complex<16>*) const noexcept;
template void RealTransform::backward<16>(Complex<16>*, Complex<16>*) const noexcept;
#endif

std::shared_ptr<const RealTransform> transform_plan(std::int64_t size) {
  static std::mutex lock;
  static std::map<std::int64_t, std::shared_ptr<const RealTransform>> plans;
  const std::lock_guard<std::mutex> hold(lock);
  std::shared_ptr<const RealTransform>& plan = plans[size];
  if (!plan) plan = std::make_shared<const RealTransform>(size);
  return plan;
}

}  // namespace hyena
