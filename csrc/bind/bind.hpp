// What every binding file shares: each registers the kernels of one subject.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_tiles(py::module_& m);
void bind_conv(py::module_& m);
void bind_dense(py::module_& m);
void bind_tokenwise(py::module_& m);
void bind_attention(py::module_& m);
void bind_filter(py::module_& m);
void bind_online(py::module_& m);
void bind_tail(py::module_& m);
void bind_step(py::module_& m);
void bind_scan(py::module_& m);
void bind_modal(py::module_& m);
