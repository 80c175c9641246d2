// The decode step: recording a tape, and running it on states.
#include <algorithm>

#include "bind/cache_arrays.hpp"
#include "bind/layer_parts.hpp"
#include "rotary.hpp"
#include "step.hpp"

using namespace hyena;

namespace {

/// A cache, the slot to write and the first one that may be seen.
using CacheParts = std::tuple<FloatArray, FloatArray, std::int64_t, std::int64_t>;

class RecordedTape;

/// What one sequence remembers of Hyena layers, in the order of the tape: it is checked once for many steps.
struct StepSeat {
  const RecordedTape* tape;
  std::vector<ConvTail*> tails;
  std::vector<OnlineState*> convs;
  py::object kept;  // those it points to
};

/// A tape and what it refers to.
class RecordedTape {
 public:
  RecordedTape(const FloatArray& embedding, const MaybeArray& positions, std::int64_t worth) {
    const std::string op = "StepTape";
    tape_.embedding = rows(op, "embedding", embedding, -1, -1);
    tape_.positions = positions ? rows(op, "positions", *positions, -1, tape_.width()) : ConstRows{};
    if (worth < 1) reject(op, "worth is " + std::to_string(worth) + " but needs to be at least 1");
    tape_.worth = worth;
    keep(embedding, positions);
  }

  void hyena(const py::object& norm, const PackedLinear& in, const MaybeArray& in_bias, const FloatArray& taps,
             const MaybeArray& short_bias, const std::vector<MaybeArray>& skips, const PackedLinear& out,
             const MaybeArray& out_bias) {
    const std::string op = "StepTape.hyena";
    const std::int64_t D = tape_.width(), order = static_cast<std::int64_t>(skips.size()) + 1, C = (order + 1) * D;
    HyenaOp one{};
    one.order = order;
    one.taps = {floats(op, "taps", taps, {-1, C}), taps.shape(0), C, C};
    if (one.taps.rows < 1) reject(op, "taps has shape " + shape_text(taps) + " but needs at least one row");
    one.bias = short_bias ? floats(op, "short_bias", *short_bias, {C}) : nullptr;
    for (const MaybeArray& skip : skips)
      one.skips.push_back(skip ? floats(op, "skips", *skip, {tile_groups(D), kTile}) : nullptr);
    require_product(op, "into", in, D, C);
    require_product(op, "out", out, D, D);
    tape_.add_hyena(norm_of(op, norm), dense(op, "in_bias", in, in_bias), std::move(one),
                    dense(op, "out_bias", out, out_bias));
    keep(norm, in_bias, taps, short_bias, skips, out_bias);
  }

  void attention(const py::object& norm, const PackedLinear& qkv, const MaybeArray& qkv_bias, std::int64_t heads,
                 const std::optional<std::pair<double, std::int64_t>>& rotary, std::int64_t window,
                 const PackedLinear& out, const MaybeArray& out_bias) {
    const std::string op = "StepTape.attention";
    const std::int64_t D = tape_.width();
    if (heads < 1 || D % heads != 0)
      reject(op, "heads is " + std::to_string(heads) + ", which does not divide " + std::to_string(D));
    if (window < 0) reject(op, "window is " + std::to_string(window) + " but needs to be at least 0");
    KeysOp keys{heads, D / heads, {}, 0};
    if (rotary) {
      const auto [base, dims] = *rotary;
      if (!(base > 0) || dims < 2 || dims % 2 != 0 || dims > keys.width)
        reject(op, "rotary needs a positive base and an even number of dims, at most " + std::to_string(keys.width));
      keys.rates = rotary_rates(base, dims);
    }
    require_product(op, "qkv", qkv, D, 3 * D);
    require_product(op, "out", out, D, D);
    tape_.add_attention(norm_of(op, norm), dense(op, "qkv_bias", qkv, qkv_bias), std::move(keys), window,
                        dense(op, "out_bias", out, out_bias));
    keep(norm, qkv_bias, out_bias);
  }

  void mlp(const py::object& norm, const PackedLinear& up, const MaybeArray& up_bias, const std::string& kind,
           const PackedLinear& down, const MaybeArray& down_bias) {
    const std::string op = "StepTape.mlp";
    const Mlp mlp(op, tape_.width(), up, up_bias, kind, down, down_bias);
    tape_.add_mlp(norm_of(op, norm), mlp.up, mlp.act, mlp.down);
    keep(norm, up_bias, down_bias);
  }

  void identity(const py::object& norm) {
    tape_.ops.emplace_back(AddNormOp{norm_of("StepTape.identity", norm)});
    keep(norm);
  }

  void head(const py::object& norm, const PackedLinear& weight, const MaybeArray& bias) {
    const std::string op = "StepTape.head";
    require_product(op, "head", weight, tape_.width(), weight.out_features());
    tape_.add_head(norm_of(op, norm), dense(op, "bias", weight, bias));
    keep(norm, bias);
    ready_ = true;
  }

  std::unique_ptr<StepSeat> seat(const std::vector<ConvTail*>& tails, const std::vector<OnlineState*>& convs,
                                 const py::object& kept) const {
    const std::string op = "StepTape.seat";
    if (tails.size() != tape_.tails || convs.size() != tape_.convs)
      reject(op, std::to_string(tails.size()) + " tails and " + std::to_string(convs.size()) +
                     " convolutions, but the tape has " + std::to_string(tape_.tails) + " and " +
                     std::to_string(tape_.convs));
    for (const StepOp& one : tape_.ops)
      if (const auto* hyena = std::get_if<HyenaOp>(&one)) require_hyena(op, *hyena, tails, convs);
    require_distinct(op, tails);
    require_distinct(op, convs);
    return std::make_unique<StepSeat>(StepSeat{this, tails, convs, kept});
  }

  FloatArray run(const std::vector<std::int64_t>& tokens, const std::vector<std::int64_t>& positions,
                 const std::vector<const StepSeat*>& seats, const std::vector<std::vector<CacheParts>>& caches,
                 int threads) const {
    const std::string op = "StepTape.run";
    if (!ready_) reject(op, "the tape has no head yet");
    const StepBatch batch = checked(op, tokens, positions, seats, caches);
    FloatArray logits({batch.size(), tape_.logits_width()});
    const Rows to{logits.mutable_data(), batch.size(), tape_.logits_width(), tape_.logits_width()};
    thread_count(op, threads);
    {
      const py::gil_scoped_release release;
      tape_.run(batch, to, threads);
    }
    return logits;
  }

 private:
  template <class... Objects>
  void keep(const Objects&... objects) {
    (kept_.append(objects), ...);
  }

  /// The norm in memory of its own: the tape points to it.
  const Norm* norm_of(const std::string& op, const py::object& weights) {
    if (ready_) reject(op, "the tape has its head already");
    norms_.push_back(std::make_unique<Norm>(weights.cast<const NormWeights&>().norm(op, tape_.width())));
    return norms_.back().get();
  }

  static void require_product(const std::string& op, const char* name, const PackedLinear& weight, std::int64_t K,
                              std::int64_t N) {
    if (weight.in_features() != K || weight.out_features() != N)
      reject(op, std::string(name) + " is [" + std::to_string(weight.out_features()) + ", " +
                     std::to_string(weight.in_features()) + "] but needs [" + std::to_string(N) + ", " +
                     std::to_string(K) + "]");
  }

  StepBatch checked(const std::string& op, const std::vector<std::int64_t>& tokens,
                    const std::vector<std::int64_t>& positions, const std::vector<const StepSeat*>& seats,
                    const std::vector<std::vector<CacheParts>>& caches) const {
    const std::size_t B = tokens.size();
    if (B == 0 || positions.size() != B || seats.size() != B || caches.size() != B)
      reject(op, std::to_string(B) + " tokens, " + std::to_string(positions.size()) + " positions, " +
                     std::to_string(seats.size()) + " seats, " + std::to_string(caches.size()) + " lists of caches");
    StepBatch batch{tokens, positions, std::vector<ConvTail*>(tape_.tails * B),
                    std::vector<OnlineState*>(tape_.convs * B), std::vector<CacheSlot>(tape_.caches * B)};
    for (std::size_t b = 0; b < B; b++) {
      require_row(op, "token", tokens[b], tape_.embedding.rows);
      if (tape_.positions.data != nullptr) require_row(op, "position", positions[b], tape_.positions.rows);
      if (seats[b] == nullptr || seats[b]->tape != this) reject(op, "a seat is of another tape");
      if (caches[b].size() != tape_.caches) reject(op, "a list of caches is of another tape");
      for (std::size_t i = 0; i < tape_.tails; i++) batch.tails[i * B + b] = ready(op, seats[b]->tails[i]);
      for (std::size_t i = 0; i < tape_.convs; i++) batch.convs[i * B + b] = ready(op, seats[b]->convs[i]);
      for (std::size_t i = 0; i < tape_.caches; i++) batch.caches[i * B + b] = slot_of(op, caches[b][i]);
    }
    for (const StepOp& one : tape_.ops)
      if (const auto* keys = std::get_if<KeysOp>(&one)) require_cache(op, *keys, batch);
    if (B > 1) {
      require_distinct(op, batch.tails);
      require_distinct(op, batch.convs);
    }
    std::vector<const float*> keys;
    for (const CacheSlot& one : batch.caches) keys.push_back(one.cache.keys);
    require_distinct(op, std::move(keys));
    return batch;
  }

  static ConvTail* ready(const std::string& op, ConvTail* tail) {
    if (!tail->known()) reject(op, "the rows of a tail are not known");
    return tail;
  }

  static OnlineState* ready(const std::string& op, OnlineState* conv) {
    if (conv->room() < 1) reject(op, "a convolution has no room");
    return conv;
  }

  static CacheSlot slot_of(const std::string& op, const CacheParts& parts) {
    auto [keys, values, slot, start] = parts;
    const CacheOf<const float> cache = cache_of(op, keys, values);
    if (slot < 0 || slot >= cache.slots || start < 0 || start > slot)
      reject(op, "slot " + std::to_string(slot) + ", start " + std::to_string(start) + " do not fit a cache of " +
                     std::to_string(cache.slots));
    return {{keys.mutable_data(), values.mutable_data(), cache.heads, cache.slots, cache.width}, slot, start};
  }

  void require_hyena(const std::string& op, const HyenaOp& hyena, const std::vector<ConvTail*>& tails,
                     const std::vector<OnlineState*>& convs) const {
    const ConvTail* const tail = tails[hyena.tail];
    if (tail == nullptr || tail->rows().cols != hyena.taps.cols || tail->inputs().cols != tape_.width())
      reject(op, "a tail belongs to another layer");
    if (tail->rows().rows != hyena.taps.rows - 1) reject(op, "a tail is of other taps");
    for (std::size_t o = 0; o < hyena.skips.size(); o++) {
      const OnlineState* const conv = convs[hyena.conv + o];
      if (conv == nullptr || conv->filter().groups() != tile_groups(tape_.width()))
        reject(op, "a convolution belongs to another layer");
    }
  }

  static void require_cache(const std::string& op, const KeysOp& keys, const StepBatch& batch) {
    const std::size_t B = batch.tokens.size();
    for (std::size_t b = 0; b < B; b++) {
      const CacheOf<float>& cache = batch.caches[keys.cache * B + b].cache;
      if (cache.heads != keys.heads || cache.width != keys.width) reject(op, "a cache belongs to another layer");
    }
  }

  static void require_row(const std::string& op, const char* name, std::int64_t row, std::int64_t rows) {
    if (row < 0 || row >= rows)
      reject(op,
             std::string(name) + " is " + std::to_string(row) + " but needs to be in 0 .. " + std::to_string(rows - 1));
  }

  template <class T>
  static void require_distinct(const std::string& op, std::vector<T*> found) {
    std::sort(found.begin(), found.end());
    if (std::adjacent_find(found.begin(), found.end()) != found.end()) reject(op, "a state appears twice");
  }

  StepTape tape_{};
  std::vector<std::unique_ptr<Norm>> norms_;
  py::list kept_;
  bool ready_ = false;
};

template <class T>
std::vector<T*> pointers(const std::vector<py::object>& objects) {
  std::vector<T*> found;
  for (const py::object& one : objects) found.push_back(one.is_none() ? nullptr : py::cast<T*>(one));
  return found;
}

}  // namespace

void bind_step(py::module_& m) {
  const auto norm = py::arg("norm"), packed = py::arg("out");
  py::class_<StepSeat>(m, "StepSeat", py::module_local(), "What one state remembers, see StepTape.seat.");
  py::class_<RecordedTape>(
      m, "StepTape", py::module_local(),
      "The decode step of a model, recorded layer by layer: StepTape(embedding, positions), then\n"
      "its layers in order, then head(), then run() as often as wanted. embedding float32 [V, D];\n"
      "positions float32 [L, D] or None. Arrays must not change. All raise ValueError on wrong\n"
      "shapes.")
      .def(py::init<const FloatArray&, const MaybeArray&, std::int64_t>(), py::arg("embedding").noconvert(),
           py::arg("positions").noconvert(), py::arg("worth"))
      .def("hyena", &RecordedTape::hyena, norm, py::arg("into"), py::arg("in_bias").noconvert(),
           py::arg("taps").noconvert(), py::arg("short_bias").noconvert(), py::arg("skips"), packed,
           py::arg("out_bias").noconvert(),
           "x += a Hyena operator of norm(x), of order 1 + len(skips): NormWeights; the projection to (order + 1) D;\n"
           "taps float32 [K, (order + 1) D] and a bias of the short convolution; skips float32 [G, 16] or None of\n"
           "every long one; the projection back. Of a state: a ConvTail, and an OnlineState for each skip.")
      .def("attention", &RecordedTape::attention, norm, py::arg("qkv"), py::arg("qkv_bias").noconvert(),
           py::arg("heads"), py::arg("rotary"), py::arg("window"), packed, py::arg("out_bias").noconvert(),
           "x += causal attention of norm(x): rotary (base, dims) or None; window 0 for none. Of a state: keys and\n"
           "values as for kv_append, the slot to write, the first slot that may be seen.")
      .def("mlp", &RecordedTape::mlp, norm, py::arg("up"), py::arg("up_bias").noconvert(), py::arg("kind"),
           py::arg("down"), py::arg("down_bias").noconvert(), "As add_mlp.")
      .def("identity", &RecordedTape::identity, norm, "x += norm(x).")
      .def("head", &RecordedTape::head, norm, py::arg("weight"), py::arg("bias").noconvert(),
           "The last: logits of norm(x).")
      .def(
          "seat",
          [](const py::object& tape, const std::vector<py::object>& tails, const std::vector<py::object>& convs) {
            // Not keep_alive, which loses the seat and all it holds where it finds no memory.
            return tape.cast<const RecordedTape&>().seat(pointers<ConvTail>(tails), pointers<OnlineState>(convs),
                                                         py::make_tuple(tape, py::cast(tails), py::cast(convs)));
          },
          py::arg("tails"), py::arg("convs"),
          "What one state remembers of Hyena layers, for `run`: a ConvTail of each, and an OnlineState of every\n"
          "convolution, in the order of the layers and all different.")
      .def("run", &RecordedTape::run, py::arg("tokens"), py::arg("positions"), py::arg("seats"),
           py::arg("caches").noconvert(), py::kw_only(), py::arg("threads") = 1,
           R"(One token of each of B sequences through the model: logits float32 [B, V].

Tails and convolutions take the token in; of a cache, one slot more is in use. The bits of a row are those of
the kernels one by one: they depend neither on threads nor on the other sequences.

Args:
    tokens, positions: of each sequence.
    seats: of each, made by `seat`; all different.
    caches: of each a list in the order of its attention layers; all different.
    threads: at most this many threads work, fewer where the work is too little.

Raises:
    ValueError: parts that do not fit the tape, no room in a convolution, or a tail without rows.)");
}
