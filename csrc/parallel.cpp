#include "parallel.hpp"

#include <atomic>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace hyena {
namespace {

std::atomic<bool> in_forked_child{false};

#if defined(__unix__) || defined(__APPLE__)
const int registered = pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true); });
#endif

}  // namespace

bool forked() noexcept { return in_forked_child.load(std::memory_order_relaxed); }

}  // namespace hyena
