#include "bind/arrays.hpp"

void bind_filter(py::module_& m) { (void)m; }
