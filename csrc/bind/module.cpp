#include "bind/bind.hpp"
#include "build.hpp"
#include "onlinefilter.hpp"
#include "parallel.hpp"
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

/// Left to itself, glibc keeps up to 64 MiB of freed arrays, and more between those in use (measured:
/// a third of a run on 160,000 tokens), so what a run takes could not be said beforehand. Arrays of
/// whole huge pages go back to the system at once; smaller ones stay for the next layer.
void bound_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
#endif
}

void bind_module(py::module_& m) {
  m.attr("build") = hyena::build_name();
  m.attr("lanes") = hyena::build_lanes();
  m.attr("tile") = hyena::kTile;
  m.attr("head_taps") = hyena::OnlineFilter::kHead;
#ifdef _OPENMP
  m.attr("openmp") = true;
#else
  m.attr("openmp") = false;
#endif
  m.def("bound_freed_memory", &bound_freed_memory,
        "Lets this process keep little of the memory that it frees, as memory plans suppose (glibc; elsewhere\n"
        "nothing changes).");
  m.def("forked", &hyena::forked, "Whether this process was forked after the kernels were loaded.");
  bind_tiles(m);
  bind_conv(m);
  bind_dense(m);
  bind_tokenwise(m);
  bind_attention(m);
  bind_filter(m);
  bind_online(m);
  bind_tail(m);
  bind_step(m);
  bind_scan(m);
  bind_modal(m);
}

}  // namespace

// A build is loaded by one of these names; all are in every build, so that this file is compiled once.
#define HYENA_MODULE(name) \
  PYBIND11_MODULE(name, m, py::mod_gil_not_used()) { bind_module(m); }
HYENA_MODULE(_kernels_baseline)
HYENA_MODULE(_kernels_avx2)
HYENA_MODULE(_kernels_avx512)
HYENA_MODULE(_kernels_amx)
HYENA_MODULE(_kernels_neon)
