// Extension _isa: which of the kernel builds in this package the CPU can run.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
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

}  // namespace

PYBIND11_MODULE(_isa, m, py::mod_gil_not_used()) {
  m.def("built", [] { return split(HYENA_BUILDS); }, "Names of the kernel builds in this package, slowest first.");
  m.def("runs", &runs, py::arg("build"), "Whether this CPU can execute the named build.");
}
