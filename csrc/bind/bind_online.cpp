// The online convolution: filters, states and steps.
#include <algorithm>

#include "bind/tile_arrays.hpp"
#include "futurefill.hpp"
#include "onlineconv.hpp"

using namespace hyena;

namespace {

using Filter = std::shared_ptr<OnlineFilter>;
using State = std::unique_ptr<OnlineState>;

void check_counts(const std::string& op, std::int64_t horizon, std::int64_t taps) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (horizon < 1 || taps < 1 || horizon > kMost || taps > kMost)
    reject(op,
           "needs horizon and taps from 1 to 2^48, not " + std::to_string(horizon) + " and " + std::to_string(taps));
}

py::tuple tile_plan_py(std::int64_t horizon, std::int64_t taps) {
  check_counts("tile_plan", horizon, taps);
  const TilePlan plan = TilePlan::make(horizon, taps);
  return py::make_tuple(plan.horizon, plan.period, plan.kind == Kind::endless);
}

/// The array, which stays in memory as long as this is held; by whom does not matter.
std::shared_ptr<const void> held(const FloatArray& array) {
  const auto free = [](const py::object* owner) {
    const py::gil_scoped_acquire hold;
    delete owner;
  };
  return std::shared_ptr<const py::object>(new py::object(array), free);
}

Filter new_filter(std::int64_t groups, std::int64_t total) {
  if (groups < 1 || total < 1)
    reject("OnlineFilter",
           "needs groups and total from 1, not " + std::to_string(groups) + " and " + std::to_string(total));
  return std::make_shared<OnlineFilter>(groups, total);
}

void append_py(OnlineFilter& filter, const FloatArray& taps) {
  const std::string op = "append";
  const TileView view = tiles(op, "taps", taps);
  const std::int64_t known = filter.known() + view.length;
  if (view.groups != filter.groups() || view.length < 1 || known > filter.taps())
    reject(op, "taps has shape " + shape_text(taps) + " but needs [" + std::to_string(filter.groups()) + ", 1 to " +
                   std::to_string(filter.taps() - filter.known()) + ", 16]");
  if (known < std::min(filter.taps(), OnlineFilter::kHead))
    reject(op, "the first call needs at least " + std::to_string(OnlineFilter::kHead) + " taps, or all");
  filter.append(view, held(taps));
}

void check_taps(const std::string& op, const OnlineState& state, std::int64_t steps) {
  if (state.taps_for(steps) > state.filter().known())
    reject(op, "needs " + std::to_string(state.taps_for(steps)) + " taps but the filter knows " +
                   std::to_string(state.filter().known()));
}

State made_state(const Filter& filter, const TilePlan& plan, std::int64_t first_unit, std::int64_t keep,
                 const MaybeArray& future, std::vector<PastRows> past) {
  const std::string op = "OnlineState";
  TileView view{};
  if (future) view = tiles(op, "future", *future);
  if (future && view.groups != filter->groups())
    reject(op,
           "future has shape " + shape_text(*future) + " but needs " + std::to_string(filter->groups()) + " groups");
  State state;
  {
    const py::gil_scoped_release release;
    state = std::make_unique<OnlineState>(filter, plan, first_unit, keep, future ? &view : nullptr, std::move(past));
  }
  return state;
}

State new_state(const Filter& filter, std::int64_t horizon, std::int64_t first_unit, const MaybeArray& future,
                std::int64_t keep) {
  check_counts("OnlineState", horizon, filter->taps());
  if (keep < 0) reject("OnlineState", "keep is " + std::to_string(keep) + " but needs to be at least 0");
  const TilePlan plan = TilePlan::make(horizon, filter->taps());
  if (plan.taps() > filter->known() && filter->taps() > filter->known())
    reject("OnlineState", "horizon " + std::to_string(horizon) + " needs " + std::to_string(plan.taps()) +
                              " taps but the filter knows " + std::to_string(filter->known()));
  const bool endless = plan.kind == Kind::endless;
  return made_state(filter, plan, first_unit, endless && keep > 0 ? keep + 2 * plan.period : 0, future, {});
}

State rolling_py(const Filter& filter, std::int64_t first_unit, std::int64_t period, std::int64_t longest,
                 std::int64_t horizon, std::int64_t base, const std::vector<FloatArray>& past, const MaybeArray& future,
                 std::int64_t keep) {
  const std::string op = "rolling";
  check_counts(op, horizon, filter->taps());
  const bool direct = period == kBase && longest == kBase;
  constexpr std::int64_t kLeast = 2 * kBase, kMost = std::int64_t{1} << 16;
  if ((period < kLeast && !direct) || longest < period || longest > kMost || tile_ceil(period) != period ||
      tile_ceil(longest) != longest || base < 0 || keep < 0)
    reject(op, "needs powers of two 32 <= period <= longest <= 65536, base and keep >= 0, not " +
                   std::to_string(period) + ", " + std::to_string(longest) + ", " + std::to_string(base) + ", " +
                   std::to_string(keep));
  std::vector<PastRows> pieces;
  std::int64_t rows = 0;
  for (auto piece = past.rbegin(); piece != past.rend(); ++piece) {
    const TileView view = tiles(op, "past", *piece);
    if (view.groups != filter->groups())
      reject(op, "past has shape " + shape_text(*piece) + " but needs " + std::to_string(filter->groups()) + " groups");
    rows += view.length;
    if (view.length > 0) pieces.insert(pieces.begin(), {view, -rows, held(*piece)});
  }
  if (rows > base) reject(op, "past has " + std::to_string(rows) + " rows but base is " + std::to_string(base));
  const TilePlan plan{direct ? Kind::direct : Kind::rolling, horizon, period, longest, base};
  const std::int64_t held_rows = keep + longest + std::max(longest, filter->taps() - 1);
  return made_state(filter, plan, first_unit, keep > 0 ? held_rows : 0, future, std::move(pieces));
}

FloatArray inputs_py(const OnlineState& state, std::int64_t first, std::int64_t last) {
  if (first < state.origin() || last < first || last > state.position())
    reject("inputs", "[" + std::to_string(first) + ", " + std::to_string(last) + ") is not within [" +
                         std::to_string(state.origin()) + ", " + std::to_string(state.position()) + ")");
  const std::int64_t G = state.filter().groups();
  FloatArray rows = new_tiles(G, last - first);
  const TileView to = tiles("inputs", "out", rows);
  const py::gil_scoped_release release;
  for (std::int64_t g = 0; g < G && last > first; g++) state.copy_inputs(g, first, last, to.group(g));
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
  const TilePlan& plan = state.plan();
  const std::int64_t behind = plan.longest + std::max(plan.longest, state.filter().taps() - 1);
  const bool enough = first == 0 || (plan.kind != Kind::closed && first > 0 && rows.length >= behind);
  if (state.position() != 0 || !enough || rows.length > plan.horizon - first || rows.groups != state.filter().groups())
    reject("resume", "needs a new state and inputs that one of its kind can hold, not " + shape_text(inputs) +
                         " from " + std::to_string(first) + " on");
  check_taps("resume", state, first + rows.length);
  const py::gil_scoped_release release;
  state.resume(first, rows);
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
    check_taps(op, *states[b], counts[b]);
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
        "(horizon, period, endless) of an online convolution with room for `horizon` steps of a filter of\n"
        "`taps` taps: the horizon rounded up to what the tiles cover, the period after which tiles repeat,\n"
        "and whether the filter is so short that they do for ever. Raises ValueError below 1.");
  m.def("future_fill", &future_fill_py, py::arg("z").noconvert(), py::arg("taps").noconvert(),
        py::arg("out").noconvert(), py::arg("ahead") = 0, py::kw_only(), threads,
        "Adds to out float32 [G, T, 16] what past rows z [G, P, 16] contribute to future outputs:\n"
        "out[j] += sum over m of z[m] taps[ahead + P + j - m]. taps [G, K, 16] are all the filter has, or\n"
        "its first ahead + P + T. `ahead` counts the rows between the last of z and the first of out.\n"
        "(Agarwal et al. 2024, FutureFill.) Raises ValueError on wrong shapes.");
  py::class_<OnlineFilter, Filter>(m, "OnlineFilter", py::module_local(),
                                   "One convolution's taps prepared for online_conv, shared by states.\n"
                                   "OnlineFilter(groups, total): a filter of `total` taps, none of them known yet.\n"
                                   "Raises ValueError below 1.")
      .def(py::init(&new_filter), py::arg("groups"), py::arg("total"))
      .def("append", &append_py, py::arg("taps").noconvert(),
           "The next taps float32 [G, n, 16], which must not be written to afterwards: the first 128 (or all)\n"
           "at least in the first call. Not from two threads at once. Raises ValueError on wrong shapes.")
      .def(
          "prepare",
          [](const OnlineFilter& f, std::int64_t largest, int threads) {
            if (largest < 1 || largest > f.known())
              reject("prepare",
                     "largest is " + std::to_string(largest) + " but " + std::to_string(f.known()) + " taps are known");
            const int team = thread_count("prepare", threads);
            const py::gil_scoped_release release;
            f.prepare(largest, team);
          },
          py::arg("largest"), py::kw_only(), threads,
          "Makes the transforms for tiles of up to `largest` rows now, not in the steps that need them.\n"
          "Raises ValueError if it is more than there are taps.")
      .def_property_readonly("groups", &OnlineFilter::groups)
      .def_property_readonly("taps", &OnlineFilter::taps)
      .def_property_readonly("known", &OnlineFilter::known, "Taps that were appended.")
      .def_property_readonly("nbytes", &OnlineFilter::nbytes);
  py::class_<OnlineState>(m, "OnlineState", py::module_local(),
                          "One sequence in one convolution, from a base position on; positions count from it.\n"
                          "OnlineState(filter, horizon, first_unit, future=None, keep=0): room for `horizon` steps,\n"
                          "or for any number where tile_plan says endless; future float32 [G, F, 16] is what the\n"
                          "rows before the base add to the next F outputs (later ones: nothing). Unit first_unit + g\n"
                          "fixes when the tiles of group g are due; -1 makes those of all groups due together. Of an\n"
                          "endless one that keeps 0 rows none are dropped; else it can be rewound by `keep` at least.\n"
                          "Raises ValueError on wrong shapes.")
      .def(py::init(&new_state), py::arg("filter"), py::arg("horizon"), py::arg("first_unit"),
           py::arg("future").noconvert() = py::none(), py::arg("keep") = 0)
      .def_static("rolling_on", &rolling_py, py::arg("filter"), py::arg("first_unit"), py::arg("period"),
                  py::arg("longest"), py::arg("horizon"), py::arg("base"),
                  py::arg("past").noconvert() = std::vector<FloatArray>{}, py::arg("future").noconvert() = py::none(),
                  py::arg("keep") = 0,
                  "A state that goes on up to `horizon` steps at an even cost: what rows before the base (`past`,\n"
                  "arrays [G, P_i, 16], oldest first) and old inputs add is summed up for one period after the\n"
                  "other, a little in every step. Periods begin with `period` steps and double, up to `longest`, as\n"
                  "the sequence grows. future is what rows before those of `past` add. With a period of 16 all\n"
                  "sums are plain ones over everything before. Raises ValueError.")
      .def(
          "begin",
          [](OnlineState& s, int threads) {
            check_taps("begin", s, 1);
            const int team = thread_count("begin", threads);
            const py::gil_scoped_release release;
            s.begin(team);
          },
          py::kw_only(), threads, "Does now what else the first step has to do. Raises ValueError.")
      .def_property_readonly(
          "filter", [](const OnlineState& s) { return std::const_pointer_cast<OnlineFilter>(s.shared_filter()); })
      .def_property_readonly("position", &OnlineState::position)
      .def_property_readonly("horizon", [](const OnlineState& s) { return s.plan().horizon; })
      .def_property_readonly(
          "period", [](const OnlineState& s) { return s.plan().period; }, "Length of the first.")
      .def_property_readonly(
          "longest", [](const OnlineState& s) { return s.plan().longest; }, "Of the last ones.")
      .def_property_readonly(
          "kind",
          [](const OnlineState& s) {
            constexpr const char* names[] = {"closed", "endless", "rolling", "direct"};
            return names[static_cast<int>(s.plan().kind)];
          },
          "closed, endless, rolling or direct.")
      .def_property_readonly("room", &OnlineState::room, "Steps that can be taken.")
      .def_property_readonly("oldest", &OnlineState::oldest, "First position that rewind() can go back to.")
      .def_property_readonly("first", &OnlineState::origin, "First position whose input is held.")
      .def_property_readonly("nbytes", &OnlineState::nbytes)
      .def_property_readonly("summed", &OnlineState::summed,
                             "Work done so far for sums of the past, in points of transforms.")
      .def("taps_for", &OnlineState::taps_for, py::arg("n"), "Taps that the filter must know for n further steps.")
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
