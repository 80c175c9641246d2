#include "rowconv.hpp"

#include "modular_leaves.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

constexpr int L = kLanes;

/// A row of floats as vectors. Its last, partial one is worked on in a copy filled up with zeros:
/// masks in the passes would cost a tenth of their time.
class Vectors {
 public:
  Vectors(const float* p, std::int64_t length, float* copy) : p_(p), whole_(length / L), copy_(copy) {
    if (p != nullptr) store(copy, load_part(p + whole_ * L, length % L));
  }
  explicit operator bool() const { return p_ != nullptr; }
  vf operator[](std::int64_t r) const { return load(r < whole_ ? p_ + r * L : copy_); }

 private:
  const float* p_;
  std::int64_t whole_;
  const float* copy_;
};

}  // namespace

std::shared_ptr<const ModularPlan> row_plan(std::int64_t size) { return modular_plan(size, L); }

void transform_row(const ModularPlan& plan, const float* taps, std::int64_t length, float* h) noexcept {
  const float scale = 1.0f / static_cast<float>(plan.points());
  alignas(kCacheLine) float copy[L];
  const Vectors w(taps, length, copy);
  modular_transform<L>(plan, LaneLeaf<L>{plan}, h, pieces_of(length, L), [=](std::int64_t r) { return scale * w[r]; });
}

void convolve_row(const ModularPlan& plan, const GatedRow& row, const float* h, float* x) noexcept {
  alignas(kCacheLine) float copies[4][L];
  const std::int64_t count = pieces_of(row.length, L), whole = row.length / L, rest = row.length % L;
  const Vectors z(row.z, row.length, copies[0]), pre(row.pre, row.length, copies[1]);
  const Vectors post(row.post, row.length, copies[2]);
  float *const out = row.out, *const last_out = copies[3];
  const vf skip = splat<L>(row.skip);
  const auto w = [=](std::int64_t r) { return pre ? pre[r] * z[r] : z[r]; };
  modular_product<L>(plan, LaneLeaf<L>{plan}, x, h, count, w, row.start / L, count, [=](std::int64_t r, vf c) {
    c = fma(skip, w(r), c);
    store(r < whole ? out + r * L : last_out, post ? post[r] * c : c);
  });
  if (rest > 0) store_part(out + whole * L, load(last_out), rest);
}

void row_spectrum(ConstRows taps, Rows out, int threads) {
  const auto plan = row_plan(out.cols);
  parallel_for(out.rows, threads,
               [&](std::int64_t c, int) { transform_row(*plan, taps.row(c), taps.cols, out.row(c)); });
}

void row_conv(const GatedRows& job, ConstRows spectrum, int threads) {
  const auto plan = row_plan(spectrum.cols);
  const Scratch x(spectrum.cols, workers(job.z.rows, threads));
  parallel_for(job.z.rows, threads, [&](std::int64_t c, int worker) {
    const GatedRow row{job.z.row(c),
                       job.pre.data == nullptr ? nullptr : job.pre.row(c),
                       job.post.data == nullptr ? nullptr : job.post.row(c),
                       job.skip == nullptr ? 0.0f : job.skip[c],
                       job.out.row(c),
                       0,
                       job.z.cols};
    convolve_row(*plan, row, spectrum.row(c), x.of(worker));
  });
}

}  // namespace hyena
