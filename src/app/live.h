// Live: a job's events as they happen, as one stream, and between them what answers say as they come.
//
// `id:` is the seq of an event, so that Last-Event-ID resumes the log; what is said (`said`) has none, and is told from its
// beginning to whoever comes in the middle. Who reads too slowly misses the end of it and reads it in the event of the
// answer: nobody waits for a reader. The stream ends with the job. Decision: 0053-streaming.md. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/api.h"
#include "api/gate.h"
#include "net/asio_loop.h"
#include "net/http_server.h"
#include "runtime/sayings.h"

namespace ae::app {

// Where requests come in. All is borrowed, and outlives every stream.
struct Place {
  net::AsioLoop& loop;
  async::SteadyClock& steady;
  api::Api& api;
  runtime::Sayings& sayings;
  api::Gate* gate;                      // nullptr: only our own user comes in here
  std::function<bool()> has_room = {};  // for another large answer
};

// Who is let in once may be let out again: what is about to be told is told only if they still may hear it.
using Still = std::function<void(api::Gate::Still)>;
Still still_of(api::Gate* gate, const api::Pass& pass);

// Begins a stream of the events of the job that `request` names, after `last_event_id` ("": from the beginning).
// `right` is kept as long as the stream is open. REQUIRES: who asks has been let in.
void stream_events(const Place& place, api::ApiRequest request, const std::string& last_event_id,
                   net::Responder responder, const api::Pass& pass, std::shared_ptr<void> right);

}  // namespace ae::app
