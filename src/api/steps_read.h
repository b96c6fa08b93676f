// Reads of the steps of a job, from its newest state and the index of its steps
// (runtime/service/history.h). Only for the .cc files of this module.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "api/read.h"

namespace ae::api {

using StepsReadPtr = std::shared_ptr<const engine::IndexedState>;

// Reads the job in the path, or refuses.
void read_steps(ApiContext& api, RequestPtr ctx,
                std::move_only_function<void(StepsReadPtr, ReadLimiter::Slot)> then);

// Runs `work` on a reader thread, as `compute`. `then` has the state until it is on the loop again:
// it is released there.
template <class T>
void compute_from(ApiContext& api, StepsReadPtr read, ReadLimiter::Slot slot,
                  std::move_only_function<Result<T>(const engine::IndexedState&)> work,
                  async::Done<Result<T>> then) {
  async::compute<Result<T>>(
      api.runtime.reader().executor(),
      [read, work = std::move(work)](const std::stop_token&) mutable { return work(*read); },
      [alive = api.alive.watch(), read, slot = std::move(slot),
       then = std::move(then)](Result<T> result) mutable {
        if (alive) then(std::move(result));
      });
}

}  // namespace ae::api
