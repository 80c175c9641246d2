// Extension _isa: which of the kernel builds in this package the CPU can run.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

namespace py = pybind11;

namespace {

bool runs(const std::string& build) {
#if defined(__x86_64__)
  __builtin_cpu_init();
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
