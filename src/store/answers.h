// How a driver delivers its answers: on the loop's thread, never inside the call.
//
// Threads: answers are made on any thread and delivered on the loop's.
#pragma once

#include <optional>
#include <utility>

#include "async/loop.h"
#include "base/error.h"

namespace ae::store {

template <class T>
void answer_later(async::Loop& loop, async::Done<Result<T>> done, Result<T> answer) {
  loop.post(
      [done = std::move(done), answer = std::move(answer)]() mutable { done(std::move(answer)); });
}
template <class T>
void answer_later(async::Loop& loop, async::Done<Result<T>> done, Error error) {
  answer_later(loop, std::move(done), Result<T>(std::unexpected(std::move(error))));
}

// A write (the class of a driver, as GroupWriter has it) that stores its answer and delivers it
// once.
template <class Write, class T>
class WriteWithResult : public Write {
 public:
  explicit WriteWithResult(async::Done<Result<T>> done) : done_(std::move(done)) {}
  void fail(const Error& error) final { answer_ = std::unexpected(error); }
  void answer() final { done_(std::move(*answer_)); }

 protected:
  void set_result(Result<T> answer) { answer_ = std::move(answer); }
  void override_with_error(std::optional<Error> error) {
    if (error) answer_ = std::unexpected(*std::move(error));
  }
  const Result<T>& result() const { return *answer_; }

 private:
  async::Done<Result<T>> done_;
  std::optional<Result<T>> answer_;
};

}  // namespace ae::store
