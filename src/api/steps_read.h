// Reads of the steps of a job, from its newest state and the index of its steps
// (runtime/service/history.h). Only for the .cc files of this module.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "api/read.h"

namespace ae::api {

using IndexedStatePtr = std::shared_ptr<const engine::IndexedState>;

// Makes the response of one read: its body and the row are of the same log.
struct PageMaker {
  ResponseMaker maker;
  std::shared_ptr<const store::JobRow> row;

  ApiResponse make(Value body) const { return maker.make(row.get(), std::move(body)); }
};

struct StepsRead {
  IndexedStatePtr indexed;
  ReadLimiter::Slot slot;
  PageMaker maker;
};

// Reads the job in the path, or refuses, or responds with 304.
void read_steps(ApiContext& api, RequestPtr ctx, std::move_only_function<void(StepsRead)> then);

// Runs `work` on a reader thread, as `compute`. `then` has the state until it is on the loop again:
// it is released there.
template <class T>
void compute_from(ApiContext& api, const StepsRead& read,
                  std::move_only_function<Result<T>(const engine::IndexedState&)> work,
                  async::Done<Result<T>> then) {
  async::compute<Result<T>>(
      api.runtime.reader().executor(),
      [indexed = read.indexed, work = std::move(work)](const std::stop_token&) mutable {
        return work(*indexed);
      },
      [alive = api.alive.watch(), indexed = read.indexed, slot = read.slot,
       then = std::move(then)](Result<T> result) mutable {
        if (alive) then(std::move(result));
      });
}

}  // namespace ae::api
