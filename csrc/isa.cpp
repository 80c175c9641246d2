// Extension _isa: what there is to know of the CPU before a build of the kernels is loaded.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace py = pybind11;

namespace {

#if defined(__x86_64__)
/// Whether the CPU multiplies tiles of bfloat16 and this process may: Linux is asked for the tiles' state.
bool multiplies_tiles() {
#if defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBfloat16) == 0 || (d & kTiles) == 0) return false;
  constexpr long kAskForState = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
  return false;
#endif
}
#endif

bool runs(const std::string& build) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (build == "amx") return runs("avx512") && __builtin_cpu_supports("avx512bf16") && multiplies_tiles();
  if (build == "avx2") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  }
  if (build == "avx512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  }
#endif
  return build == "baseline" || build == "neon";
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t to = std::min(list.find(',', from), list.size());
    parts.push_back(list.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

/// How many `pause` instructions take so long: some 3,500 or 20,000 for 200 us, from one CPU to another. 0 where there
/// is no such instruction.
std::int64_t pauses(double microseconds) {
#if defined(__x86_64__)
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 5, kPauses = 100;
  double least = 1e9;
  for (int i = 0; i < kTries; i++) {
    const Clock::time_point begin = Clock::now();
    for (int k = 0; k < kPauses; k++) __builtin_ia32_pause();
    least = std::min(least, std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(microseconds / least * kPauses));
#else
  static_cast<void>(microseconds);
  return 0;
#endif
}

}  // namespace

PYBIND11_MODULE(_isa, m, py::mod_gil_not_used()) {
  m.def("built", [] { return split(HYENA_BUILDS); }, "Names of the kernel builds in this package, slowest first.");
  m.def("runs", &runs, py::arg("build"), "Whether this CPU can execute the named build.");
  m.def("pauses", &pauses, py::arg("microseconds"),
        "How many of the instructions that threads spin with take so long here; 0 where there are none.");
}
