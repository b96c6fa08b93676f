// What the routes about the steps of a job read. Only for the .cc files of this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "api/request_context.h"

namespace ae::api {

// The parameters of GET /api/jobs/{id}/replay.
struct ReplayQuery {
  std::uint64_t at = runtime::History::kLastEvent;
  std::optional<std::uint64_t> diff_from;
  std::string fields;  // summary steps; "" = the whole state
};

// The state of a job after an event.
struct Api::ShownState {
  runtime::History::PastState past;
  StepsReadPtr newest = nullptr;  // instead: the kept state at the end of the log

  const engine::State* state() const {
    return newest ? &newest->state() : past.state ? &*past.state : nullptr;
  }
};

// Runs `work` on a reader thread, as Api::compute. `then` has the state until it is on the loop
// again: it is released there.
template <class T>
void Api::compute_from(StepsReadPtr read, ReadLimiter::Slot slot,
                       std::move_only_function<Result<T>(const engine::IndexedState&)> work,
                       async::Done<Result<T>> then) {
  async::compute<Result<T>>(
      runtime_.reader().executor(),
      [read, work = std::move(work)](const std::stop_token&) mutable { return work(*read); },
      [alive = alive_.watch(), read, slot = std::move(slot),
       then = std::move(then)](Result<T> result) mutable {
        if (alive) then(std::move(result));
      });
}

}  // namespace ae::api
