#include "bind/bind.hpp"
#include "parallel.hpp"
#include "simd.hpp"

PYBIND11_MODULE(HYENA_MODULE, m, py::mod_gil_not_used()) {
  m.attr("build") = HYENA_BUILD;
  m.attr("lanes") = hyena::kLanes;
  m.attr("tile") = hyena::kTile;
#ifdef _OPENMP
  m.attr("openmp") = true;
#else
  m.attr("openmp") = false;
#endif
  m.def("forked", &hyena::forked, "Whether this process was forked after the kernels were loaded.");
  bind_tiles(m);
  bind_conv(m);
  bind_dense(m);
  bind_tokenwise(m);
  bind_attention(m);
  bind_filter(m);
  bind_online(m);
  bind_scan(m);
  bind_modal(m);
}
