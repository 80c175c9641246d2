// Changes of layout between token rows, channels and tiles.
#include "bind/tile_arrays.hpp"

using namespace hyena;

namespace {

void check_channels(const std::string& op, const FloatArray& z, const TileView& view, std::int64_t channels) {
  if (channels < 1 || tile_groups(channels) != view.groups)
    reject(op, "z has shape " + shape_text(z) + " but needs " + std::to_string(tile_groups(channels)) + " groups for " +
                   std::to_string(channels) + " channels");
}

FloatArray rows_to_tiles_py(const FloatArray& x, const MaybeArray& out, int threads) {
  const ConstRows from = rows("rows_to_tiles", "x", x, -1, -1);
  FloatArray z = out_tiles("rows_to_tiles", out, tile_groups(from.cols), from.rows);
  const TileView to = tiles("rows_to_tiles", "out", z);
  const int team = thread_count("rows_to_tiles", threads);
  const py::gil_scoped_release release;
  rows_to_tiles(from, to, team);
  return z;
}

FloatArray tiles_to_rows_py(const FloatArray& z, std::int64_t channels, MaybeArray out, int threads) {
  const TileView from = tiles("tiles_to_rows", "z", z);
  check_channels("tiles_to_rows", z, from, channels);
  FloatArray x = output(out, from.length, channels);
  const Rows to = writable_rows("tiles_to_rows", "out", x, from.length, channels);
  const int team = thread_count("tiles_to_rows", threads);
  const py::gil_scoped_release release;
  tiles_to_rows(from, to, team);
  return x;
}

FloatArray channels_to_tiles_py(const FloatArray& x, const MaybeArray& out, int threads) {
  const ConstRows from = rows("channels_to_tiles", "x", x, -1, -1);
  FloatArray z = out_tiles("channels_to_tiles", out, tile_groups(from.rows), from.cols);
  const TileView to = tiles("channels_to_tiles", "out", z);
  const int team = thread_count("channels_to_tiles", threads);
  const py::gil_scoped_release release;
  channels_to_tiles(from, to, team);
  return z;
}

FloatArray tiles_to_channels_py(const FloatArray& z, std::int64_t channels, MaybeArray out, int threads) {
  const TileView from = tiles("tiles_to_channels", "z", z);
  check_channels("tiles_to_channels", z, from, channels);
  FloatArray x = output(out, channels, from.length);
  const Rows to = writable_rows("tiles_to_channels", "out", x, channels, from.length);
  const int team = thread_count("tiles_to_channels", threads);
  const py::gil_scoped_release release;
  tiles_to_channels(from, to, team);
  return x;
}

FloatArray multiply_tiles_py(const FloatArray& a, const FloatArray& b, const MaybeArray& out, int threads) {
  const TileView left = tiles("multiply_tiles", "a", a);
  const TileView right = tiles("multiply_tiles", "b", b, left.groups, left.length);
  FloatArray product = out_tiles("multiply_tiles", out, left.groups, left.length);
  const TileView to = tiles("multiply_tiles", "out", product);
  const int team = thread_count("multiply_tiles", threads);
  const py::gil_scoped_release release;
  multiply_tiles(left, right, to, team);
  return product;
}

}  // namespace

void bind_tiles(py::module_& m) {
  const auto x = py::arg("x").noconvert(), z = py::arg("z").noconvert();
  const auto out = py::arg("out").noconvert() = py::none();
  const auto threads = py::arg("threads") = 1;
  m.def("rows_to_tiles", &rows_to_tiles_py, x, out, py::kw_only(), threads,
        "Token rows x float32 [T, C] (rows may lie any distance apart) to tiles float32 [G, T, 16],\n"
        "G = ceil(C / 16): channel c lands at [c // 16, t, c % 16], lanes without a channel are zero.\n"
        "Raises ValueError on wrong shapes.");
  m.def("tiles_to_rows", &tiles_to_rows_py, z, py::arg("channels"), out, py::kw_only(), threads,
        "Tiles z float32 [G, T, 16] to token rows float32 [T, channels]; G must be ceil(channels / 16).\n"
        "`out` may be a column slice of wider rows. Raises ValueError on wrong shapes.");
  m.def("channels_to_tiles", &channels_to_tiles_py, x, out, py::kw_only(), threads,
        "Channels x float32 [C, T] (rows may lie any distance apart) to tiles float32 [G, T, 16],\n"
        "G = ceil(C / 16), lanes without a channel zero. Raises ValueError on wrong shapes.");
  m.def("tiles_to_channels", &tiles_to_channels_py, z, py::arg("channels"), out, py::kw_only(), threads,
        "Tiles z float32 [G, T, 16] to float32 [channels, T]; G must be ceil(channels / 16).\n"
        "Raises ValueError on wrong shapes.");
  m.def("multiply_tiles", &multiply_tiles_py, py::arg("a").noconvert(), py::arg("b").noconvert(), out, py::kw_only(),
        threads, "a * b for tiles float32 [G, T, 16]; `out` may be a or b. Raises ValueError on wrong shapes.");
}
