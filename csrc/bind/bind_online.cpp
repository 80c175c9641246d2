// The online convolution: filters, states and steps.
#include <algorithm>

#include "bind/tile_arrays.hpp"
#include "futurefill.hpp"
#include "onlineconv.hpp"

using namespace hyena;

namespace {

using Filter = std::shared_ptr<OnlineFilter>;

TilePlan checked_plan(const std::string& op, std::int64_t horizon, std::int64_t taps) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (horizon < 1 || taps < 1 || horizon > kMost || taps > kMost)
    reject(op,
           "needs horizon and taps from 1 to 2^48, not " + std::to_string(horizon) + " and " + std::to_string(taps));
  return TilePlan::make(horizon, taps);
}

py::tuple tile_plan_py(std::int64_t horizon, std::int64_t taps) {
  const TilePlan plan = checked_plan("tile_plan", horizon, taps);
  return py::make_tuple(plan.horizon, plan.top(), plan.endless);
}

Filter new_filter(const FloatArray& taps, std::int64_t total, std::int64_t top, const OnlineFilter* smaller,
                  int threads) {
  const std::string op = "OnlineFilter";
  const TileView view = tiles(op, "taps", taps);
  if (total < 1 || top < 1 || tile_ceil(top) != top)
    reject(op, "needs total >= 1 and a top that tile_plan returns, not " + std::to_string(total) + " and " +
                   std::to_string(top));
  const TileView used = tiles(op, "taps", taps, view.groups, std::min(total, 2 * top));
  if (smaller != nullptr && (smaller->groups() != used.groups || smaller->taps() != total))
    reject(op, "smaller belongs to another filter");
  const int team = thread_count(op, threads);
  const py::gil_scoped_release release;
  return std::make_shared<OnlineFilter>(used, total, top, smaller, team);
}

std::unique_ptr<OnlineState> new_state(const Filter& filter, std::int64_t horizon, std::int64_t first_unit,
                                       const MaybeArray& future) {
  const std::string op = "OnlineState";
  const TilePlan plan = checked_plan(op, horizon, filter->taps());
  if (plan.top() > filter->top())
    reject(op, "horizon " + std::to_string(horizon) + " needs tiles of " + std::to_string(plan.top()) +
                   " but the filter has them up to " + std::to_string(filter->top()));
  TileView view{};
  if (future) view = tiles(op, "future", *future);
  if (future && view.groups != filter->groups())
    reject(op,
           "future has shape " + shape_text(*future) + " but needs " + std::to_string(filter->groups()) + " groups");
  const py::gil_scoped_release release;
  return std::make_unique<OnlineState>(filter, horizon, first_unit, future ? &view : nullptr);
}

FloatArray inputs_py(const OnlineState& state, std::int64_t first, std::int64_t last) {
  if (first < state.origin() || last < first || last > state.position())
    reject("inputs", "[" + std::to_string(first) + ", " + std::to_string(last) + ") is not within [" +
                         std::to_string(state.origin()) + ", " + std::to_string(state.position()) + ")");
  const std::int64_t G = state.filter().groups();
  FloatArray rows = new_tiles(G, last - first);
  const TileView to = tiles("inputs", "out", rows);
  const py::gil_scoped_release release;
  for (std::int64_t g = 0; g < G && last > first; g++)
    std::copy_n(state.input(g, first), (last - first) * kTile, to.group(g));
  return rows;
}

void rewind_py(OnlineState& state, std::int64_t position) {
  if (position < state.oldest() || position > state.position())
    reject("rewind", "position is " + std::to_string(position) + " but needs to be within [" +
                         std::to_string(state.oldest()) + ", " + std::to_string(state.position()) + "]");
  const py::gil_scoped_release release;
  state.rewind(position);
}

std::optional<FloatArray> future_py(const OnlineState& state) {
  const TileView from = state.future();
  if (from.length == 0) return std::nullopt;
  FloatArray rows = new_tiles(from.groups, from.length);
  const TileView to = tiles("future", "out", rows);
  const py::gil_scoped_release release;
  for (std::int64_t g = 0; g < from.groups; g++) std::copy_n(from.group(g), from.length * kTile, to.group(g));
  return rows;
}

void resume_py(OnlineState& state, std::int64_t first, const FloatArray& inputs) {
  const TileView rows = tiles("resume", "inputs", inputs);
  const bool enough = first == 0 || (state.plan().endless && first > 0 && rows.length >= 2 * state.plan().top());
  if (state.position() != 0 || !enough || rows.length > state.plan().horizon || rows.groups != state.filter().groups())
    reject("resume", "needs a new state and inputs that one of its kind can hold, not " + shape_text(inputs) +
                         " from " + std::to_string(first) + " on");
  const py::gil_scoped_release release;
  state.resume(first, rows);
}

void slide_py(OnlineState& state) {
  if (!state.plan().endless || state.plan().horizon < 4 * state.plan().top())
    reject("slide", "needs an endless plan with a horizon of at least 4 times its top");
  const py::gil_scoped_release release;
  state.slide();
}

/// Checks states and counts against the job; returns where the rows of each state begin and end.
std::vector<std::int64_t> checked_offsets(const std::string& op, const std::vector<OnlineState*>& states,
                                          const std::vector<std::int64_t>& counts, const GatedConv& job) {
  if (states.size() != counts.size() || states.empty())
    reject(op, std::to_string(states.size()) + " states but " + std::to_string(counts.size()) + " counts");
  std::vector<OnlineState*> sorted = states;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) reject(op, "a state appears twice");
  std::vector<std::int64_t> offsets(1, 0);
  for (std::size_t b = 0; b < states.size(); b++) {
    if (states[b] == nullptr) reject(op, "state " + std::to_string(b) + " is None");
    if (states[b]->filter().groups() != job.z.groups)
      reject(op, "z has " + std::to_string(job.z.groups) + " groups but state " + std::to_string(b) + " has " +
                     std::to_string(states[b]->filter().groups()));
    if (counts[b] < 0 || counts[b] > states[b]->room())
      reject(op, "counts[" + std::to_string(b) + "] is " + std::to_string(counts[b]) + " but the state has room for " +
                     std::to_string(states[b]->room()));
    offsets.push_back(offsets.back() + counts[b]);
  }
  if (offsets.back() != job.z.length)
    reject(op, "counts add up to " + std::to_string(offsets.back()) + " but z has " + std::to_string(job.z.length) +
                   " rows");
  return offsets;
}

FloatArray online_conv_py(const std::vector<OnlineState*>& states, const std::vector<std::int64_t>& counts,
                          const FloatArray& z, const MaybeArray& skip, const MaybeArray& pre, const MaybeArray& post,
                          const MaybeArray& out, int threads) {
  const std::string op = "online_conv";
  GatedConv job{};
  job.z = tiles(op, "z", z);
  const std::vector<std::int64_t> offsets = checked_offsets(op, states, counts, job);
  const std::int64_t G = job.z.groups, S = job.z.length;
  job.skip = skip ? floats(op, "skip", *skip, {G, kTile}) : nullptr;
  if (pre) job.pre = tiles(op, "pre", *pre, G, S);
  if (post) job.post = tiles(op, "post", *post, G, S);
  FloatArray y = out_tiles(op, out, G, S);
  job.out = tiles(op, "out", y);
  const int team = thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    online_conv(states, offsets, job, team);
  }
  return y;
}

void future_fill_py(const FloatArray& z, const FloatArray& taps, FloatArray& out, std::int64_t ahead, int threads) {
  const std::string op = "future_fill";
  const TileView from = tiles(op, "z", z), filter = tiles(op, "taps", taps);
  const TileView to = tiles(op, "out", out, from.groups, out.ndim() == 3 ? out.shape(1) : 0);
  if (filter.groups != from.groups || filter.length < 1)
    reject(op,
           "taps has shape " + shape_text(taps) + " but needs [" + std::to_string(from.groups) + ", at least 1, 16]");
  if (ahead < 0) reject(op, "ahead is " + std::to_string(ahead) + " but needs to be at least 0");
  if (!out.writeable()) reject(op, "out is read-only");
  const int team = thread_count(op, threads);
  const py::gil_scoped_release release;
  future_fill(from, filter, ahead, to, team);
}

}  // namespace

void bind_online(py::module_& m) {
  const auto threads = py::arg("threads") = 1;
  m.def("tile_plan", &tile_plan_py, py::arg("horizon"), py::arg("taps"),
        "(horizon, top, endless) of an online convolution with room for `horizon` steps of a filter of\n"
        "`taps` taps: the horizon rounded up to what the tiles cover, the size of the largest tile, and\n"
        "whether the filter is so short that the schedule goes on for ever. Raises ValueError below 1.");
  m.def("future_fill", &future_fill_py, py::arg("z").noconvert(), py::arg("taps").noconvert(),
        py::arg("out").noconvert(), py::arg("ahead") = 0, py::kw_only(), threads,
        "Adds to out float32 [G, T, 16] what past rows z [G, P, 16] contribute to future outputs:\n"
        "out[j] += sum over m of z[m] taps[ahead + P + j - m]. taps [G, K, 16] are all the filter has, or\n"
        "its first ahead + P + T. `ahead` counts the rows between the last of z and the first of out.\n"
        "(Agarwal et al. 2024, FutureFill.) Raises ValueError on wrong shapes.");
  py::class_<OnlineFilter, Filter>(m, "OnlineFilter", py::module_local(),
                                   "One convolution's taps prepared for online_conv; immutable, shared by states.\n"
                                   "OnlineFilter(taps, total, top, smaller=None): taps float32 [G, K, 16] are the\n"
                                   "first K = min(total, 2 * top) of the filter's `total`, top the largest tile\n"
                                   "(of tile_plan). What `smaller`, a filter of the same taps, holds is shared.\n"
                                   "Raises ValueError on wrong shapes.")
      .def(py::init(&new_filter), py::arg("taps").noconvert(), py::arg("total"), py::arg("top"),
           py::arg("smaller") = static_cast<OnlineFilter*>(nullptr), py::kw_only(), threads)
      .def_property_readonly("groups", &OnlineFilter::groups)
      .def_property_readonly("taps", &OnlineFilter::taps)
      .def_property_readonly("top", &OnlineFilter::top)
      .def_property_readonly("nbytes", &OnlineFilter::nbytes);
  py::class_<OnlineState>(m, "OnlineState", py::module_local(),
                          "One sequence in one convolution, from a base position on; positions count from it.\n"
                          "OnlineState(filter, horizon, first_unit, future=None): room for `horizon` steps;\n"
                          "future float32 [G, F, 16] is what the rows before the base add to the next F outputs\n"
                          "(later ones: nothing). Unit first_unit + g fixes when the tiles of group g are due;\n"
                          "-1 makes those of all groups due together. Raises ValueError on wrong shapes.")
      .def(py::init(&new_state), py::arg("filter"), py::arg("horizon"), py::arg("first_unit"),
           py::arg("future").noconvert() = py::none())
      .def_property_readonly("position", &OnlineState::position)
      .def_property_readonly("horizon", [](const OnlineState& s) { return s.plan().horizon; })
      .def_property_readonly("endless", [](const OnlineState& s) { return s.plan().endless; })
      .def_property_readonly("room", &OnlineState::room, "Steps that can be taken before a new base or slide().")
      .def_property_readonly("oldest", &OnlineState::oldest, "First position that rewind() can go back to.")
      .def_property_readonly("first", &OnlineState::origin, "First position whose input is held.")
      .def_property_readonly("nbytes", &OnlineState::nbytes)
      .def("inputs", &inputs_py, py::arg("first"), py::arg("last"),
           "A copy of the inputs (pre * z) at positions [first, last): float32 [G, last - first, 16].\n"
           "Raises ValueError if they are not held.")
      .def("rewind", &rewind_py, py::arg("position"),
           "Back to `position`: what follows has the bits it would have had without the steps taken\n"
           "since. Raises ValueError outside [oldest, position].")
      .def_property_readonly("future", &future_py, "A copy of `future`, as far as it is used, or None.")
      .def("resume", &resume_py, py::arg("first"), py::arg("inputs").noconvert(),
           "A new state to where another is that was made with the same arguments and holds `inputs`\n"
           "float32 [G, n, 16] from position `first` on: the same bits from there on. Raises ValueError.")
      .def("slide", &slide_py, "Forgets old inputs of an endless schedule to make room. Raises ValueError.")
      .def("fork", [](const OnlineState& s) {
        const py::gil_scoped_release release;
        return std::make_unique<OnlineState>(s);
      });
  m.def("online_conv", &online_conv_py, py::arg("states"), py::arg("counts"), py::arg("z").noconvert(),
        py::arg("skip").noconvert() = py::none(), py::arg("pre").noconvert() = py::none(),
        py::arg("post").noconvert() = py::none(), py::arg("out").noconvert() = py::none(), py::kw_only(), threads,
        "The next counts[b] steps of states[b]: rows of z float32 [G, S, 16], S = sum of counts, belong\n"
        "to the states in order. Returns post * (c + skip * w), w = pre * z, as long_conv does, c being\n"
        "the convolution over all rows of the state's sequence: [G, S, 16]. The bits of a row depend on\n"
        "its own sequence alone, not on threads, on how its steps are split into calls, or on what else\n"
        "is in the call. `out` may be the very rows of z, pre or post. Raises ValueError on wrong shapes\n"
        "and when a state has no room.");
}
