#include "convtail.hpp"

#include <algorithm>

namespace hyena {
namespace {

// Rows are moved down once in so many steps.
constexpr std::int64_t kSteps = 8;

}  // namespace

RowWindow::RowWindow(std::int64_t capacity, std::int64_t cols)
    : capacity_(capacity), cols_(cols), data_(aligned_array<float>(capacity * cols)) {}

RowWindow::RowWindow(const RowWindow& other) : RowWindow(other.capacity_, other.cols_) { append(other.rows()); }

void RowWindow::make_room(std::int64_t n, std::int64_t kept) noexcept {
  if (first_ + size_ + n <= capacity_) return;
  const std::int64_t gone = std::max<std::int64_t>(0, size_ - kept);
  drop_oldest(gone);
  const float* from = data_.get() + first_ * cols_;
  std::copy(from, from + size_ * cols_, data_.get());
  first_ = 0;
}

void RowWindow::append(ConstRows x) noexcept {
  for (std::int64_t i = 0; i < x.rows; i++) {
    std::copy_n(x.row(i), cols_, next());
    advance();
  }
}

ConvTail::ConvTail(std::int64_t before, std::int64_t channels, std::int64_t width, std::int64_t kept)
    : before_(before), kept_(kept), rows_(before + kSteps, channels), inputs_(2 * kept, width) {
  std::fill_n(rows_.next(), before * channels, 0.0f);
  for (std::int64_t i = 0; i < before; i++) rows_.advance();
}

void ConvTail::set_rows(ConstRows rows) noexcept {
  rows_.clear();
  rows_.append(rows);
  known_ = true;
}

std::int64_t ConvTail::oldest() const {
  const std::int64_t first = position_ - inputs_.size();
  return first == 0 ? 0 : first + before_;
}

std::int64_t ConvTail::nbytes() const {
  return conv_tail_bytes(before_, rows_.rows().cols, inputs_.rows().cols, kept_);
}

void ConvTail::take_in(ConstRows x) noexcept {
  const std::int64_t n = std::min(x.rows, kept_);
  if (n < x.rows) inputs_.clear();  // rows are left out between those and these
  inputs_.make_room(n, kept_ - n);
  inputs_.append({x.row(x.rows - n), n, x.cols, x.stride});
  position_ += x.rows;
  known_ = false;
}

void ConvTail::rewind(std::int64_t position) noexcept {
  inputs_.drop_newest(position_ - position);
  position_ = position;
  known_ = false;
}

void ConvTail::resume(std::int64_t position, ConstRows inputs) noexcept {
  inputs_.append(inputs);
  position_ = position;
  known_ = false;
}

void ConvTail::make_room() noexcept {
  rows_.make_room(1, before_);
  inputs_.make_room(1, kept_ - 1);
}

void ConvTail::advance() noexcept {
  rows_.advance();
  rows_.drop_oldest(1);
  inputs_.advance();
  position_++;
}

std::int64_t conv_tail_bytes(std::int64_t before, std::int64_t channels, std::int64_t width, std::int64_t kept) {
  return static_cast<std::int64_t>(sizeof(float)) * ((before + kSteps) * channels + 2 * kept * width);
}

}  // namespace hyena
